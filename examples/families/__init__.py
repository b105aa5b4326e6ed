"""Small members of model families, for `train_families.py`."""
