"""CPU offload: shards, their gradients and the optimizer's state rest in host memory; gathered parameters do not.

A rank then holds of its model on the device what it is computing with, and what is not sharded. Each gather first copies
this rank's rows to the device, each reduction copies the gradient's rows back (csrc/runtime/store/offload.hpp), so the
optimizer steps on the host. Where the device is the host, there is nothing to move.
"""

from __future__ import annotations

import torch

from osdp.errors import InvalidProblemError

HOST = torch.device("cpu")


def wants_offload(given: object) -> bool:
    """What `cpu_offload=` says: True or False, FSDP1's CPUOffload(offload_params=...), FSDP2's CPUOffloadPolicy or
    OffloadPolicy (which means none), or None.

    >>> wants_offload(torch.distributed.fsdp.CPUOffload(offload_params=True))
    True
    """
    if given is None or isinstance(given, bool):
        return bool(given)
    params = getattr(given, "offload_params", None)
    if isinstance(params, bool):
        return params
    name = type(given).__name__
    if name not in ("OffloadPolicy", "CPUOffloadPolicy"):
        raise InvalidProblemError(
            f"cpu_offload is {given!r}; it is True, False, CPUOffload(offload_params=...) or a CPUOffloadPolicy"
        )
    return name == "CPUOffloadPolicy"


def rests_apart(offload: bool, device: torch.device) -> bool:
    """Whether host memory is another memory than the one `device` computes in."""
    return offload and device != HOST
