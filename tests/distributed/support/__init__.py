"""What the distributed cases share: models and data, plans to try, the comparison with one process."""
