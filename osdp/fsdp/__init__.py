"""The class that scripts written for FairScale or torch's FSDP construct."""

from osdp.fsdp.drop_in import FullyShardedDataParallel

__all__ = ["FullyShardedDataParallel"]
