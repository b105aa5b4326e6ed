"""StateDictForm: the form of a sharded model's state_dict()."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StateDictForm:
    """`kind`: "full" tensors, "sharded" (DTensors that share this rank's memory, of sharded parameters) or "local" (the
    bare rows). `on_host`: tensors are copied to host memory, one by one. `rank0_only`: empty on other ranks.
    """

    kind: str = "full"
    on_host: bool = False
    rank0_only: bool = False
