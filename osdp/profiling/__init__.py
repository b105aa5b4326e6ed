"""Measures the machine and the model for the search."""
