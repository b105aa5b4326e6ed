"""The process group that a sharded model communicates on: one of its own beside each of the caller's.

Note [A group of our own]
Collectives of the runtime are submitted from hooks, while the caller's own (a loss averaged for the log, a barrier) come
from his code. On one group the two would interleave, and differently on ranks that run at different speeds. new_group
cannot make the second group: it must be called by all ranks of the job, and with use_local_synchronization it derives
the name from the number of groups that this rank happens to have. So the backend is made over the job's store directly.

Note [Names that no one has used]
A store may outlive the job: torchelastic starts the ranks anew with the store that the last attempt used, and its
addresses and its failures are still there. So every name has random digits in it, drawn by one rank and told to the others
by a way on which nothing old can be: the caller's own group, or an answer to a question with random digits (`meeting.py`).
"""

from __future__ import annotations

import hashlib
import secrets
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import distributed as dist
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import PrefixStore, _register_process_group
from torch.distributed.distributed_c10d import _get_default_store, _world

from osdp import _C, native
from osdp.errors import ProcessGroupError
from osdp.meeting import PHASE, first_contact, meet

_groups: WeakKeyDictionary[dist.ProcessGroup, dict[torch.device, LaneGroup]] = WeakKeyDictionary()
_of_ranks: WeakKeyDictionary[dist.ProcessGroup, dict[tuple[int, ...], dist.ProcessGroup]] = (
    WeakKeyDictionary()
)
_times_made: dict[tuple[int, ...], int] = {}


class LaneGroup:
    """The group beside one of the caller's, for one kind of device, with its lanes and heartbeat. See `lane_group`.

    They end with the last reference to this: of the caller's group, and of each model that was sharded on it.
    """

    def __init__(self, name: str, group: dist.ProcessGroup, device: torch.device, phase: str) -> None:
        """Collective, with the same new name on all ranks."""
        self.name = name
        self.device = device
        self._rank = dist.get_rank(group)
        self._parts: dict[tuple[int, ...], str] = {}
        self._made: list[tuple[str, dist.ProcessGroup]] = []
        weakref.finalize(self, _end, self._made).atexit = False  # there native.py ends all of them
        native.has_threads()
        self._make(name, group, self._rank, dist.get_world_size(group), phase)
        _C.start_heartbeat(name, device, _timeout(group, device).total_seconds())
        self.collectives = _C.Collectives(name, device)

    def part(self, group: dist.ProcessGroup, ranks: Sequence[int]) -> str:
        """The name of the group of some ranks (of `group`, whose lane group this is), this one among them.

        Made at the first call, by those ranks alone: they must call this in an order that all ranks of `group` could follow.
        """
        key = tuple(ranks)
        if key not in self._parts:
            name = f"{self.name}/{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}"
            _C.set_ranks_of_part(name, key)
            self._make(name, group, key.index(self._rank), len(key), PHASE)
            # Here, where all of them come: the making of a Runtime may fail on some.
            first_contact(group, lambda: _C.connect_part(name, self.device), PHASE)
            self._parts[key] = name
        return self._parts[key]

    def _make(self, name: str, group: dist.ProcessGroup, rank: int, size: int, phase: str) -> None:
        made = first_contact(group, lambda: _make(name, group, [self.device], rank, size), phase)
        self._made.append((name, made))


def _end(made: list[tuple[str, dist.ProcessGroup]]) -> None:
    if native.is_fork():
        return
    unregister = getattr(c10d, "_unregister_process_group", None)  # without it the registry keeps a name
    for name, _ in reversed(made):
        _C.end_group(name)
        if unregister is not None:
            unregister(name)
    made.clear()


def lane_group(group: dist.ProcessGroup, device: torch.device, phase: str = PHASE) -> LaneGroup:
    """The group beside `group`. Made at the first call, which is collective. Raises RankError, naming a rank that died or
    did not come, and the `phase` in which.
    """
    for old in [g for g in _groups if g not in _world.pg_map]:  # destroyed
        del _groups[old]
    made = _groups.setdefault(group, {})
    if device not in made:
        name = first_contact(group, lambda: _agreed_name(group), phase)
        made[device] = LaneGroup(name, group, device, phase)
    return made[device]


def backend_of(group: dist.ProcessGroup | None, device: torch.device) -> str | None:
    """The kind of backend that `group` (None: the default one) has for devices of this type; None: it has none."""
    config: Any = _world.pg_backend_config[group or dist.group.WORLD]  # type: ignore[index]
    return dist.BackendConfig(config).get_device_backend_map().get(device.type)


def _agreed_name(group: dist.ProcessGroup) -> str:
    names: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(names, f"osdp/{group.group_name}/{secrets.token_hex(8)}", group=group)
    return str(names[0])


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
        name = f"{name}/{meet(name, key, _timeout(world, world._device_types[0]))}"
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
    return _C.timeout_of(group.group_name, device)


def _make(
    name: str, group: dist.ProcessGroup, devices: Sequence[torch.device], rank: int, size: int
) -> dist.ProcessGroup:
    """A group of `size` ranks under `name`, with the backends and timeout that `group` has for `devices`."""
    made = dist.ProcessGroup(PrefixStore(f"{name}/", _get_default_store()), rank, size)
    backends: dict[str, Any] = {}
    for device in devices:
        kind = backend_of(group, device)
        assert kind is not None
        store = PrefixStore(f"{name}/{kind}/", _get_default_store())
        if kind not in backends:
            # The heartbeat's verdict, which knows more, comes first.
            timeout = _timeout(group, device) + timedelta(seconds=_C.HEARTBEAT_MARGIN_S)
            backends[kind] = _backend(kind, store, rank, size, timeout)
        made._register_backend(device, _kind_of_backend(kind), backends[kind])
    made._set_group_name(name)  # type: ignore[arg-type]
    _register_process_group(name, made)  # type: ignore[arg-type]
    return made


def _kind_of_backend(kind: str) -> Any:
    return getattr(dist.ProcessGroup.BackendType, kind.upper(), dist.ProcessGroup.BackendType.CUSTOM)


def _backend(kind: str, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """Of a kind that torch has, or that somebody has registered with it."""
    if kind == dist.Backend.GLOO:
        return dist.ProcessGroupGloo(store, rank, size, timeout)
    if kind == dist.Backend.NCCL:
        nccl = dist.ProcessGroupNCCL.Options()
        nccl._timeout = timeout
        return dist.ProcessGroupNCCL(store, rank, size, nccl)
    plugin = dist.Backend._plugins.get(kind.upper())
    if plugin is None:
        raise ProcessGroupError(
            f"backend {kind!r} is not supported: use gloo, nccl, or one that dist.Backend.register_backend knows"
        )
    if not plugin.extended_api:
        return plugin.creator_fn(store, rank, size, timeout)
    options: Any = c10d._DistributedBackendOptions()
    options.store, options.group_rank, options.group_size, options.timeout = store, rank, size, timeout
    return plugin.creator_fn(options, None)
