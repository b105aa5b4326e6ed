"""What OSDP changes in torch itself, so that its tools are right with sharded models or refuse them."""
