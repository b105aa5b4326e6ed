"""CPU offload: shards, their gradients and the optimizer's state are kept in host memory; gathered parameters
are not. Those of all operators with `cpu_offload=True`, else of those that the plan offloads (`FULL_SHARD_OFFLOAD`).

The device then holds only the parameters in use and those that are not sharded. Each gather first copies this
rank's rows to the device, and each reduction copies the gradient's rows back
(csrc/runtime/store/offload.hpp), so the optimizer steps on the host. If the device is the CPU, offload has no
effect.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from osdp.errors import InvalidProblemError
from osdp.plan.plan import Plan
from osdp.plan.plan_fields import parameters_with

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


def offloads(plan: Plan) -> bool:
    """Whether the plan offloads an operator."""
    return any(choice.traits.on_host for choice in plan.choices.values())


def offloaded_names(plan: Plan, names: Iterable[str], everything: bool, device: torch.device) -> set[str]:
    """Of the model's parameters those whose shards rest in host memory, if they are sharded (in slices: if all are)."""
    planned = parameters_with(plan, "on_host")
    return {name for name in names if rests_apart(everything or name in planned, device)}


def rests_apart(offload: bool, device: torch.device) -> bool:
    """Whether shards are kept in a different memory than the one of `device`."""
    return offload and device != HOST
