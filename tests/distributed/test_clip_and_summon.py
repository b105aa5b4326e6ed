"""clip_grad_norm_ and summon_full_params on any plan agree with one process."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from harness import Member
from support import blocks, plans
from support.pair import Pair, close, naming
from support.worlds import worlds
from torch import nn

import osdp
from osdp.sharding.sharded_model import runtime_of


def pairs(me: Member) -> Iterator[Pair]:
    chosen = {
        **{mode: mode for mode in plans.MODES},
        "slices along out": lambda d: plans.in_slices(d, "out"),
        "slices along in": lambda d: plans.in_slices(d, "in"),
        "mixture": lambda d: plans.mixture(d, 3),
    }
    for name, plan in chosen.items():
        with naming(name):
            yield Pair(me, blocks.workload(), plan)


def clip(me: Member) -> None:
    for pair in pairs(me):
        for step, (most, norm_type) in enumerate(
            [(1e-3, 2.0), (1e6, 2.0), (0.5, 2.0), (1e-3, 1.0), (1e-3, 3.0), (0.01, math.inf), (1e6, math.inf)]
        ):
            with naming(f"to {most}, order {norm_type}"):
                pair.backward(pair.data(step))
                wanted = nn.utils.clip_grad_norm_(pair.whole.parameters(), most, norm_type)
                got = osdp.clip_grad_norm_(pair.sharded, most, norm_type)
                close(torch.as_tensor(got), wanted, 1e-9, "norm")
                pair.same_gradients()
                pair.update()
        pair.same_parameters()


@pytest.mark.parametrize("world", worlds(3, more=(2,)))
def test_clipping_scales_by_the_norm_of_one_process(ranks, world):
    ranks(clip, world=world)


def clip_nothing(me: Member) -> None:
    """Without gradients the norm is 0, on every rank, and no rank waits."""
    pair = Pair(me, blocks.workload())
    assert float(osdp.clip_grad_norm_(pair.sharded, 1.0)) == 0.0


def test_clipping_without_gradients(ranks):
    ranks(clip_nothing, world=2)


def read_full(me: Member) -> None:
    for pair in pairs(me):
        pair.train(steps=1)
        pair.backward(pair.data(3))
        shapes = {name: p.shape for name, p in pair.sharded.named_parameters()}
        whole = dict(pair.whole.named_parameters())
        for with_grads in (False, True):
            with osdp.summon_full_params(pair.sharded, with_grads=with_grads, writeback=False):
                for name, parameter in pair.sharded.named_parameters():
                    close(parameter, whole[name], 1e-9, name)
                    if with_grads:
                        close(parameter.grad, whole[name].grad, 1e-9, f"gradient of {name}")
            assert shapes == {name: p.shape for name, p in pair.sharded.named_parameters()}
        pair.same_gradients()
        pair.update()
        pair.train(steps=1)
        assert runtime_of(pair.sharded).gathered_bytes() == 0


@pytest.mark.parametrize("world", [3])
def test_summoned_parameters_and_gradients_are_the_full_ones(ranks, world):
    ranks(read_full, world=world)


def write_full(me: Member) -> None:
    for pair in pairs(me):
        pair.train(steps=1)
        with osdp.summon_full_params(pair.sharded), torch.no_grad():
            for model, _ in pair.both:
                for index, parameter in enumerate(model.parameters()):
                    parameter.mul_(0.5).add_(0.01 * index)
                model.head.weight.copy_(model.embed.weight * 2)
        pair.same_parameters()
        pair.train(steps=2)


@pytest.mark.parametrize("world", worlds(4, more=(2,)))
def test_changes_to_summoned_parameters_are_kept(ranks, world):
    ranks(write_full, world=world)


def discard_writes(me: Member) -> None:
    """Without write-back a change is dropped wherever parameters are sharded."""
    pair = Pair(me, blocks.workload(), "FULL_SHARD")
    with osdp.summon_full_params(pair.sharded, writeback=False), torch.no_grad():
        pair.sharded.head.weight.zero_()
    pair.same_parameters()
    pair.train(steps=1)


def test_changes_are_dropped_without_write_back(ranks):
    ranks(discard_writes, world=2)


def summon_and_raise(me: Member) -> None:
    for pair in pairs(me):
        with pytest.raises(KeyError), osdp.summon_full_params(pair.sharded):
            raise KeyError("in the middle")
        assert runtime_of(pair.sharded).gathered_bytes() == 0
        pair.train(steps=1)


def test_an_exception_while_summoned_leaves_the_model_usable(ranks):
    ranks(summon_and_raise, world=2)
