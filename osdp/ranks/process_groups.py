"""The process group of a sharded model's collectives: a separate one for each of the caller's groups.

Note [A group of our own]
The runtime submits collectives from hooks, while the caller's own (a loss averaged for the log, a barrier)
come from the script. On one group the two would interleave, differently on ranks that run at different
speeds. new_group cannot create the second group: it must be called by all ranks of the job, and with
use_local_synchronization it derives the name from the number of groups that this rank happens to have. So the
backend is created on the job's store directly (`backends.py`).

Note [Names that no one has used]
A store may outlive the job: torchelastic restarts the ranks with the store of the last attempt, which still
contains its addresses and failures. So every name contains random digits, drawn by one rank and sent to the
others on a channel without stale data: the caller's own group, or an answer to a request with random digits
(`rendezvous.py`).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import secrets
import weakref
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import distributed as dist
from torch.distributed.distributed_c10d import _world

from osdp import _C
from osdp.errors import ProcessGroupError
from osdp.ranks import extension_lifetime
from osdp.ranks.backends import forget_group, make_group, timeout_of
from osdp.ranks.rendezvous import PHASE, first_contact, meet

_groups: WeakKeyDictionary[dist.ProcessGroup, dict[torch.device, LaneGroup]] = WeakKeyDictionary()
_of_ranks: WeakKeyDictionary[dist.ProcessGroup, dict[tuple[int, ...], dist.ProcessGroup]] = (
    WeakKeyDictionary()
)
_times_made: dict[tuple[int, ...], int] = {}


class LaneGroup:
    """The separate group for one of the caller's groups and one kind of device, with its lanes and heartbeat.
    See `lane_group`.

    They end with the last reference to this object: those of the caller's group, and of each model sharded on
    it.
    """

    def __init__(self, name: str, group: dist.ProcessGroup, device: torch.device, phase: str) -> None:
        """Collective, with the same new name on all ranks."""
        self.name = name
        self.device = device
        self.communicator_bytes = 0  # measured size on its device, besides tensors
        if extension_lifetime.is_fork():
            raise ProcessGroupError(
                "this process was forked from one in which OSDP had already communicated, so OSDP's "
                "threads do not exist here: start ranks with torchrun or torch.multiprocessing.spawn"
            )
        self._rank, self._ranks = dist.get_rank(group), dist.get_process_group_ranks(group)
        self._stages: list[int] = []
        self._parts: dict[tuple[str, tuple[tuple[int, ...], ...]], str] = {}
        self._made: list[tuple[str, dist.ProcessGroup]] = []
        weakref.finalize(self, _end, self._made).atexit = False  # then extension_lifetime.py ends all
        _of_this_process.add(self)
        extension_lifetime.has_threads()
        self._make(name, group, range(dist.get_world_size(group)), phase)
        self.name_ranks([f"rank {rank}" for rank in self._ranks])
        _C.start_heartbeat(name, device, timeout_of(group, device).total_seconds())
        self.collectives = _C.Collectives(name, device)

    def name_ranks(self, names: Sequence[str]) -> None:
        """What errors call each rank of the group: its number in the job, "rank 6", with its stage of a pipeline where it
        has one, "rank 6 (stage 1)"."""
        self.rank_names = tuple(names)
        _C.name_ranks(self.name, self.device, list(names))

    def in_stage(self, stage: int) -> None:
        """The group's ranks have this stage of a pipeline."""
        if stage not in self._stages:
            self._stages = sorted({*self._stages, stage})
            of = f"stage{'s' if len(self._stages) > 1 else ''} {', '.join(map(str, self._stages))}"
            self.name_ranks([f"rank {rank} ({of})" for rank in self._ranks])

    def part(self, group: dist.ProcessGroup, parts: Sequence[Sequence[int]], purpose: str = "") -> str:
        """The name of this rank's subgroup, where `parts` partition the ranks of `group`, whose lane group
        this is. Different `purpose`s have different subgroups.

        Created at the first call; all ranks of `group` must call this with the same arguments.
        """
        key = (purpose, tuple(map(tuple, parts)))
        if key not in self._parts:
            ranks = next(ranks for ranks in key[1] if self._rank in ranks)
            name = f"{self.name}/{hashlib.sha256(repr((key, ranks)).encode()).hexdigest()[:16]}"
            _C.set_ranks_of_part(name, ranks)
            self._make(name, group, ranks, PHASE)
            # Connect here, which all ranks reach: creating a Runtime may fail on some.
            first_contact(group, lambda: _C.connect_part(name, self.device), PHASE)
            self._parts[key] = name
        return self._parts[key]

    def _make(self, name: str, group: dist.ProcessGroup, ranks: Sequence[int], phase: str) -> None:
        """`ranks`: of `group`."""
        of_all = dist.get_process_group_ranks(group)
        made = first_contact(
            group,
            lambda: make_group(name, group, [self.device], [of_all[r] for r in ranks], together=True),
            phase,
        )
        self._made.append((name, made))


def _end(made: list[tuple[str, dist.ProcessGroup]]) -> None:
    for name, group in reversed(made):
        _C.end_group(name)
        forget_group(group, name)
    made.clear()


_of_this_process: weakref.WeakSet[LaneGroup] = weakref.WeakSet()


def _keep_in_child() -> None:
    """In a forked child groups never end, not even with the interpreter: they would wait for threads that are not there."""
    for group in _of_this_process:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


os.register_at_fork(after_in_child=_keep_in_child)


def lane_group(group: dist.ProcessGroup, device: torch.device, phase: str = PHASE) -> LaneGroup:
    """The separate group for `group`. Created at the first call, which is collective. Raises RankError,
    naming a rank that died or did not join, and the `phase`.
    """
    for old in [g for g in _groups if g not in _world.pg_map]:  # destroyed
        del _groups[old]
    made = _groups.setdefault(group, {})
    if device not in made:
        name = first_contact(group, lambda: _agreed_name(group), phase)
        made[device] = LaneGroup(name, group, device, phase)
    return made[device]


def rank_name(group: dist.ProcessGroup, rank: int) -> str:
    """What errors call rank `rank` of `group`: see `LaneGroup.name_ranks`."""
    made = next(iter(_groups.get(group, {}).values()), None)
    return made.rank_names[rank] if made else f"rank {dist.get_global_rank(group, rank)}"


def _agreed_name(group: dist.ProcessGroup) -> str:
    names: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(names, f"osdp/{group.group_name}/{secrets.token_hex(8)}", group=group)
    return str(names[0])


def group_of_ranks(ranks: Sequence[int]) -> dist.ProcessGroup:
    """A group of these global ranks, which include this one, for `torch.distributed`'s functions; the default
    group if they are all ranks. Created at the first call, by those ranks only (`dist.new_group` needs all
    ranks of the job).
    """
    world = dist.group.WORLD
    assert world is not None
    if list(ranks) == dist.get_process_group_ranks(world):
        return world
    made = _of_ranks.setdefault(world, {})
    key = tuple(ranks)
    if key not in made:
        # All its members have created it equally often, whatever other groups they joined meanwhile.
        times = _times_made[key] = _times_made.get(key, 0) + 1
        name = f"osdp/ranks/{'-'.join(map(str, key))}/{times}"
        name = f"{name}/{meet(name, key, timeout_of(world, world._device_types[0]))}"
        made[key] = make_group(name, world, world._device_types, key)
        _world.tags_to_pg.setdefault("", []).append(made[key])  # found by its ranks, like new_group's
    return made[key]
