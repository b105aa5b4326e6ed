"""What is known of a machine: the value `Hardware`, the known machines, and what this one is."""
