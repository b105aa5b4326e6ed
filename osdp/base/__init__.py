"""Utilities for all other packages: sizes, JSON files and their schemas, tensors in containers."""
