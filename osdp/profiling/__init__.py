"""The machine and the model, measured: what a search needs to know of them."""
