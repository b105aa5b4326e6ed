"""The values that pass from search to training: Plan and what it consists of."""
