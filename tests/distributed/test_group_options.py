"""The groups that we make beside the caller's are made with his options, and torch.distributed knows them."""

from __future__ import annotations

import torch
import torch.distributed as dist
from harness import Member
from harness.doomed import run_doomed
from support import deaths, recording
from torch.distributed.distributed_c10d import _world

import osdp
from osdp.lane_group import lane_group


def made_beside(me: Member, bound: bool) -> None:
    recording.register()
    mine = recording.Options(config="16 blocks")
    group = dist.new_group(backend="recording", pg_options=mine, group_desc="mine")
    if bound:
        group.bound_device_id = torch.device("cpu", 0)
    callers = group._get_backend(torch.device("cpu"))
    beside = lane_group(group, torch.device("cpu"))
    name = beside.name
    made = recording.MADE[-1]
    assert made is not callers and made.name_given == name
    assert made.ranks == list(range(me.world))
    assert made.given is not mine and made.given.config == "16 blocks"
    assert mine.split_from is None and (made.given.split_from is callers) == bound
    colors: list[int] = [0] * me.world
    dist.all_gather_object(colors, made.given.split_color)
    assert len(set(colors)) == 1 and (colors[0] >= 0) == bound
    (ours,) = (g for g in _world.pg_names if _world.pg_names[g] == name)
    assert ours.group_desc == "osdp, beside mine" and ours.group_name == name
    assert dist.get_process_group_ranks(ours) == made.ranks
    # Of some ranks only: nobody may wait for the others in a split.
    beside.part(group, [me.rank])
    part = recording.MADE[-1]
    assert part.ranks == [me.rank] and part.given.config == "16 blocks" and part.given.split_from is None
    model = osdp.fully_shard(deaths.tiny(), deaths.uniform(), process_group=group)
    model(torch.randn(2, 8)).sum().backward()
    dist.destroy_process_group()
    assert not _world.pg_names


def test_the_callers_options_are_kept() -> None:
    for bound in (False, True):
        for ending in run_doomed(made_beside, bound, world=2, timeout_s=60.0):
            assert ending.error is None and ending.signal is None, ending
