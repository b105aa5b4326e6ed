"""From a description and a machine to a plan: search, solve, verify, frontier, simulate."""
