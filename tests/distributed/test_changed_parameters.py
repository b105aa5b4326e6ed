"""Parameters that are written to where one process would keep it: in forward, and between forward and backward."""

from __future__ import annotations

import copy

import pytest
import torch
from harness import Member
from support import plans
from support.pair import Pair, naming
from support.workload import Workload, vectors
from torch import nn

import osdp
from osdp.sharding.sharded_model import runtime_of

SHARDED = {
    "SHARD_GRAD_OP": "SHARD_GRAD_OP",
    "FULL_SHARD": "FULL_SHARD",
    "slices": lambda d: plans.in_slices(d, "out"),
}


class Writes(nn.Module):
    """Between two layers a third, which `write` is called with in every forward."""

    def __init__(self, write, trains: bool = True) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        self.inner.requires_grad_(trains)
        self.inner.register_forward_pre_hook(lambda module, _: self.write(module))
        self.write = write

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.inner(self.first(x).tanh()).tanh())


@torch.no_grad()
def clamp(module: nn.Linear) -> None:
    module.weight.clamp_(-0.1, 0.1)


@torch.no_grad()
def one_row(module: nn.Linear) -> None:
    module.bias[0].mul_(0.9)


@torch.no_grad()
def normalise(module: nn.Linear) -> None:
    """Spectral normalisation by one step of power iteration."""
    u = torch.ones(8, dtype=module.weight.dtype)
    v = nn.functional.normalize(module.weight.T @ u, dim=0)
    module.weight.div_((module.weight @ v).norm())


def nothing(module: nn.Linear) -> None:
    pass


def refused(me: Member) -> None:
    for name, plan in SHARDED.items():
        for write in (clamp, one_row, normalise):
            for trains in (True, False):
                if write is normalise and name == "slices":
                    continue  # reads the weight, which is refused by its shape
                with naming(f"{name}, {write.__name__}, trains: {trains}"):
                    pair = Pair(me, Workload(lambda t=trains: Writes(nothing, t), vectors(6, 4)), plan)
                    pair.train(steps=1)
                    pair.sharded.write = write
                    (x,), _ = pair.data(0)
                    with pytest.raises(osdp.ShardingError, match=r"'inner\..*NO_SHARD"):
                        pair.sharded(me.part(x))
                    with pytest.raises(osdp.ShardingError, match="was written to"), torch.no_grad():
                        pair.sharded(me.part(x))
                    pair.sharded.write = nothing
                    assert runtime_of(pair.sharded).gathered_bytes() == 0
                    if name != "slices":  # of those this rank's rows are written to, and stay so
                        pair.train(steps=1)


@pytest.mark.outcome(
    "`weight.clamp_()`, power iteration, a codebook's moving average in forward, sharded", osdp.ShardingError
)
def test_a_write_in_forward_to_a_sharded_parameter(ranks):
    ranks(refused, world=2)


def kept(me: Member) -> None:
    """The same on every rank, to what every rank holds in full."""
    for write in (clamp, one_row, normalise):
        with naming(write.__name__):
            pair = Pair(me, Workload(lambda w=write: Writes(w), vectors(6, 4)), "NO_SHARD")
            pair.train(steps=5)


@pytest.mark.outcome("the same with NO_SHARD, every rank writing the same", "equal")
def test_a_write_in_forward_that_all_ranks_make(ranks):
    ranks(kept, world=2)


def embeds(samples: int):
    return (torch.randint(8, (samples, 2)),), torch.randn(samples, 2, 4)


def renormalised(me: Member) -> None:
    def build(max_norm: float | None = 0.5) -> nn.Module:
        return nn.Sequential(nn.Embedding(8, 6, max_norm=max_norm), nn.Linear(6, 4))

    for mode in ("SHARD_GRAD_OP", "FULL_SHARD"):
        with naming(mode):
            pair = Pair(me, Workload(build, embeds), mode)
            (tokens,), _ = pair.data(0)
            with pytest.raises(osdp.ShardingError, match=r"rank \d: .*'0.weight'"):
                pair.sharded(me.part(tokens))
    # What every rank holds in full is normalised by what its own samples are: ranks drift apart, and are told so,
    # long after the first steps too.
    pair = Pair(me, Workload(lambda: build(None), embeds), "NO_SHARD")
    pair.train(steps=5)
    pair.sharded[0].max_norm = 0.5
    with pytest.raises(osdp.ReplicaError, match=r"'0.weight'.*written to in forward"):
        for _ in range(2):
            pair.sharded(torch.tensor([[me.rank, 3]])).square().mean().backward()
            pair.sharded.zero_grad()


@pytest.mark.outcome("`nn.Embedding(max_norm=...)`, sharded", osdp.ShardingError)
@pytest.mark.outcome("`nn.Embedding(max_norm=...)` with NO_SHARD, on different samples", osdp.ReplicaError)
def test_an_embedding_that_renormalises(ranks):
    ranks(renormalised, world=2)


def zero(module: nn.Linear) -> None:
    module.weight.data.zero_()


def average(module: nn.Linear) -> None:
    """As MoCo moves its encoder of keys."""
    module.weight.data = module.weight.data * 0.9


def same_data(module: nn.Linear) -> None:
    """Other memory with the same values, as cuDNN's flat weights."""
    if module.weight.dim() == 2:
        module.weight.data = module.weight.data.clone()


def through_data(me: Member) -> None:
    """The version counter does not see it."""
    for mode in ("SHARD_GRAD_OP", "FULL_SHARD"):
        for mixed in (None, osdp.MixedPrecision(torch.bfloat16)):
            for write in (average, zero):  # the latter is seen in the first forwards and in every 100th
                with naming(f"{mode}, {write.__name__}, {mixed}"):
                    model = Writes(nothing).float()
                    plan = osdp.Plan.uniform(osdp.describe(model, torch.randn(2, 6)), mode)
                    osdp.fully_shard(model, plan, me.group, mixed_precision=mixed)
                    with torch.no_grad():  # no value equals itself
                        model.first.weight[:1] = torch.nan
                    model(torch.randn(2, 6)).square().mean().backward()
                    model.write = write
                    with pytest.raises(osdp.ShardingError, match=r"'inner\.weight'"):
                        model(torch.randn(2, 6))
                    model.write = nothing
                    model(torch.randn(2, 6)).square().mean().backward()
    for mode in ("NO_SHARD", "FULL_SHARD"):
        with naming(f"{mode}, the same values"):
            Pair(me, Workload(lambda: Writes(same_data), vectors(6, 4)), mode).train(steps=5)


@pytest.mark.outcome("`p.data = ...` in forward with other values, sharded (MoCo)", osdp.ShardingError)
@pytest.mark.outcome(
    "writes through `.data` in forward, sharded, seen in the first forwards and in every 100th",
    osdp.ShardingError,
)
def test_a_write_through_data(ranks):
    ranks(through_data, world=2)


class Taught(nn.Module):
    """A student, and a frozen copy that follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8))
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.student(x) * self.teacher(x))


def followed(me: Member) -> None:
    for name, plan in {"NO_SHARD": "NO_SHARD", **SHARDED, "in": lambda d: plans.in_slices(d, "in")}.items():
        with naming(name):
            pair = Pair(me, Workload(Taught, vectors(6, 4)), plan)
            for step in range(3):
                pair.backward(pair.data(step))
                pair.same_gradients()
                pair.update()
                for model, _ in pair.both:
                    pairs = zip(model.student.parameters(), model.teacher.parameters(), strict=True)
                    with torch.no_grad():
                        for student, teacher in pairs:
                            teacher.mul_(0.9).add_(student, alpha=0.1)
            pair.same_parameters()


@pytest.mark.outcome("a moving average between steps, of a part in its frozen copy (BYOL, DINO)", "equal")
def test_a_copy_that_follows(ranks):
    ranks(followed, world=2)


def change(pair: Pair, how: str) -> None:
    for model, optimizer in pair.both:
        if how == "load_state_dict":
            model.load_state_dict({name: value * 2 for name, value in model.state_dict().items()})
        elif how == "step":
            optimizer.step()
        else:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(2)


def changed_between(me: Member) -> None:
    for name, plan in {
        "NO_SHARD": "NO_SHARD",
        **SHARDED,
        "slices along in": lambda d: plans.in_slices(d, "in"),
    }.items():
        for how in ("by hand", "step", "load_state_dict"):
            with naming(f"{name}, {how}"):
                pair = Pair(me, Workload(lambda: Writes(nothing), vectors(6, 4)), plan)
                pair.backward(pair.data(0))
                for loss in (losses := pair.forward(pair.data(1))):
                    loss.backward(retain_graph=True)  # so that the optimizer has what to step with
                change(pair, how)
                for loss in losses:
                    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                        loss.backward()
                for model, _ in pair.both:
                    model.zero_grad()
                pair.train(steps=1)


@pytest.mark.outcome(
    "parameters changed between forward and backward (by hand, a step, `load_state_dict`), split ones too",
    "equal",
)
def test_parameters_changed_between_forward_and_backward(ranks):
    ranks(changed_between, world=2)
