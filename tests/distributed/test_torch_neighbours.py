"""What torch offers to do to a module, before or after it is sharded: as in one process, or a typed error."""

from __future__ import annotations

import pytest
import torch
from harness import Member
from support import plans
from support.pair import Pair, close, naming
from support.said import ungathered
from support.workload import Workload, vectors
from torch import nn
from torch.distributed._composable import replicate
from torch.distributed._composable.replicate_with_fsdp import replicate as replicate_with_fsdp
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

import osdp

PLANS = {**{mode: mode for mode in plans.MODES}, "apart": lambda d: plans.uniform(d)["FULL_SHARD"]}


class Swish(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * weight.sigmoid()


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, affine=True), nn.Tanh(), nn.Linear(8, 4)).eval()


def parametrised() -> nn.Sequential:
    model = layers()
    parametrize.register_parametrization(model[0], "weight", Swish())
    parametrizations.weight_norm(model[3])
    return model


def pair_of(me: Member, plan: object, make: object = layers) -> Pair:
    return Pair(me, Workload(make, vectors(6, 4)), plan)  # type: ignore[arg-type]


def parametrised_before(me: Member) -> None:
    for name, plan in PLANS.items():
        with naming(name):
            pair = pair_of(me, plan, parametrised)
            pair.train(steps=1)
            with parametrize.cached():
                pair.train(steps=1)
            if name != "NO_SHARD":
                parametrize.remove_parametrizations(pair.sharded[0], "weight")
                with pytest.raises(
                    osdp.ShardingError, match=r"'0.parametrizations.weight.original' .*\[8, 6\]"
                ):
                    pair.sharded(me.part(pair.data(0)[0][0]))


class Plus(nn.Module):
    def __init__(self, delta: torch.Tensor) -> None:
        super().__init__()
        self.delta = delta

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + self.delta


class Adapted(nn.Module):
    """As PEFT's LoRA of a parameter (`target_parameters`): parametrized for the time of one call."""

    def __init__(self, before: str = "") -> None:
        super().__init__()
        self.base, self.head, self.before = nn.Linear(6, 8), nn.Linear(8, 4), before
        self.a, self.b = nn.Parameter(torch.randn(2, 6)), nn.Parameter(torch.randn(8, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            if self.before == "clamp_":
                self.base.weight.clamp_(-0.1, 0.1)
            elif self.before == "set_":
                self.base.weight.set_(self.base.weight.clone())
        if self.before == "set_":
            return self.head(self.base(x))
        parametrize.register_parametrization(self.base, "weight", Plus(self.b @ self.a))
        try:
            with parametrize.cached():
                y = self.base(x)
        finally:
            parametrize.remove_parametrizations(self.base, "weight", leave_parametrized=False)
        return self.head(torch.tanh(y))


def parametrised_in_forward(me: Member) -> None:
    for name, plan in PLANS.items():
        with naming(name):
            pair = pair_of(me, plan, Adapted)
            pair.train(steps=2, micros=2, no_sync=True)
            pair.evaluate()
            with torch.inference_mode():
                pair.forward(pair.data(5))
    with pytest.raises(osdp.ShardingError, match=r"'base\.weight' was written to in"):
        pair_of(me, "FULL_SHARD", lambda: Adapted("clamp_")).train(steps=1)
    with pytest.raises(osdp.ShardingError, match=r"'base\.weight' was given other memory in forward"):
        pair_of(me, "NO_SHARD", lambda: Adapted("set_")).train(steps=1)


@pytest.mark.outcome("a parametrization within forward (PEFT's `target_parameters`)", "equal")
@pytest.mark.outcome("`set_` of a NO_SHARD parameter within forward", osdp.ShardingError)
def test_a_parametrization_within_forward(ranks):
    ranks(parametrised_in_forward, world=2)


@pytest.mark.outcome("`torch.nn.utils.parametrize`, `weight_norm` before `fully_shard`; `cached()`", "equal")
@pytest.mark.outcome("the same, removed after sharding", osdp.ShardingError)
def test_parametrised_before(ranks):
    ranks(parametrised_before, world=2)


def parametrised_after(me: Member) -> None:
    for name, plan in PLANS.items():
        with naming(name):
            pair = pair_of(me, plan)
            for side in (pair.whole, pair.sharded):
                parametrize.register_parametrization(side[0], "weight", Swish())
            pair.train(steps=2)


@pytest.mark.outcome("`torch.nn.utils.parametrize` without a `right_inverse` after `fully_shard`", "equal")
def test_parametrised_after(ranks):
    ranks(parametrised_after, world=2)


def synchronised(me: Member) -> None:
    """On the CPU torch has no training forward of it, in one process neither."""
    x = torch.randn(4, 6, dtype=torch.float64)
    model, converted = layers().double().train(), layers().double().train()
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(converted, me.group)
    saved = [[o.saved_bytes_per_sample for o in osdp.describe(m, x).operators] for m in (converted, model)]
    assert saved[0] == saved[1]
    for name, plan in PLANS.items():
        with naming(name):
            pair = pair_of(me, plan, lambda: nn.SyncBatchNorm.convert_sync_batchnorm(layers(), me.group))
            pair.train(steps=1)
            pair = pair_of(me, plan)
            assert nn.SyncBatchNorm.convert_sync_batchnorm(pair.sharded, me.group) is pair.sharded
            if name != "apart":  # there with its neighbours
                pair.train(steps=1)
                continue
            with pytest.raises(osdp.ShardingError, match=ungathered(r"1\.weight")):
                pair.sharded(me.part(pair.data(0)[0][0]))


@pytest.mark.outcome("`SyncBatchNorm.convert_sync_batchnorm` before `fully_shard`", "equal")
@pytest.mark.outcome("the same after it, where the old module's unit was its own", osdp.ShardingError)
def test_synchronised_batch_norm(ranks):
    ranks(synchronised, world=2)


def replicated(me: Member) -> None:
    mesh = DeviceMesh.from_group(me.group, "cpu")
    for name in ("NO_SHARD", "FULL_SHARD"):
        with naming(name):
            pair = pair_of(me, name)
            before = pair.sharded.state_dict()
            around = "torch's replicate around .*remove torch's replicate"
            with pytest.raises(osdp.ShardingError, match=around):
                replicate_with_fsdp(pair.sharded, mesh=mesh)
            with pytest.raises(osdp.ShardingError, match=around):
                replicate(pair.sharded, process_group=me.group)
            for key, value in pair.sharded.state_dict().items():
                close(value, before[key], 0.0, key)
            inner = layers()
            replicate(inner, process_group=me.group)
            with pytest.raises(osdp.ShardingError, match="torch's replicate"):
                osdp.fully_shard(inner, osdp.Plan.uniform(layers(), name), me.group)


@pytest.mark.outcome(
    "`torch.distributed._composable.replicate` of a model under `fully_shard`, or the reverse",
    osdp.ShardingError,
)
@pytest.mark.filterwarnings("ignore")
def test_composable_replicate(ranks):
    ranks(replicated, world=2)


class Recomputes(nn.Module):
    """A re-entrant checkpoint around a function that calls no module and reads what a module of another call owns."""

    def __init__(self, late: bool) -> None:
        super().__init__()
        self.first, self.second, self.late = nn.Linear(6, 6), nn.Linear(6, 6), late
        self.last = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        read = self.first if self.late else self.second
        h = self.second(self.first(x)) if self.late else self.first(x)
        h = checkpoint(lambda t: (t @ read.weight.t()).tanh(), h, use_reentrant=True)
        return self.last(h if self.late else self.second(h))


def recomputed(me: Member) -> None:
    for late in (False, True):
        for name, plan in PLANS.items():
            with naming(f"{name}, {late=}"):
                pair = pair_of(me, plan, lambda late=late: Recomputes(late))
                if late or name != "apart":
                    pair.train(steps=2)
                    continue
                batch = pair.data(0)
                with pytest.raises(osdp.ShardingError, match=ungathered(r"second\.weight")):
                    pair.sharded(me.part(batch[0][0])).sum().backward()


@pytest.mark.outcome(
    "a re-entrant checkpoint around a function without modules that reads parameters of one called before",
    "equal",
)
@pytest.mark.outcome("the same, of a module that is called after it, in another unit", osdp.ShardingError)
def test_a_function_without_modules_is_recomputed(ranks):
    ranks(recomputed, world=2)


def called_functionally(me: Member) -> None:
    one = torch.ones(4, dtype=torch.float64)
    for name, plan in PLANS.items():
        with naming(name):
            pair = pair_of(me, plan)
            (x,), _ = pair.data(0)
            outputs = []
            for side, given in ((pair.whole, x), (pair.sharded, me.part(x))):
                inner = torch.func.functional_call(side[0], dict(side[0].named_parameters()), (given,))
                output = torch.func.functional_call(side, {"3.bias": one}, (given,)) + side[3](inner)
                output.square().mean().backward()
                outputs.append(output)
            close(outputs[1], me.part(outputs[0]), pair.tolerance, "output")
            pair.same_gradients()


@pytest.mark.outcome("`torch.func.functional_call` of a submodule, or with some tensors replaced", "equal")
def test_functional_calls_of_parts(ranks):
    ranks(called_functionally, world=2)
