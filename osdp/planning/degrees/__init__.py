"""Degrees of tensor, pipeline and data parallelism: how many ranks share an operator, a stage, a plan (docs/degrees.md)."""
