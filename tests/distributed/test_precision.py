"""Mixed precision over W ranks is one process that casts in the same places: modes, mixtures, slices, accumulation."""

from __future__ import annotations

import pytest
import torch
from harness import Member
from support import blocks, plans
from support.descriptions import describe_once
from support.mixed import MixedPair
from support.pair import SEED, naming

import osdp

HALF = osdp.MixedPrecision(torch.bfloat16)
WIDE_SUMS = osdp.MixedPrecision(torch.bfloat16, torch.float32)
NARROW_SUMS = osdp.MixedPrecision(None, torch.bfloat16)
DOUBLE = osdp.MixedPrecision(torch.float64)
POLICIES = {"bf16": HALF, "bf16, fp32 sums": WIDE_SUMS, "fp32, bf16 sums": NARROW_SUMS, "fp64": DOUBLE}


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.125)


def train_all(
    me: Member, policy: str, micros: int = 1, no_sync: bool = False, how: str | None = None, **options
):
    """Whole operators agree in every bit with two ranks; slices are other products, and more ranks sum in another
    order."""
    load = blocks.workload(options.pop("checkpointing", None), count=1)
    description = describe_once(load.model(SEED, torch.float32), *load.data(0, 2, torch.float32)[0])
    for name, plan in options.pop("every", plans.corners)(description).items():
        plan = plans.recomputed(plan, how) if how else plan
        sliced = any(choice.granularity > 1 for choice in plan.choices.values())
        chosen = POLICIES[policy]
        exact = me.world <= 2 and not sliced and chosen is not DOUBLE
        tolerance = 1e-6 if chosen is DOUBLE else 2e-2
        with naming(f"{name}, {policy}"):
            pair = MixedPair(me, load, plan, chosen, exact, tolerance=tolerance, optimizer=sgd, **options)
            pair.train(3, micros, no_sync)
            runtime = osdp.sharding.sharded_model.runtime_of(pair.sharded).runtime
            assert runtime.gathered_bytes() == runtime.copied_bytes() == 0


@pytest.mark.parametrize(
    ("world", "policy"), [(1, "bf16"), (3, "bf16"), *((2, p) for p in POLICIES if p != "bf16")]
)
def test_every_placement(ranks, world, policy):
    ranks(train_all, policy, every=plans.everything, world=world)


@pytest.mark.parametrize(("policy", "no_sync"), [("bf16", True), ("fp32, bf16 sums", False)])
def test_accumulation_over_three_micro_batches(ranks, policy, no_sync):
    ranks(train_all, policy, 3, no_sync, world=2)


@pytest.mark.parametrize("how", ["hold", "regather"])
def test_blocks_that_the_plan_recomputes(ranks, how):
    ranks(train_all, "bf16", 1, False, how, world=2)


@pytest.mark.parametrize("how", ["reentrant", "non-reentrant"])
def test_blocks_that_the_user_recomputes(ranks, how):
    ranks(train_all, "bf16", 1, False, None, checkpointing=how, world=2)


def hybrid(me: Member, no_sync: bool) -> None:
    """Two lines of two ranks: averaged twice, in fp64 close enough to see a factor that is lost."""
    load = blocks.workload(count=1)
    description = describe_once(load.model(SEED, torch.float32), *load.data(0, 2, torch.float32)[0])
    plan = plans.apart(osdp.Plan.uniform(description, "HYBRID_SHARD"))
    for name, tolerance in (("fp64", 2e-6), ("bf16", 2e-2)):
        with naming(name):
            options = {"tolerance": tolerance, "optimizer": sgd, "ranks_per_host": 2}
            MixedPair(me, load, plan, POLICIES[name], False, **options).train(2, 2, no_sync)


def test_hybrid_sharding(ranks):
    ranks(hybrid, True, world=4)
