"""A plan in effect on a model: fully_shard and all that a sharded model does in Python."""
