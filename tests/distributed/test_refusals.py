"""What cannot work is refused: on all ranks, before any training collective, with nothing changed."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from harness import Member
from support import blocks, plans
from support.descriptions import describe_once
from support.pair import Pair, naming
from support.workload import Workload, vectors
from torch import nn

import osdp


def build(widths: tuple[int, ...] = (6, 8, 4), dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(1)
    parts = [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
    return nn.Sequential(*parts).to(dtype)


def plan_for(model: nn.Module, mode: str = "FULL_SHARD", width: int = 6) -> osdp.Plan:
    dtype = next(model.parameters()).dtype
    return osdp.Plan.uniform(describe_once(model, torch.randn(2, width, dtype=dtype)), mode)


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Parameters, their identity and shape, hooks and class are afterwards what they were."""
    before = {name: (p, p.detach().clone()) for name, p in model.named_parameters()}
    kind, hooks = type(model), [dict(m._forward_pre_hooks) for m in model.modules()]
    yield
    assert type(model) is kind
    assert hooks == [dict(m._forward_pre_hooks) for m in model.modules()]
    now = dict(model.named_parameters())
    assert list(now) == list(before)
    for name, (parameter, value) in before.items():
        assert now[name] is parameter
        assert torch.equal(parameter, value), name


def refused(me: Member, error: type[Exception], match: str, model: nn.Module, plan: object) -> str:
    """fully_shard raises that error, and everything is as it was; the message."""
    with unchanged(model), pytest.raises(error, match=match) as caught:
        osdp.fully_shard(model, plan, process_group=me.group)
    return str(caught.value)


def and_then_it_works(me: Member) -> None:
    """No collective was left open: the same ranks shard and train right after."""
    Pair(me, Workload(build, vectors(6, 4))).train(steps=1)


# --- alike on all ranks


def plans_for_other_models(me: Member) -> None:
    other: dict[str, tuple[nn.Module, str]] = {
        "another width": (build((6, 9, 4)), r"0\.weight"),
        "another dtype": (build(dtype=torch.float32), r"0\.weight.*(float32|float64)"),
        "a parameter more": (build((6, 8, 4, 4)), r"2\.weight"),
        "a parameter less": (build((6, 8)), r"1\.weight"),
        "other names": (nn.Sequential(nn.Identity(), *build()), r"[012]\.weight"),
    }
    for what, (model, match) in other.items():
        with naming(what):
            refused(me, osdp.PlanMismatchError, match, build(), plan_for(model))
    tied = build((6, 6, 6))
    tied[1].weight = tied[0].weight
    with naming("tied in the plan only"):
        refused(me, osdp.PlanMismatchError, r"[01]\.weight", build((6, 6, 6)), plan_for(tied))
    with naming("another world size"):
        plan = dataclasses.replace(plan_for(build()), world_size=me.world + 1)
        refused(
            me,
            osdp.PlanMismatchError,
            rf"{me.world + 1}.*{me.world}|{me.world}.*{me.world + 1}",
            build(),
            plan,
        )
    with naming("the right world size"):
        osdp.fully_shard(build(), dataclasses.replace(plan_for(build()), world_size=me.world), me.group)
    and_then_it_works(me)


@pytest.mark.parametrize("world", [1, 2])
def test_a_plan_for_another_model_or_world(ranks, world):
    ranks(plans_for_other_models, world=world)


def not_a_plan(me: Member) -> None:
    for wrong in ("FULL_SHARD", {"0": "FULL_SHARD"}, None):
        model = build()
        with naming(repr(wrong)), unchanged(model), pytest.raises((osdp.OSDPError, TypeError)):
            osdp.fully_shard(model, wrong, process_group=me.group)
    and_then_it_works(me)


def test_something_that_is_not_a_plan(ranks):
    ranks(not_a_plan, world=2)


def shard_twice(me: Member) -> None:
    pair = Pair(me, Workload(build, vectors(6, 4)))
    plan = plan_for(build())
    with pytest.raises(osdp.OSDPError):
        osdp.fully_shard(pair.sharded, plan, process_group=me.group)
    pair.train(steps=1)


def test_sharding_a_model_twice(ranks):
    ranks(shard_twice, world=2)


def test_no_process_group():
    assert not dist.is_initialized()
    model = build()
    with unchanged(model), pytest.raises(osdp.ProcessGroupError, match=r"init_process_group|torchrun"):
        osdp.fully_shard(model, plan_for(model))


def outside_the_group(me: Member) -> None:
    group = dist.new_group([0])
    model = build()
    if me.rank == 0:
        osdp.fully_shard(model, plan_for(model), process_group=group)
    else:
        with unchanged(model), pytest.raises(osdp.ProcessGroupError):
            osdp.fully_shard(model, plan_for(model), process_group=group)


def test_a_rank_outside_the_group(ranks):
    ranks(outside_the_group, world=4)


def default_group(me: Member) -> None:
    model = osdp.fully_shard(build(), plan_for(build()))
    model(torch.randn(2, 6, dtype=torch.float64)).sum().backward()
    assert model[0].weight.shape == (2, 6)  # 8 rows over all 4 ranks
    wrapped = osdp.FullyShardedDataParallel(build())
    assert wrapped[0].weight.shape == (2, 6)


def test_the_default_group_is_everyone(ranks):
    ranks(default_group, world=4)


def sharded_only(me: Member) -> None:
    for function in (
        lambda m: osdp.clip_grad_norm_(m, 1.0),
        lambda m: osdp.no_sync(m).__enter__(),
        lambda m: osdp.summon_full_params(m).__enter__(),
    ):
        with pytest.raises(osdp.ShardingError, match="fully_shard"):
            function(build())


def test_functions_on_a_model_that_is_not_sharded(ranks):
    ranks(sharded_only, world=1)


# --- different on one rank

Disagree = Callable[[bool], tuple[nn.Module, osdp.Plan, str]]


def other_choice(odd: bool) -> tuple[nn.Module, osdp.Plan, str]:
    plan = plan_for(build())
    return build(), plan.replace({"1": osdp.Choice("NO_SHARD")}) if odd else plan, r"1.*(NO_SHARD|FULL_SHARD)"


def other_slices(odd: bool) -> tuple[nn.Module, osdp.Plan, str]:
    choice = osdp.Choice("FULL_SHARD", granularity=2, sharded_slices=1 if odd else 2, split="out")
    return build(), plan_for(build()).replace({"0": choice}), r"0"


def other_units(odd: bool) -> tuple[nn.Module, osdp.Plan, str]:
    plan = plan_for(build())
    assert len(plan.units) == 1
    return build(), plans.apart(plan) if odd else plan, r"unit"


def other_shape(odd: bool) -> tuple[nn.Module, osdp.Plan, str]:
    model = build((6, 9 if odd else 8, 4))
    return model, plan_for(model), r"0\.weight|shape"


def other_dtype(odd: bool) -> tuple[nn.Module, osdp.Plan, str]:
    model = build(dtype=torch.float32 if odd else torch.float64)
    return model, plan_for(model), r"float32|float64|dtype"


def other_names(odd: bool) -> tuple[nn.Module, osdp.Plan, str]:
    model = nn.Sequential(nn.Identity(), *build()) if odd else build()
    return model, plan_for(model), r"0\.weight|2\.weight|operator|parameter"


def other_training(odd: bool) -> tuple[nn.Module, osdp.Plan, str]:
    """The same shapes, but one rank has frozen a parameter: its gradients would never come."""
    model = build()
    model[0].bias.requires_grad_(not odd)
    return model, plan_for(model), r"0\.bias|trainable|requires_grad"


def other_buffers(odd: bool) -> tuple[nn.Module, osdp.Plan, str]:
    """Buffers are broadcast too: one of another shape would hang or garble that."""
    model = build()
    model[1].register_buffer("kept", torch.zeros(3 if odd else 2, dtype=torch.float64))
    return model, plan_for(model), r"kept|buffer"


def other_recomputation(odd: bool) -> tuple[nn.Module, osdp.Plan, str]:
    model = blocks.workload().model(0, torch.float64)
    described = describe_once(model, *blocks.workload().data(0, 2, torch.float64)[0])
    plan = osdp.Plan.uniform(described, "FULL_SHARD")
    return model, plans.recomputed(plan, "hold" if odd else "regather"), r"recompute|hold|regather"


def invalid_alone(odd: bool) -> tuple[nn.Module, osdp.Plan, str]:
    """This rank's plan is for another model: it fails by itself, and says so to the others."""
    model = build()
    return model, plan_for(build((6, 9, 4)) if odd else model), r"0\.weight|parameters\[0\]"


DISAGREE: dict[str, Disagree] = {
    f.__name__: f
    for f in (
        other_choice,
        other_slices,
        other_units,
        other_shape,
        other_dtype,
        other_names,
        other_training,
        other_buffers,
        other_recomputation,
        invalid_alone,
    )
}


def disagree(me: Member, name: str, odd: int) -> str:
    model, plan, match = DISAGREE[name](me.rank == odd)
    message = refused(me, osdp.OSDPError, match, model, plan)
    with pytest.raises(osdp.OSDPError) as again:
        osdp.fully_shard(model, plan, process_group=me.group)
    and_then_it_works(me)
    return f"{type(again.value).__name__}: {message}"


@pytest.mark.parametrize("name", DISAGREE)
@pytest.mark.parametrize(("world", "odd"), [(2, 1), (3, 0)])
def test_ranks_that_disagree_all_say_so(ranks, name, world, odd):
    messages = ranks(disagree, name, odd, world=world)
    for rank, message in enumerate(messages):
        if name == "invalid_alone" and rank == odd:
            assert message.startswith(("PlanMismatchError", "DisagreementError"))
            continue
        assert message.startswith("DisagreementError"), message
        # Rank 0 counts, so the first rank that differs from it is named.
        named = odd if odd != 0 else 1
        assert f"rank {named}" in message or f"rank {odd}" in message, message


def proves_less(me: Member) -> None:
    model = build(dtype=torch.float32)
    plan = osdp.search(
        model, (torch.randn(2, 6),), memory="1GiB", world_size=me.world, hardware="rtx-titan-8"
    )
    assert plan.certificate is not None
    if me.rank == 1:
        certificate = dataclasses.replace(plan.certificate, step_bound_ps=0, checked_bound_ps=0)
        plan = dataclasses.replace(plan, certificate=certificate)
    osdp.fully_shard(model, plan, process_group=me.group)
    model(torch.randn(2, 6)).sum().backward()


def test_ranks_may_have_proven_more_or_less_of_the_same_plan(ranks):
    ranks(proves_less, world=2)


def other_version(me: Member) -> str:
    version = osdp.__version__
    if me.rank == 1:
        osdp.version.__version__ = "0.0.0"
    try:
        return refused(me, osdp.DisagreementError, r"0\.0\.0", build(), plan_for(build()))
    finally:
        osdp.version.__version__ = version
        and_then_it_works(me)


def test_ranks_with_different_versions(ranks):
    for message in ranks(other_version, world=2):
        assert "rank 1" in message and osdp.__version__ in message


def one_rank_passes_nonsense(me: Member) -> None:
    model = build()
    plan = "nonsense" if me.rank == 1 else plan_for(model)
    with unchanged(model), pytest.raises((osdp.OSDPError, TypeError)) as caught:
        osdp.fully_shard(model, plan, process_group=me.group)
    if me.rank != 1:
        assert isinstance(caught.value, osdp.DisagreementError)
        assert "rank 1" in str(caught.value)
    and_then_it_works(me)


def test_a_rank_that_fails_by_itself_tells_the_others(ranks):
    ranks(one_rank_passes_nonsense, world=2)
