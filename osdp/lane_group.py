"""The process group that a sharded model communicates on: one of its own beside each of the caller's.

Note [A group of our own]
Collectives of the runtime are submitted from hooks, while the caller's own (a loss averaged for the log, a barrier) come
from his code. On one group the two would interleave, and differently on ranks that run at different speeds. new_group
cannot make the second group: it must be called by all ranks of the job, and with use_local_synchronization it derives
the name from the number of groups that this rank happens to have. So the backend is made over the job's store directly.
"""

from __future__ import annotations

import itertools
from datetime import timedelta
from weakref import WeakKeyDictionary

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import PrefixStore, _register_process_group
from torch.distributed.distributed_c10d import _get_default_store

from osdp import _C
from osdp.errors import ProcessGroupError
from osdp.together import Together

_groups: WeakKeyDictionary[dist.ProcessGroup, dist.ProcessGroup] = WeakKeyDictionary()
_count = itertools.count()


def lane_group(group: dist.ProcessGroup, device: torch.device) -> str:
    """The name, for c10d's registry, of the group beside `group`. Made at the first call, which is collective."""
    if group not in _groups:
        made = _groups[group] = _make(group, device)
        _C.start_heartbeat(made.group_name, device, _timeout(group, device).total_seconds())
    return _groups[group].group_name


def _timeout(group: dist.ProcessGroup, device: torch.device) -> timedelta:
    timeout: timedelta = group._get_backend(device).options._timeout
    return timeout


def _make(group: dist.ProcessGroup, device: torch.device) -> dist.ProcessGroup:
    together = Together(group)
    name = together.first(
        lambda: f"osdp/{dist.get_process_group_ranks(group)[0]}/{group.group_name}/{next(_count)}"
    )
    store = PrefixStore(f"{name}/", _get_default_store())
    kind = dist.get_backend(group)
    caller = group._get_backend(device)
    made = dist.ProcessGroup(store, together.rank, together.world_size)
    if kind == dist.Backend.GLOO:
        timeout = _timeout(group, device) + timedelta(seconds=_C.HEARTBEAT_MARGIN_S)
        backend = dist.ProcessGroupGloo(store, together.rank, together.world_size, timeout)
        made._register_backend(device, dist.ProcessGroup.BackendType.GLOO, backend)
    elif kind == dist.Backend.NCCL:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = caller.options._timeout
        nccl = dist.ProcessGroupNCCL(store, together.rank, together.world_size, options)
        made._register_backend(device, dist.ProcessGroup.BackendType.NCCL, nccl)
    else:
        raise ProcessGroupError(f"backend {kind!r} is not supported for {device.type}: use gloo or nccl")
    made._set_group_name(name)  # type: ignore[arg-type]
    _register_process_group(name, made)  # type: ignore[arg-type]
    return made
