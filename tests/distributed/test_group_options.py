"""The groups that we make beside the caller's are made with his options, and torch.distributed knows them."""

from __future__ import annotations

import torch
import torch.distributed as dist
from harness import Member
from harness.doomed import run_doomed
from support import deaths, recording
from torch.distributed.distributed_c10d import _world

import osdp
from osdp.ranks.backends import forget_group, make_group
from osdp.ranks.process_groups import lane_group


def colors_of(me: Member, made: recording.Recording) -> list[int]:
    colors: list[int] = [0] * me.world
    dist.all_gather_object(colors, made.given.split_color)
    return colors


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
    assert colors_of(me, made) == [0 if bound else -1] * me.world
    assert (made.connected_to is not None) == bound  # by a split, which nothing else may be under way beside
    (ours,) = (g for g in _world.pg_names if _world.pg_names[g] == name)
    assert ours.group_desc == "osdp, beside mine" and ours.group_name == name
    assert dist.get_process_group_ranks(ours) == made.ranks
    # Groups that part all ranks are one split.
    beside.part(group, [[rank] for rank in range(me.world)])
    part = recording.MADE[-1]
    assert part.ranks == [me.rank] and part.given.config == "16 blocks"
    assert (part.given.split_from is callers) == bound
    assert colors_of(me, part) == ([*range(me.world)] if bound else [-1] * me.world)
    # One of some ranks alone: nobody may wait for the others in a split.
    alone = make_group("alone", group, [torch.device("cpu")], [me.rank])
    assert recording.MADE[-1] is not part and recording.MADE[-1].given.split_from is None
    forget_group(alone, "alone")
    model = osdp.fully_shard(deaths.tiny(), deaths.uniform(), process_group=group)
    model(torch.randn(2, 8)).sum().backward()
    dist.destroy_process_group()
    assert not _world.pg_names


def test_the_callers_options_are_kept() -> None:
    for bound in (False, True):
        for ending in run_doomed(made_beside, bound, world=2, timeout_s=60.0):
            assert ending.error is None and ending.signal is None, ending


def lines_and_columns(me: Member) -> None:
    recording.register()
    group = dist.new_group(backend="recording", pg_options=recording.Options())
    group.bound_device_id = torch.device("cpu", 0)
    callers = group._get_backend(torch.device("cpu"))
    plan = deaths.uniform("HYBRID_SHARD")
    model = osdp.fully_shard(deaths.tiny(), plan, process_group=group, ranks_per_host=2)
    _, line, column = recording.MADE[-3:]
    assert line.ranks == [[0, 1], [2, 3]][me.rank // 2] and column.ranks == [[0, 2], [1, 3]][me.rank % 2]
    assert colors_of(me, line) == [0, 0, 2, 2] and colors_of(me, column) == [0, 1, 0, 1]
    for made in (line, column):
        assert made.given.split_from is callers and made.connected_to == group.bound_device_id
    before = len(recording.MADE)
    osdp.fully_shard(deaths.tiny(), plan, process_group=group, ranks_per_host=2)
    assert len(recording.MADE) == before
    model(torch.randn(2, 8)).sum().backward()
    dist.destroy_process_group()


def test_all_lines_are_one_split_and_all_columns_another() -> None:
    for ending in run_doomed(lines_and_columns, world=4, timeout_s=60.0):
        assert ending.error is None and ending.signal is None, ending
