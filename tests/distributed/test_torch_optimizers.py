"""Optimizers of torch and of others on a sharded model: right, or refused before the first step changes anything."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from harness import Member
from support import blocks, plans
from support.pair import Pair, close, naming
from support.workload import Workload
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

import osdp


class PerParameter(torch.optim.Optimizer):
    """Steps one parameter after the other, by `move`."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.move(p, group["lr"])


class LARS(PerParameter):
    """Takes a norm of each parameter."""

    def move(self, p, lr):
        if p.grad is not None and p.numel():
            p.add_(p.grad, alpha=-lr * float(p.norm() / (p.grad.norm() + 1e-9)))


class SAM(torch.optim.Optimizer):
    """Takes the norm of all gradients; its constructor asks for more than its options."""

    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        super().__init__(params, {"rho": rho, **kwargs})
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def step(self, closure=None):
        assert closure is not None, "SAM requires closure"
        parameters = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p in parameters]).norm()
        moves = [p.grad * (self.param_groups[0]["rho"] / (norm + 1e-12)) for p in parameters]
        for p, move in zip(parameters, moves, strict=True):
            p.add_(move)
        with torch.enable_grad():
            closure()
        for p, move in zip(parameters, moves, strict=True):
            p.sub_(move)
        self.base_optimizer.step()


class StableAdamW(PerParameter):
    """Slower by the mean over a tensor where gradients jump, and only there."""

    def move(self, p, lr):
        square = self.state[p].setdefault("square", p.grad.square() + 1e-12)
        square.lerp_(p.grad.square(), 0.01)
        slower = (p.grad.square() / square).mean().sqrt().clamp(min=1)
        p.addcdiv_(p.grad, square.sqrt(), value=-lr / float(slower))


class SGDP(PerParameter):
    """Takes off the part along the parameter where a gradient is almost orthogonal to it, and only there."""

    def move(self, p, lr):
        along = float((p * p.grad).sum() / (p.norm() * p.grad.norm()))
        radial = p * (p * p.grad).sum() / p.square().sum() if abs(along) < 0.1 / p.numel() ** 0.5 else 0
        p.sub_(p.grad - radial, alpha=lr)


class Centralised(torch.optim.SGD):
    """Takes the mean of a row from each gradient of a weight; a closure would make the gradients anew."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.dim() > 1:
                    p.grad.sub_(p.grad.mean(tuple(range(1, p.dim())), keepdim=True))
        return super().step(closure)


class Sign(torch.optim.Optimizer):
    """Nobody's, and element-wise; takes no closure, and begins with a learning rate of 0."""

    def __init__(self, params, scale):
        super().__init__(params, {"lr": 0.0})
        self.scale = scale

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                self.state["run"]["steps"] = 1  # some have such entries
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                momentum.mul_(0.9).add_(p.grad)
                p.sub_(momentum.sign(), alpha=group["lr"] * self.scale)


class Rounds(PerParameter):
    """Element-wise but for the rounding of float32, which depends on how many elements a kernel gets."""

    def move(self, p, lr):
        p.sub_(p.grad, alpha=lr * (1 + 5e-9 * (p.numel() % 32)))


class Strange(torch.optim.SGD):
    """Cannot be tried."""

    def step(self, closure=None):
        if len(self.param_groups[0]["params"]) < 4:
            raise KeyError("too few")
        return super().step(closure)


def matrices(parameters):
    return [p for p in parameters if p.dim() == 2]


WHOLE = {
    "Muon": lambda ps: torch.optim.Muon(matrices(ps)),
    "Adafactor": lambda ps: torch.optim.Adafactor(ps),
    "LBFGS": lambda ps: torch.optim.LBFGS(ps),
    "LARS": LARS,
    "SAM": lambda ps: SAM(ps, torch.optim.SGD, lr=0.1),
    "StableAdamW": StableAdamW,
    "SGDP": SGDP,
}
OWN = ("LARS", "SAM", "StableAdamW", "SGDP")


def refused(me: Member) -> None:
    for name, make in WHOLE.items():
        if not hasattr(torch.optim, name) and name not in OWN:
            continue
        with naming(name):
            pair = Pair(me, blocks.workload(), lambda d: plans.mixture(d, 3), optimizer=make)
            pair.backward(pair.data(0))
            random = torch.get_rng_state()
            before = [p.detach().clone() for p in pair.sharded.parameters()]
            with pytest.raises(osdp.ShardingError, match=rf"rank \d: .*{name}.*NO_SHARD"):
                pair.sharded_optimizer.step(lambda: torch.zeros(()))
            assert not pair.sharded_optimizer.state
            assert torch.equal(random, torch.get_rng_state())
            assert all(torch.equal(b, p) for b, p in zip(before, pair.sharded.parameters(), strict=True))
            # Where every rank holds all of what it updates, it may step.
            pair = Pair(me, blocks.workload(), "NO_SHARD", optimizer=make)
            pair.backward(pair.data(0))
            for _, optimizer in pair.both:
                optimizer.step(lambda: torch.zeros(()))
            pair.same_parameters()


@pytest.mark.outcome("`Muon`, `Adafactor`, `LBFGS`, LARS, SAM on sharded parameters", osdp.ShardingError)
@pytest.mark.outcome(
    "`Muon`, `Adafactor`, `LBFGS`, LARS, SAM where all of their parameters are NO_SHARD", "equal"
)
@pytest.mark.outcome(
    "a SAM whose `first_step` and `second_step` are called by themselves",
    "not detected: torch has hooks for `step` only; call `step(closure)`, which is refused",
)
def test_optimizers_that_need_whole_tensors(ranks):
    ranks(refused, world=2)


class Placed(nn.Module):
    """A rank holds pieces of the only row of `places`."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.head = nn.Parameter(torch.randn(1, 4, 6)), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(x + self.places))


def by_rows(me: Member) -> None:
    workload = Workload(Placed, lambda n: ((torch.randn(n, 4, 6),), torch.randn(n, 4, 4)))

    def plan(split: str, places: str = "FULL_SHARD") -> Callable[[osdp.ModelDescription], osdp.Plan]:
        choices = {"": osdp.Choice(places), "head": osdp.Choice("FULL_SHARD", granularity=2, split=split)}
        return lambda d: osdp.Plan.uniform(d, "FULL_SHARD").replace(choices)

    Pair(me, workload, plan("out", places="NO_SHARD"), optimizer=Centralised).train(steps=2)
    for cut, named in (plan("out"), "places"), (plan("in", places="NO_SHARD"), r"head\.weight"):
        with naming(named):
            pair = Pair(me, workload, cut, optimizer=Centralised)
            pair.backward(pair.data(0))
            with pytest.raises(osdp.ShardingError, match=f"Centralised .*'{named}' and of 0 more"):
                pair.sharded_optimizer.step()


@pytest.mark.outcome(
    "an optimizer that takes means of rows (gradient centralisation), where a rank holds rows", "equal"
)
@pytest.mark.outcome(
    "the same, where it holds pieces of them: slices of columns, a [1, n, m] embedding of positions",
    osdp.ShardingError,
)
def test_optimizers_that_need_whole_rows(ranks):
    ranks(by_rows, world=2)


def steps_with_closures(me: Member) -> None:
    """As Lightning's: the last micro-batch's backward runs within `step`."""
    pair = Pair(me, blocks.workload(), lambda d: plans.mixture(d, 3))
    with osdp.no_sync(pair.sharded):
        pair.backward(pair.data(0, 0), divide=2)
    pair.sharded_optimizer.step(lambda: pair.backward(pair.data(0, 1), divide=2))
    pair.same_gradients()
    pair.whole_optimizer.step()
    pair.same_parameters()
    for _, optimizer in pair.both:
        optimizer.zero_grad()
    with pytest.raises(osdp.ShardingError, match="no backward has averaged yet"), osdp.no_sync(pair.sharded):
        pair.sharded_optimizer.step(closure=lambda: pair.backward(pair.data(1)))
    pair.same_parameters()  # nothing was stepped


def test_gradients_that_a_closure_makes(ranks):
    ranks(steps_with_closures, world=2)


def unknown(me: Member) -> None:
    pair = Pair(me, blocks.workload(), "FULL_SHARD", optimizer=lambda ps: Sign(ps, 0.5))
    for _, optimizer in pair.both:
        optimizer.param_groups[0]["lr"] = 1e-2
    pair.train(steps=2)
    pair = Pair(me, blocks.workload(), "FULL_SHARD", optimizer=Rounds)
    pair.backward(pair.data(0))
    pair.sharded_optimizer.step()
    pair = Pair(me, blocks.workload(), "FULL_SHARD", optimizer=lambda ps: Strange(ps, lr=0.1))
    pair.backward(pair.data(0))
    with pytest.warns(UserWarning, match=r"Strange is element-wise \(KeyError"):
        pair.sharded_optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pair.sharded_optimizer.step()


@pytest.mark.outcome("a user-defined element-wise optimizer", "equal")
def test_optimizers_that_nobody_knows(ranks):
    ranks(unknown, world=2)


def zero_redundancy(me: Member) -> None:
    pair = Pair(me, blocks.workload(), "FULL_SHARD")
    optimizer = ZeroRedundancyOptimizer(
        pair.sharded.parameters(), torch.optim.SGD, process_group=me.group, lr=0.1
    )
    pair.backward(pair.data(0))
    with pytest.raises(osdp.ShardingError, match="ZeroRedundancyOptimizer"):
        optimizer.step()
    pair.same_gradients()
    pair.update()
    pair.same_parameters()


@pytest.mark.outcome("`ZeroRedundancyOptimizer`", osdp.ShardingError)
def test_zero_redundancy_optimizer(ranks):
    ranks(zero_redundancy, world=2)


def scaled(me: Member) -> None:
    """An infinity in one rank's rows: no rank steps, and all halve the scale."""
    for options in ({"foreach": False}, {"fused": True}):
        for unscales in (False, True):
            with naming(f"{options}, unscale_ {unscales}"):
                pair = Pair(
                    me,
                    blocks.workload(),
                    "FULL_SHARD",
                    optimizer=lambda ps, options=options: torch.optim.AdamW(ps, **options),
                )
                scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
                for bad in (True, False):
                    _, loss = pair.forward(pair.data(0))
                    scaler.scale(loss).backward()
                    if bad and me.rank == 1:
                        pair.sharded.head.weight.grad[0, 0] = torch.inf
                    before = pair.sharded.embed.weight.detach().clone()
                    if unscales:
                        scaler.unscale_(pair.sharded_optimizer)
                    scaler.step(pair.sharded_optimizer)
                    scaler.update()
                    pair.sharded_optimizer.zero_grad()
                    assert torch.equal(before, pair.sharded.embed.weight) is bad
                    assert scaler.get_scale() == 4.0


@pytest.mark.outcome("`torch.amp.GradScaler`, an infinity on one rank: no rank steps", "equal")
def test_torchs_scaler_skips_on_all_ranks(ranks):
    ranks(scaled, world=2)


def rates(me: Member) -> None:
    for late in (False, True):
        with naming(f"late: {late}"):
            pair = Pair(me, blocks.workload(), "FULL_SHARD")
            optimizer = pair.sharded_optimizer
            (tokens,), target = pair._part(pair.data(0))
            for step in range(3):
                blocks.surprise(pair.sharded(tokens), target).backward()
                if step == late:
                    optimizer.param_groups[0]["lr"] = 1e-2 * (1 + me.rank)
                if step == late + 1:
                    with pytest.raises(
                        osdp.DisagreementError, match=rf"rank {me.rank}: .*'lr': 0\.0[12].*rank"
                    ):
                        optimizer.step()
                    break
                optimizer.step()
                optimizer.zero_grad()
            with torch.no_grad():
                pair.sharded(tokens)


@pytest.mark.outcome("learning rates or other options that differ by rank", osdp.DisagreementError)
def test_learning_rates_that_differ_by_rank(ranks):
    ranks(rates, world=2)


def equal_rates(me: Member) -> None:
    pair = Pair(
        me, blocks.workload(), "FULL_SHARD", optimizer=lambda ps: torch.optim.SGD(ps, lr=torch.tensor(0.1))
    )
    schedules = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9) for _, optimizer in pair.both]
    for step in range(5):
        pair.backward(pair.data(step))
        pair.update()
        for schedule in schedules:
            schedule.step()
    pair.same_parameters()
    close(pair.sharded_optimizer.param_groups[0]["lr"], torch.tensor(0.1 * 0.9**5), 1e-6, "rate")


@pytest.mark.parametrize("world", [3])
def test_schedules_of_rates_that_are_tensors(ranks, world):
    ranks(equal_rates, world=world)
