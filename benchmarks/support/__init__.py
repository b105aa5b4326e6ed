"""What the benchmarks of the runtime share."""
