"""Patches of torch, so that its tools are correct with sharded models or refuse them."""
