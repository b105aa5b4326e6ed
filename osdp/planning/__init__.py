"""Makes plans from a description and a machine: search, solve, verify, frontier, simulate."""
