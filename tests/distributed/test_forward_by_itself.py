"""`forward` called by itself, which passes torch's hooks by, gathers as a call does; also where local shapes broadcast."""

from __future__ import annotations

import functools

import pytest
import torch
from harness import Member
from support import blocks, plans
from support.pair import Pair, close, naming
from support.workload import Workload, vectors
from support.worlds import worlds
from torch import nn

import osdp
from osdp.sharding.sharded_model import runtime_of


class OwnCall(nn.Linear):
    """Its call passes the hooks by too."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward(x)


class Below(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 1


class Net(nn.Module):
    """Its biases and norms broadcast where a rank holds one of their rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = Below(6, 2), nn.LayerNorm(2), OwnCall(2, 4)
        self.single = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor, times: int = 1) -> torch.Tensor:
        if times > 1:
            return self.forward(x, times - 1)  # of itself, within its call
        return self.last(self.norm.forward(self.first.forward(x))) * self.single


class ByForward(nn.Module):
    """Calls `forward` of what it is given."""

    def __init__(self, model: nn.Module, how: str) -> None:
        super().__init__()
        self.inner, self.how = [model], how

    def __call__(self, *args: object) -> torch.Tensor:
        model = self.inner[0]
        if self.how == "partial":
            return functools.partial(model.forward, times=2)(*args)
        return model.forward(*args)


PLANS = {
    **{mode: lambda d, mode=mode: plans.apart(osdp.Plan.uniform(d, mode)) for mode in plans.MODES},
    "few units": "FULL_SHARD",
    "slices": lambda d: plans.in_slices(d, "out"),
}
NET = Workload(Net, vectors(6, 4))


def trained(me: Member) -> None:
    for name, plan in PLANS.items():
        for how in ("forward", "partial"):
            with naming(f"{name}, {how}"):
                pair = Pair(me, NET, plan)
                pair.train(steps=1)
                called, seen = pair.sharded, []
                called.register_forward_pre_hook(lambda *_, seen=seen: seen.append(1))
                pair.sharded = ByForward(called, how)
                for step in range(3):
                    pair.backward(pair.data(step), context=osdp.no_sync(called) if step == 1 else None)
                    if step != 1:
                        pair.sharded = called
                        pair.same_gradients()
                        pair.update()
                        pair.sharded = ByForward(called, how)
                assert not seen  # as ever
                assert runtime_of(called).gathered_bytes() == 0
                x = torch.randn(2, 6, dtype=torch.float64)
                for part in ("first", "norm", "last"):  # of a unit by itself
                    x = (
                        getattr(pair.whole, part)(x)
                        if part == "first"
                        else torch.randn(2, 2, dtype=torch.float64)
                    )
                    whole = getattr(pair.whole, part).forward
                    given = torch.randn(2, 6 if part == "first" else 2, dtype=torch.float64)
                    with torch.no_grad():
                        close(getattr(called, part).forward(given), whole(given), 1e-9, part)
                pair.sharded = called
                pair.train(steps=1)


@pytest.mark.outcome(
    "`model.forward(x)`, `self.layer.forward(x)`, a class with a `__call__` of its own", "equal"
)
@pytest.mark.parametrize("world", worlds(3, more=(2,)))
def test_forward_by_itself_trains_as_in_one_process(ranks, world):
    ranks(trained, world=world)


def recomputed_and_low(me: Member) -> None:
    def plan(described: osdp.ModelDescription) -> osdp.Plan:
        return plans.recomputed(osdp.Plan.uniform(described, "FULL_SHARD"), "regather")

    pair = Pair(me, blocks.workload(), plan)
    for block in pair.sharded.blocks:  # passed on by a wrapper of the script, which calls what was there
        inner = block.forward
        block.forward = lambda x, inner=inner: inner(x)
    pair.train(steps=2)
    called = pair.sharded
    pair.sharded = ByForward(called, "forward")
    pair.backward(pair.data(0))
    pair.sharded = called
    pair.same_gradients()

    policy = osdp.MixedPrecision(torch.bfloat16, torch.float32, output_dtype=torch.float32)
    low = Pair(me, NET, "FULL_SHARD", dtype=torch.float32, tolerance=0.05, mixed_precision=policy)
    x = torch.randn(2, 6)
    assert (
        torch.equal(low.sharded(x), low.sharded.forward(x)) and low.sharded.forward(x).dtype == torch.float32
    )


def test_forward_of_recomputed_blocks_and_in_low_precision(ranks):
    ranks(recomputed_and_low, world=2)


def failing(me: Member) -> None:
    """An exception within leaves the model usable, and forward by itself gathers the next time too."""
    pair = Pair(me, NET, PLANS["FULL_SHARD"])
    for _ in range(2):
        with pytest.raises((RuntimeError, TypeError)):
            pair.sharded.forward(torch.randn(2, 5, dtype=torch.float64))
        handle = pair.sharded.register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            pair.sharded(torch.randn(2, 6, dtype=torch.float64))
        handle.remove()
        whole, mine = (m.forward(torch.ones(2, 6, dtype=torch.float64)) for m in (pair.whole, pair.sharded))
        close(mine, whole, 1e-9, "output")
    pair.train(steps=1)


def test_forward_that_fails(ranks):
    ranks(failing, world=2)


def taken_before(me: Member) -> None:
    model = nn.Sequential(nn.Linear(4, 2, bias=False), nn.LayerNorm(2))
    model[1].bias.data.copy_(torch.tensor([1.0, 2.0]))
    before, given = model[1].forward, torch.randn(3, 2)
    plan = osdp.Plan.uniform(osdp.describe(model, torch.randn(3, 4)), "FULL_SHARD")
    osdp.fully_shard(model, plan, me.group)
    assert model[1].forward(given).shape == (3, 2)
    with pytest.raises(RuntimeError):  # of torch: this rank's row is no whole norm
        before(given)
    assert torch.equal(given + model[1].bias, given + me.rank + 1)  # silently this rank's row


@pytest.mark.outcome(
    "`f = model.forward` taken before `fully_shard`, or `x + model.norm.bias` in a function of the script, without a graph",
    "not detected: outside of a call a parameter is this rank's rows, and nothing tells a function from an optimizer",
)
def test_what_reads_shards_outside_of_a_call(ranks):
    ranks(taken_before, world=2)
