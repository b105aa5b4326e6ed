"""What the distributed cases share: models with their data, plans to try, and the comparison with one process."""
