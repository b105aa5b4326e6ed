"""Mixed precision with models that share, freeze, skip and normalise; and in passes that are not plain training."""

from __future__ import annotations

import pytest
import test_frozen
import test_layers
import test_shared_parameters
import torch
from harness import Member
from support import blocks, plans
from support.descriptions import describe_once
from support.mixed import MixedPair
from support.pair import SEED, Pair, close, naming
from support.workload import Workload, vectors
from torch import nn

import osdp
from osdp.sharding.sharded_model import runtime_of

BF16 = osdp.MixedPrecision(torch.bfloat16)
DOUBLE = osdp.MixedPrecision(torch.float64)
SHARED = {
    **{k: w for k, w in test_shared_parameters.WORKLOADS.items() if k != "not used"},
    **{
        k: test_layers.WORKLOADS[k] for k in ("shapes", "fewer elements than ranks", "embedding with padding")
    },
}


def sgd(parameters):
    return torch.optim.SGD([p for p in parameters if p.requires_grad], lr=0.125)


def some_plans(description):
    found = plans.everything(description, mixtures=1)
    return {k: p for k, p in found.items() if k in ("NO_SHARD", "FULL_SHARD", "slices along in", "mixture 0")}


def mixed_pairs(me: Member, load: Workload, policy: osdp.MixedPrecision = DOUBLE, **options):
    """fp64 in the middle of fp32: agreement is close enough to see a gradient that is lost, doubled or not averaged."""
    model = load.model(SEED, torch.float32)
    if "prepare" in options:
        options["prepare"](model)
    tolerance = 2e-6 if policy is DOUBLE else 2e-2
    for name, plan in some_plans(describe_once(model, *load.data(0, 2, torch.float32)[0])).items():
        with naming(name):
            yield MixedPair(
                me, load, plan, policy, exact=False, tolerance=tolerance, optimizer=sgd, **options
            )


def train(me: Member, name: str) -> None:
    for policy in (DOUBLE, BF16):
        for pair in mixed_pairs(me, SHARED[name], policy):
            pair.train(2)


@pytest.mark.parametrize("name", SHARED)
def test_parameters_that_are_shared_or_oddly_shaped(ranks, name):
    ranks(train, name, world=2)


def frozen(me: Member) -> None:
    load = Workload(test_frozen.layers, vectors(6, 5))
    for which, names in test_frozen.FROZEN.items():
        with naming(which):
            for pair in mixed_pairs(me, load, prepare=test_frozen.freezing(*names)):
                pair.train(2, micros=2, no_sync=True)


def test_frozen_parameters(ranks):
    ranks(frozen, world=2)


def synced_and_not(me: Member) -> None:
    """Averaged, kept, averaged again: nothing is lost, nothing counted twice."""
    for pair in mixed_pairs(me, blocks.workload(count=1)):
        for step in range(2):
            for micro, sync in enumerate((True, False, False, True, True)):
                context = None if sync else osdp.no_sync(pair.sharded)
                if context is None:
                    pair.backward(pair.data(step, micro))
                    continue
                with context:
                    pair.backward(pair.data(step, micro))
            pair.same_gradients()
            pair.update(set_to_none=step == 0)


def test_micro_batches_with_and_without_sync_in_one_step(ranks):
    ranks(synced_and_not, world=2)


def dropped(me: Member) -> None:
    """What no_sync kept is dropped by zero_grad."""
    for set_to_none in (True, False):
        for pair in mixed_pairs(me, blocks.workload(count=1)):
            with osdp.no_sync(pair.sharded):
                pair.backward(pair.data(0))
            pair.kept = [{} for _ in range(me.world)]
            for _, optimizer in pair.both:
                optimizer.zero_grad(set_to_none=set_to_none)
            pair.train(2)


def test_zero_grad_drops_what_no_sync_kept(ranks):
    ranks(dropped, world=2)


def other_passes(me: Member) -> None:
    for pair in mixed_pairs(me, blocks.workload(count=1)):
        runtime = runtime_of(pair.sharded).runtime
        pair.evaluate()
        assert runtime.copied_bytes() == 0
        for step in range(2):  # two forwards, one backward
            _, mine = pair.forward(pair.data(step))
            lows, losses = pair.lows, pair.losses
            _, mine_again = pair.forward(pair.data(step, 1))
            for low, more, loss, other in zip(lows, pair.lows, losses, pair.losses, strict=True):
                loss.backward(), other.backward()
                for a, b in zip(low.parameters(), more.parameters(), strict=True):
                    a.grad = a.grad + b.grad
            for rank, low in enumerate(lows):
                pair.kept[rank] = {n: p.grad.to(torch.float32) for n, p in low.named_parameters()}
            (mine + mine_again).backward()
            pair.average()
            pair.same_gradients()
            pair.update()
        with pytest.raises(ZeroDivisionError):  # an exception in backward, then training goes on
            _, mine = pair.forward(pair.data(5))
            mine.register_hook(lambda g: 1 // 0)
            mine.backward()
        pair.update()
        pair.kept = [{} for _ in range(me.world)]
        for model, _ in pair.both:
            model.zero_grad()
        pair.train(2)
        pair.forward(pair.data(6))  # a forward without a backward, and then no gradients at all
        pair.evaluate()
        assert runtime.gathered_bytes() == runtime.copied_bytes() == 0


def test_evaluation_several_forwards_and_exceptions(ranks):
    ranks(other_passes, world=2)


class Submodules(nn.Module):
    """`encode` is a submodule's call by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 8))
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x))


def submodule_alone(me: Member) -> None:
    for pair in mixed_pairs(me, Workload(Submodules, vectors(6, 8))):
        for step in range(2):
            (x,), target = pair.data(step)
            for rank in range(me.world):
                low = pair.low()
                (part,), wanted = pair.part_of(((x,), target), rank)
                pair.workload.loss(low.encoder(part.double()), wanted).backward()
                pair.kept[rank] = {n: p.grad.float() for n, p in low.named_parameters() if p.grad is not None}
            pair.average()
            loss = pair.workload.loss(pair.sharded.encoder(me.part(x).double()), me.part(target))
            loss.backward()
            pair.same_gradients()
            pair.update()


def test_a_submodule_called_by_itself_is_computed_in_low_precision_too(ranks):
    ranks(submodule_alone, world=2)


def batch_norm(me: Member) -> None:
    """A batch norm keeps fp32 parameters and statistics in the middle of bf16."""
    load = Workload(
        lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)), vectors(6, 4)
    )
    for mode in plans.MODES:
        with naming(mode):
            pair = Pair(
                me,
                load,
                mode,
                dtype=torch.float32,
                samples=8,
                mixed_precision=osdp.MixedPrecision(torch.bfloat16, buffer_dtype=torch.bfloat16),
            )
            (x,), target = pair.data(0)
            seen = []
            pair.sharded[1].register_forward_pre_hook(lambda m, a, seen=seen: seen.append(m.weight.dtype))
            reference = load.model(7, torch.float32)
            for layer in (reference[0], reference[3]):
                layer.to(torch.bfloat16)
            hidden = reference[2](reference[1](reference[0](me.part(x).bfloat16())))
            wanted = reference[3](hidden)
            got = pair.sharded(me.part(x))
            close(got, wanted, 2e-2, "output")
            pair.workload.loss(got, me.part(target)).backward()
            assert seen == [torch.float32]
            assert pair.sharded[1].running_mean.dtype == torch.float32
            close(pair.sharded[1].running_mean, reference[1].running_mean, 1e-3, "running mean")
            for name, parameter in pair.sharded.named_parameters():
                assert parameter.numel() == 0 or parameter.grad.dtype == torch.float32, name


def test_batch_norms_stay_in_full_precision(ranks):
    ranks(batch_norm, world=2)
