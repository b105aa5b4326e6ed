"""A memory limit is a promise: no plan whose peak is over its own can be made, whatever parameters are tied."""

from __future__ import annotations

import dataclasses
import random

import pytest

import osdp
from osdp import _search
from osdp.base import json_files
from osdp.description.model_description import ModelDescription
from osdp.plan.validation import validate
from osdp.planning.search import search_again
from osdp.planning.search_problem import SearchProblem
from osdp.planning.verify import verify
from tests.unit.gpt_descriptions import gpt, machine
from tests.unit.problems import indexed

MIB, GIB = 2**20, 2**30


def tied_gpt(
    layers: int, width: int, tokens: int, vocabulary: int, trainable: bool = True
) -> ModelDescription:
    """The embedding is the head's weight too."""
    description = gpt(layers, width, tokens, vocabulary)
    first, *others = description.operators
    parameter = dataclasses.replace(first.parameters[0], aliases=("head.weight",), trainable=trainable)
    shared = dataclasses.replace(first, parameters=(parameter,), gather_at=("wte", "head"), calls=2)
    head = others[-1]
    head = dataclasses.replace(head, parameters=head.parameters[1:], parameter_bytes=4 * vocabulary)
    head = dataclasses.replace(head, split_shape=None)
    return dataclasses.replace(description, operators=(shared, *others[:-1], head))


def keeps_its_limit(plan: osdp.Plan) -> None:
    assert plan.predicted.peak_memory_bytes <= plan.memory_limit_bytes
    assert (
        plan.simulate().peak_memory_bytes
        <= plan.simulate().largest_peak_bytes
        <= plan.predicted.peak_memory_bytes
    )
    assert verify(plan) == "" and validate(plan) is plan


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_gpt2_xl_keeps_its_limit(precision: str, hosts: int) -> None:
    description = tied_gpt(48, 1600, 1024, 50257)
    arguments = dict(world_size=8, hosts=hosts, hardware="a100-8" if hosts == 1 else "a100-2x8")
    for memory in (16 * GIB, 20 * GIB, 40 * GIB):
        keeps_its_limit(osdp.search(description, memory=memory, precision=precision, **arguments))


MODES = ("auto", "FULL_SHARD", "SHARD_GRAD_OP", ("NO_SHARD", "FULL_SHARD"))


# Each in CI, trained or frozen; the others are as many searches more.
@pytest.mark.parametrize(
    ("trainable", "seeds"),
    [
        (True, (0, 2)),
        (False, (1, 3)),
        pytest.param(True, (1, 3), marks=pytest.mark.extras),
        pytest.param(False, (0, 2), marks=pytest.mark.extras),
    ],
)
def test_tied_models_keep_the_smallest_limit_and_random_ones(trainable: bool, seeds: tuple[int, int]) -> None:
    description = tied_gpt(3, 256, 64, 4000, trainable)
    for seed in seeds:
        modes = MODES[seed]
        arguments = dict(world_size=4, hardware=machine(4), modes=modes, precision="fp32" if seed else "bf16")
        with pytest.raises(osdp.InfeasibleError) as e:
            osdp.search(description, memory=0, **arguments)
        least = e.value.smallest_limit
        keeps_its_limit(e.value.plan)
        with pytest.raises(osdp.InfeasibleError):
            osdp.search(description, memory=least - 1, **arguments)
        r = random.Random(seed)
        for limit in (least, *(r.randint(least, 4 * least) for _ in range(2))):
            keeps_its_limit(osdp.search(description, memory=limit, **arguments))


def test_a_plan_over_its_own_limit_is_refused() -> None:
    plan = osdp.search(tied_gpt(2, 64, 32, 500), memory=64 * MIB, world_size=2, hardware=machine(2))
    peak = plan.predicted.peak_memory_bytes
    broken = dataclasses.replace(plan, memory_limit_bytes=peak - 1)
    with pytest.raises(osdp.InvalidProblemError, match=f"{peak} bytes"):
        validate(broken)
    with pytest.raises(osdp.FormatError, match="exceed the plan's memory limit"):
        osdp.Plan.loads(json_files.dumps("plan", broken))


# ---- operators that are whole for sure


def modes_of(plan: osdp.Plan) -> dict[str, str]:
    return {name: choice.mode for name, choice in plan.choices.items()}


def test_what_whole_names_is_no_shard_and_stays_so() -> None:
    description = tied_gpt(2, 256, 64, 1000)
    arguments = dict(memory="40MiB", world_size=8, hardware=machine(), modes="FULL_SHARD")
    plan = osdp.search(description, whole=["*.mlp.fc", "head.weight", "h.1.attn"], **arguments)
    named = {"wte", "h.0.mlp.fc", "h.1.mlp.fc", "h.1.attn.qkv", "h.1.attn.proj"}
    assert {name for name, mode in modes_of(plan).items() if mode == "NO_SHARD"} == named
    assert plan.searched.whole == ("*.mlp.fc", "head.weight", "h.1.attn")
    keeps_its_limit(plan)
    for other in (search_again(plan, "60MiB"), osdp.Plan.loads(plan.dumps())):
        assert modes_of(other)["wte"] == modes_of(other)["h.0.mlp.fc"] == "NO_SHARD" and verify(other) == ""
    assert all(point.peak_memory_bytes > 0 for point in plan.frontier(points=2).points)
    with pytest.raises(osdp.InfeasibleError) as e:
        osdp.search(description, whole="*", **{**arguments, "memory": "1MiB"})
    assert set(modes_of(e.value.plan).values()) == {"NO_SHARD"}
    assert e.value.plan.batch_size == 1
    # A certificate for another set of choices does not hold.
    fewer = dataclasses.replace(plan.searched, whole=())
    assert "its choice is not among those" in verify(dataclasses.replace(plan, searched=fewer))


def test_whole_in_a_uniform_plan_and_what_is_refused() -> None:
    description = gpt(1, 64)
    plan = osdp.Plan.uniform(description, "FULL_SHARD", whole=["h.*.weight", "wpe"])
    modes = modes_of(plan)
    assert modes.pop("wte") == modes.pop("ln_f") == modes.pop("head") == "FULL_SHARD"
    assert set(modes.values()) == {"NO_SHARD"}
    for whole, message in [
        (["mlp.fc"], r"whole: 'mlp\.fc' matches no parameter and no module with parameters"),
        (["h.0.mlp.fcc"], r"did you mean 'h\.0\.mlp\.fc'"),
        (["H.0.mlp.fc"], "matches no parameter and no module"),
        ([3], r"whole must be patterns .*, got \[3\]"),
        ([""], "must be patterns"),
        (7, "whole must be .*, got 7"),
    ]:
        for make in (osdp.Plan.uniform, lambda d, whole: osdp.search(d, memory="1GiB", whole=whole)):
            with pytest.raises(osdp.InvalidProblemError, match=message):
                make(description, whole=whole)


def test_the_peak_that_is_predicted_is_the_plans_own() -> None:
    """A large embedding is in use in its own phase alone, and no other has room for it."""
    description = gpt(4, 256, 64)
    large = dataclasses.replace(
        description.operators[0],
        parameters=(dataclasses.replace(description.operators[0].parameters[0], shape=(50_000, 256)),),
        parameter_bytes=4 * 256 * 50_000,
        split_shape=None,
    )
    description = dataclasses.replace(description, operators=(large, *description.operators[1:]))
    plan = osdp.search(
        description, memory=GIB, hardware=machine(4), world_size=4, modes=["FULL_SHARD"], batch_size=8
    )
    keeps_its_limit(plan)
    played = plan.simulate()
    assert played.peak_memory_bytes <= played.largest_peak_bytes <= plan.predicted.peak_memory_bytes
    problem = SearchProblem.of(plan)
    sum_bytes = _search.IndexedPlans(problem.planner, GIB).peak_bytes(*indexed(problem, plan))
    assert sum_bytes <= plan.predicted.peak_memory_bytes < sum_bytes + large.parameter_bytes // 2
