"""The runtime's collectives by themselves, through shared memory, sockets and gloo: every size around the edges of
their segments, every dtype."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache

import pytest
import torch
import torch.distributed as dist
from harness import Member
from support.pair import naming

from osdp import _C
from osdp.ranks.backends import make_group

CPU = torch.device("cpu")
SEGMENT = 256 * 1024 // 4  # elements of fp32 in one message over gloo
STREAMED = 128 * 1024 // 4  # over sockets of our own
SLOT = 64 * 1024 // 4  # and through shared memory
SIZES = (
    1,
    7,
    1000,
    4096,
    4097,
    SLOT - 1,
    SLOT + 1,
    STREAMED + 1,
    SEGMENT - 1,
    SEGMENT + 1,
    5 * SEGMENT + 3,
)  # of one rank's part


def collectives(me: Member, link: str) -> _C.Collectives:
    return made(me.group, link)[1]


@cache
def made(group: dist.ProcessGroup, link: str) -> tuple[dist.ProcessGroup, _C.Collectives]:
    """A group's link is chosen when its first collectives are made, so each kind has a group of its own."""
    name = f"test/{link}/{group.group_name}"
    private = make_group(name, group, [CPU], dist.get_process_group_ranks(group))
    os.environ["OSDP_SHARED_MEMORY"] = "1" if link == "shared memory" else "0"
    os.environ["OSDP_SOCKETS"] = "0" if link == "gloo" else "1"
    try:
        collectives = _C.Collectives(private.group_name, CPU)
        assert collectives.transport == link
        return private, collectives
    finally:
        del os.environ["OSDP_SHARED_MEMORY"], os.environ["OSDP_SOCKETS"]


def numbers(rank: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small whole numbers: sums are exact in every dtype, whatever their order."""
    return ((torch.arange(count) * 7 + rank * 3) % 16).to(dtype)


def gathers(me: Member, link: str) -> None:
    ours = collectives(me, link)
    for count in SIZES:
        with naming(f"{count} elements"):
            out = torch.full((me.world * count,), -1.0)
            ours.all_gather([out], [numbers(me.rank, count)])
            assert torch.equal(out, torch.cat([numbers(r, count) for r in range(me.world)]))


def scatters(me: Member, link: str) -> None:
    ours = collectives(me, link)
    for count in SIZES:
        with naming(f"{count} elements"):
            out = torch.full((count,), -1.0)
            ours.reduce_scatter_mean([out], [numbers(me.rank, me.world * count)])
            mean = sum(numbers(r, me.world * count, torch.float64) for r in range(me.world)) / me.world
            torch.testing.assert_close(out, mean[me.rank * count :][:count].float())


def reduces(me: Member, link: str) -> None:
    ours = collectives(me, link)
    for count in (*SIZES, 3 * SEGMENT + 1):  # no number of ranks but 1 divides them all
        with naming(f"{count} elements"):
            tensor = numbers(me.rank, count)
            ours.all_reduce_mean([tensor])
            mean = sum(numbers(r, count, torch.float64) for r in range(me.world)) / me.world
            torch.testing.assert_close(tensor, mean.float())


def several_at_once(me: Member, link: str) -> None:
    """Tensors of several sizes and dtypes in one collective."""
    ours = collectives(me, link)
    kinds = [(3, torch.bfloat16), (SEGMENT + 5, torch.float32), (1, torch.float64), (9000, torch.float16)]
    full = [numbers(me.rank, me.world * n, dtype) for n, dtype in kinds]
    parts = [torch.empty(n, dtype=dtype) for n, dtype in kinds]
    ours.reduce_scatter_mean(parts, full)
    back = [torch.empty(me.world * n, dtype=dtype) for n, dtype in kinds]
    ours.all_gather(back, parts)
    ours.all_reduce_mean(full := [numbers(me.rank, me.world * n, dtype) for n, dtype in kinds])
    for (n, dtype), gathered, reduced in zip(kinds, back, full, strict=True):
        mean = sum(numbers(r, me.world * n, torch.float64) for r in range(me.world)) / me.world
        torch.testing.assert_close(gathered, mean.to(dtype))
        torch.testing.assert_close(reduced, mean.to(dtype))


def the_same_everywhere(me: Member, link: str) -> None:
    """Rounding must not differ between ranks: NO_SHARD replicas would drift apart."""
    ours = collectives(me, link)
    for count in (100, 4 * SEGMENT + 3):
        torch.manual_seed(me.rank)
        tensor = torch.randn(count)
        ours.all_reduce_mean([tensor])
        everyone = torch.empty(me.world * count)
        ours.all_gather([everyone], [tensor])
        for theirs in everyone.view(me.world, count):
            assert torch.equal(theirs, tensor)


def broadcasts(me: Member, link: str) -> None:
    ours = collectives(me, link)
    tensors = [
        torch.full((3, 2), float(me.rank)).t(),
        torch.tensor(me.rank == 0),
        torch.full((5,), me.rank, dtype=torch.int16),
        torch.full((2,), me.rank, dtype=torch.complex64),
        torch.empty(0),
    ]
    ours.broadcast(tensors)
    assert tensors[1].item() is True
    for tensor in (tensors[0], *tensors[2:]):
        assert torch.equal(tensor, torch.zeros_like(tensor))


# Every transport on two, three and four ranks: tests/cpp/comm/test_ring.cpp. Gloo itself is only here.
@pytest.mark.parametrize(("link", "world"), [("shared memory", 2), ("sockets", 3), ("gloo", 2), ("gloo", 4)])
@pytest.mark.parametrize(
    "case", [gathers, scatters, reduces, several_at_once, the_same_everywhere, broadcasts]
)
def test_collectives(ranks, world: int, link: str, case: Callable[[Member, str], None]) -> None:
    ranks(case, link, world=world)
