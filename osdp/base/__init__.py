"""What every other package may use: sizes, JSON files and their schemas, tensors in containers."""
