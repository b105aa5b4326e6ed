"""What a person sees of a plan."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import osdp
from osdp.description import ModelDescription
from osdp.display import format_count, format_seconds, ranged, rows
from osdp.plan import Certificate, Choice, OperatorPrediction, PhasePrice, Plan, Prediction

from .nasty_models import GPT


@pytest.fixture(scope="module")
def description() -> ModelDescription:
    return osdp.describe(GPT(layers=4), torch.zeros(2, 16, dtype=torch.long))


def predicted(plan: Plan) -> Plan:
    operators = {
        name: OperatorPrediction(2**20, 2**10, 0, 0.001, 0.002, "memory is short") for name in plan.choices
    }
    prediction = Prediction(0.25, 128.0, 3 * 2**30, 0.1, 0.2, 0.01, operators)
    certificate = Certificate(10**12, 1, 2, 10**12, 10**12, (PhasePrice(-1, 1),), 1, True)
    return dataclasses.replace(
        plan, predicted=prediction, certificate=certificate, memory_limit_bytes=4 * 2**30, world_size=8
    )


def test_equal_operators_of_neighbouring_blocks_share_a_row(description: ModelDescription) -> None:
    plan = Plan.uniform(description).replace({"blocks.2.up": Choice("FULL_SHARD", 4, 1, "in")})
    labels = [row.label for row in rows(plan)]
    assert "blocks.0-3.qkv" in labels and "blocks.0-1,3.up" in labels and "blocks.2.up" in labels
    assert labels[:2] == ["tokens", "(model)"] and labels[-1] == "norm"
    assert sorted(name for row in rows(plan) for name in row.names) == sorted(plan.choices)


def test_names_are_put_together_only_where_one_number_differs() -> None:
    assert ranged(("a.0.b", "a.1.b", "a.2.b", "a.5.b")) == "a.0-2,5.b"
    assert ranged(("h.0.e.1", "h.0.e.2")) == "h.0.e.1-2"
    assert ranged(("x1",)) == "x1"


def test_experts_in_layers_stay_readable() -> None:
    layers = torch.nn.ModuleList(
        torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(3)) for _ in range(2)
    )
    labels = [
        row.label for row in rows(Plan.uniform(osdp.describe(torch.nn.Sequential(torch.nn.ReLU(), layers))))
    ]
    assert labels == ["1.0.0-2", "1.1.0-2"]


def test_the_explanation_has_what_was_decided_and_why(description: ModelDescription) -> None:
    plan = predicted(
        Plan.uniform(description).replace(
            {"norm": Choice("NO_SHARD"), "blocks.2.up": Choice("FULL_SHARD", 4, 1, "in")},
            recompute={"blocks.1": "hold"},
        )
    )
    text = plan.explain()
    lines = {line.split()[0]: line for line in text.splitlines() if line}
    assert "NO_SHARD" in lines["norm"] and "memory is short" in lines["norm"] and "3 ms" in lines["norm"]
    assert "1 of 4 sharded, in" in lines["blocks.2.up"]
    assert "hold" in lines["blocks.1.qkv"] and "hold" not in lines["blocks.2.up"]
    assert (
        "3.00 GiB of 4.00 GiB" in lines["peak"] and lines["peak"].count("█") == 30 and "75%" in lines["peak"]
    )
    assert (
        "250 ms" in lines["step"]
        and "60 ms at the same time" in lines["step"]
        and "128 samples/s" in lines["step"]
    )
    assert "no plan in this search space is faster" in lines["proof"]
    assert "8 ranks" in text and str(plan) == text
    assert max(map(len, text.splitlines())) <= 140


def test_a_plan_made_by_hand_explains_itself_without_a_prediction(description: ModelDescription) -> None:
    text = Plan.uniform(description, "SHARD_GRAD_OP").explain()
    assert "any number of ranks" in text and "SHARD_GRAD_OP" in text
    assert "why" not in text and "peak memory" not in text


def test_a_gap_is_told_where_optimality_is_not_proven(description: ModelDescription) -> None:
    plan = predicted(Plan.uniform(description))
    certificate = Certificate(1000, 1, 2, 980, 990, (), 1, False)
    assert "more than 1.00% faster" in dataclasses.replace(plan, certificate=certificate).explain()


def test_diff_tells_every_difference_and_nothing_else(description: ModelDescription) -> None:
    plan = Plan.uniform(description)
    assert plan.diff(plan) == ""
    other = plan.replace(
        {f"blocks.{i}.up": Choice("NO_SHARD") for i in range(4)} | {"norm": Choice("SHARD_GRAD_OP")},
        recompute={"blocks.0": "regather"},
    )
    other = dataclasses.replace(other, batch_size=4, memory_limit_bytes=2**30)
    assert plan.diff(other).splitlines() == [
        "batch_size: 1 -> 4",
        "memory_limit_bytes: none -> 1.00 GiB",
        "blocks.0-3.up: FULL_SHARD -> NO_SHARD",
        "norm: FULL_SHARD -> SHARD_GRAD_OP",
        "blocks.0: activations keep -> regather",
    ]
    regrouped = dataclasses.replace(plan, units=tuple((name,) for name in plan.choices))
    assert plan.diff(regrouped).startswith("units:")


def test_numbers_for_people() -> None:
    assert [format_count(n) for n in (0, 999, 1000, 10_300_000, 7 * 10**9)] == [
        "0",
        "999",
        "1 k",
        "10.3 M",
        "7 B",
    ]
    assert [format_seconds(t) for t in (0, 2e-9, 3.21e-4, 0.0999, 1.5, 12345)] == [
        "0 s", "2 ns", "321 us", "99.9 ms", "1.5 s", "12345 s",
    ]  # fmt: skip
