"""The process group that a sharded model communicates on: one of its own beside each of the caller's.

Note [A group of our own]
Collectives of the runtime are submitted from hooks, while the caller's own (a loss averaged for the log, a barrier) come
from his code. On one group the two would interleave, and differently on ranks that run at different speeds. new_group
cannot make the second group: it must be called by all ranks of the job, and with use_local_synchronization it derives
the name from the number of groups that this rank happens to have. So the backend is made over the job's store directly.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import PrefixStore, _register_process_group
from torch.distributed.distributed_c10d import _get_default_store, _world

from osdp import _C
from osdp.errors import ProcessGroupError
from osdp.together import Together

_groups: WeakKeyDictionary[dist.ProcessGroup, dist.ProcessGroup] = WeakKeyDictionary()
_parts: WeakKeyDictionary[dist.ProcessGroup, dict[tuple[int, ...], dist.ProcessGroup]] = WeakKeyDictionary()
_of_ranks: WeakKeyDictionary[dist.ProcessGroup, dict[tuple[int, ...], dist.ProcessGroup]] = (
    WeakKeyDictionary()
)
_count = itertools.count()
_times_made: dict[tuple[int, ...], int] = {}


def lane_group(group: dist.ProcessGroup, device: torch.device) -> str:
    """The name, for c10d's registry, of the group beside `group`. Made at the first call, which is collective."""
    if group not in _groups:
        together = Together(group)
        name = together.first(
            lambda: f"osdp/{dist.get_process_group_ranks(group)[0]}/{group.group_name}/{next(_count)}"
        )
        _groups[group] = _make(name, group, [device], together.rank, together.world_size)
        _C.start_heartbeat(name, device, _timeout(group, device).total_seconds())
    return _groups[group].group_name


def part_of_lane(group: dist.ProcessGroup, device: torch.device, ranks: Sequence[int]) -> str:
    """The name of the group of some ranks (of `group`, this one among them) beside `lane_group(group, device)`.

    Made at the first call, by those ranks alone: they must call this in an order that all ranks of `group` could follow.
    """
    lane = lane_group(group, device)
    parts = _parts.setdefault(group, {})
    key = tuple(ranks)
    if key not in parts:
        name = f"{lane}/{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}"
        _C.set_ranks_of_part(name, key)
        parts[key] = _make(name, group, [device], key.index(dist.get_rank(group)), len(key))
    return parts[key].group_name


def group_of_ranks(ranks: Sequence[int]) -> dist.ProcessGroup:
    """A group of these global ranks, this one among them, for `torch.distributed`'s functions; the default group where
    they are all. Made at the first call, by those ranks alone (`dist.new_group` needs all ranks of the job).
    """
    world = dist.group.WORLD
    assert world is not None
    if list(ranks) == dist.get_process_group_ranks(world):
        return world
    made = _of_ranks.setdefault(world, {})
    key = tuple(ranks)
    if key not in made:
        # Whoever is in it has made it as often, whatever other groups they were in meanwhile.
        times = _times_made[key] = _times_made.get(key, 0) + 1
        name = f"osdp/ranks/{'-'.join(map(str, key))}/{times}"
        group = _make(name, world, world._device_types, key.index(dist.get_rank()), len(key))
        made[key] = _announced(group, name, key)
    return made[key]


def _announced(group: dist.ProcessGroup, name: str, ranks: Sequence[int]) -> dist.ProcessGroup:
    """Lets torch.distributed know the group, as new_group does at its end."""
    world = dist.group.WORLD
    assert world is not None
    _world.pg_map[group] = (_world.pg_map[world][0], PrefixStore(f"{name}/", _get_default_store()))
    _world.pg_names[group] = name  # type: ignore[assignment]
    _world.pg_group_ranks[group] = {rank: i for i, rank in enumerate(ranks)}
    _world.pg_backend_config[group] = _world.pg_backend_config[world]
    tag = f"ptd:{name}"
    _world.tags_to_pg.setdefault("", []).append(group)
    _world.tags_to_pg.setdefault(tag, []).append(group)
    _world.pg_to_tag[group] = tag
    return group


def _timeout(group: dist.ProcessGroup, device: torch.device) -> timedelta:
    timeout: timedelta = group._get_backend(device).options._timeout
    return timeout


def _make(
    name: str, group: dist.ProcessGroup, devices: Sequence[torch.device], rank: int, size: int
) -> dist.ProcessGroup:
    """A group of `size` ranks under `name`, with the backends and timeout that `group` has for `devices`."""
    made = dist.ProcessGroup(PrefixStore(f"{name}/", _get_default_store()), rank, size)
    backends: dict[str, Any] = {}
    for device in devices:
        caller = group._get_backend(device)
        kind = caller.name()
        store = PrefixStore(f"{name}/{kind}/", _get_default_store())
        if kind not in backends:
            # The heartbeat's verdict, which knows more, comes first.
            timeout = _timeout(group, device) + timedelta(seconds=_C.HEARTBEAT_MARGIN_S)
            backends[kind] = _backend(kind, store, rank, size, timeout, device)
        made._register_backend(device, getattr(dist.ProcessGroup.BackendType, kind.upper()), backends[kind])
    made._set_group_name(name)  # type: ignore[arg-type]
    _register_process_group(name, made)  # type: ignore[arg-type]
    return made


def _backend(kind: str, store: Any, rank: int, size: int, timeout: timedelta, device: torch.device) -> Any:
    if kind == dist.Backend.GLOO:
        return dist.ProcessGroupGloo(store, rank, size, timeout)
    if kind == dist.Backend.NCCL:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return dist.ProcessGroupNCCL(store, rank, size, options)
    raise ProcessGroupError(f"backend {kind!r} is not supported for {device.type}: use gloo or nccl")
