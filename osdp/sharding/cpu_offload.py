"""CPU offload: shards, their gradients and the optimizer's state are kept in host memory; gathered parameters
are not.

The device then holds only the parameters in use and those that are not sharded. Each gather first copies this
rank's rows to the device, and each reduction copies the gradient's rows back
(csrc/runtime/store/offload.hpp), so the optimizer steps on the host. If the device is the CPU, offload has no
effect.
"""

from __future__ import annotations

import torch

from osdp.errors import InvalidProblemError

HOST = torch.device("cpu")


def wants_offload(given: object) -> bool:
    """Whether the argument `cpu_offload` requests offload. It is True or False, FSDP1's
    CPUOffload(offload_params=...), FSDP2's CPUOffloadPolicy or OffloadPolicy (no offload), or None.

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
            "cpu_offload must be True, False, CPUOffload(offload_params=...) or a CPUOffloadPolicy, "
            f"got {given!r}"
        )
    return name == "CPUOffloadPolicy"


def rests_apart(offload: bool, device: torch.device) -> bool:
    """Whether shards are kept in a different memory than the one of `device`."""
    return offload and device != HOST
