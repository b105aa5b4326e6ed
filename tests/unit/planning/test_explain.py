"""plan.explain(): every figure in it is one that a search gives."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch

import osdp
import osdp.base.byte_sizes
from osdp.base.numbers import format_rate
from osdp.description.model_description import ModelDescription
from osdp.plan.choice import Choice
from osdp.plan.plan import Plan
from osdp.planning.search import search_again
from osdp.show.table_rows import rows, sections
from tests.unit.description.nasty_models import GPT

MACHINE = "rtx-titan-8"


@pytest.fixture(scope="module")
def description() -> ModelDescription:
    return osdp.describe(GPT(layers=4, width=128), torch.zeros(2, 16, dtype=torch.long))


def limit_between(description: ModelDescription) -> int:
    """A limit under which memory is short."""
    try:
        osdp.search(description, memory=1, world_size=8, hardware=MACHINE)
    except osdp.InfeasibleError as error:
        assert error.smallest_limit is not None
        return error.smallest_limit * 3
    raise AssertionError("one byte was enough")


@pytest.fixture(scope="module")
def plan(description: ModelDescription) -> Plan:
    return osdp.search(description, memory=limit_between(description), world_size=8, hardware=MACHINE)


def paragraph(text: str, title: str) -> str:
    found = re.search(rf"^{re.escape(title)}.*?\n((?:  .*\n)+)", text, re.M)
    assert found, f"no paragraph {title!r} in:\n{text}"
    return " ".join(found[1].split())


def changes(plan: Plan, text: str) -> list[tuple[str, str, float, str]]:
    """(row's label, mode, change of the step, the rest) of each alternative that the explanation states."""
    why = text.split("Why each choice")[1].split("\n\n")[0]
    assert len(why.splitlines()) - 1 == len([r for r in rows(plan) if r.choice]) + sum(
        bool(s.blocks) for s in sections(plan)
    )
    found = []
    shown = [line for line in why.splitlines()[1:] if any(mode in line for mode in plan.searched.modes)]  # type: ignore[union-attr]
    for row, line in zip([r for r in rows(plan) if r.choice], shown, strict=True):
        for mode, change, rest in re.findall(
            r"([A-Z_]+)[a-z ]*: step (as long|[+-][\d.]+%),? ?([^;]*)", line
        ):
            found.append((row.label, mode, 0.0 if change == "as long" else float(change[:-1]) / 100, rest))
    return found


def test_every_alternative_is_what_a_simulation_gives(plan: Plan) -> None:
    assert plan.memory_limit_bytes is not None and plan.searched is not None
    own, found = plan.simulate(), changes(plan, plan.explain(400, search=False))
    assert len(found) >= len([r for r in rows(plan) if r.choice]) * (len(plan.searched.modes) - 1)
    names = {r.label: r.names for r in rows(plan)}
    for label, mode, change, rest in found:
        other = plan.replace({name: Choice(mode) for name in names[label]}).simulate()
        assert change == pytest.approx(other.step_time_s / own.step_time_s - 1, abs=6e-5)
        assert ("does not fit" in rest) == (other.largest_peak_bytes > plan.memory_limit_bytes)


def test_an_explanation_does_not_contradict_the_plan(description: ModelDescription) -> None:
    """What is faster than the plan does not fit, or the line says that the search ended before it tried it."""
    smallest = limit_between(description) // 3
    for factor in (1.2, 20):
        plan = osdp.search(
            description, memory=int(smallest * factor), world_size=8, hardware=MACHINE, batch_size=1
        )
        text = plan.explain(400)
        assert "per GiB" not in text and "is worth" not in text and "fastest choice" not in text
        for _, _, change, rest in changes(plan, text):
            assert change >= -5e-5 or "does not fit" in rest or "before it tried" in rest


def test_plans_of_one_mode_are_simulated(plan: Plan) -> None:
    text = paragraph(plan.explain(300, search=False), "Plans of one mode")
    assert plan.searched is not None and plan.predicted is not None and plan.memory_limit_bytes is not None
    for mode in plan.searched.modes:
        other = plan.replace(dict.fromkeys(plan.choices, Choice(mode)))
        if other is plan:
            assert f"all {mode}: this plan" in text
            continue
        step = other.simulate()
        rate = format_rate(8 * plan.batch_size / step.step_time_s)
        assert f"all {mode}: {rate} samples/s against {format_rate(plan.predicted.throughput)}" in text
        assert (f"all {mode}: " + rate in text) and (
            "does not fit" in text.split(f"all {mode}")[1].split("all ")[0]
        ) == (step.largest_peak_bytes > plan.memory_limit_bytes)


def test_names_are_those_of_the_table(plan: Plan) -> None:
    mixed = dataclasses.replace(
        plan.replace({f"blocks.{i}.up": Choice("NO_SHARD") for i in (1, 3)}), predicted=plan.predicted
    )
    table, why = mixed.explain(300, search=False).split("Why each choice")
    names = {
        line.split("  ")[1] if line.startswith("  ") else line.split("  ")[0] for line in table.splitlines()
    }
    explained = [line[2:] for line in why.split("\n\n")[0].splitlines()[1:]]
    listed = {line.strip().split("  ")[0] for line in explained}
    assert any("[" in name for name in listed) and listed <= names


def test_the_next_gib_is_searched_for(plan: Plan) -> None:
    text = paragraph(plan.explain(200), "The next 1.00 GiB")
    assert plan.memory_limit_bytes is not None and plan.predicted is not None
    richer = search_again(plan, plan.memory_limit_bytes + 2**30)
    assert richer.predicted is not None and richer.predicted.throughput > plan.predicted.throughput
    assert (
        f"{format_rate(richer.predicted.throughput)} samples/s in place of {format_rate(plan.predicted.throughput)}"
        in text
    )
    assert f"batch {richer.batch_size} in place of {plan.batch_size}" in text


def test_more_memory_buys_at_least_what_a_line_above_says(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search with more memory may end at a plan that is no faster: "no plan is faster" stood below rows that are."""
    monkeypatch.setattr("osdp.show.explain.search_again", lambda plan, *_, **__: plan)
    text = plan.explain(300)
    faster = [change for _, _, change, rest in changes(plan, text) if change < 0 and "does not fit" in rest]
    modes = re.findall(r"all \w+: ([\d.,]+) samples/s against ([\d.,]+)", text)
    ratios = [
        1 / (1 + min(faster)),
        *(float(a.replace(",", "")) / float(b.replace(",", "")) for a, b in modes),
    ]
    (bought,) = re.findall(r"at least ([\d.]+)%", paragraph(text, "The next 1.00 GiB"))
    assert float(bought) / 100 == pytest.approx(max(ratios) - 1, rel=2e-3)


def test_the_batch_is_held_against_its_neighbours(plan: Plan, description: ModelDescription) -> None:
    text = paragraph(plan.explain(200), f"Why a batch of {plan.batch_size}")
    assert plan.memory_limit_bytes is not None
    for size in (plan.batch_size - 1, plan.batch_size + 1):
        if size < 1:
            continue
        try:
            other = osdp.search(
                description, memory=plan.memory_limit_bytes, world_size=8, hardware=MACHINE, batch_size=size
            )
        except osdp.InfeasibleError:
            assert f"With {size}: nothing fits" in text
            continue
        assert other.predicted is not None
        assert f"With {size}: {format_rate(other.predicted.throughput)} samples/s" in text


def test_a_batch_that_was_asked_for_is_no_choice(plan: Plan, description: ModelDescription) -> None:
    asked = osdp.search(
        description, memory=plan.memory_limit_bytes, world_size=8, hardware=MACHINE, batch_size=1
    )
    assert paragraph(asked.explain(200), "Why a batch of 1") == "It was requested."


def test_a_global_batch_has_the_neighbours_that_divide_it(description: ModelDescription) -> None:
    whole = osdp.search(description, memory="64GiB", world_size=8, hardware=MACHINE, global_batch_size=48)
    lines = whole.explain(200)
    sizes = [int(n) for n in re.findall(r"^  With (\d+):", lines, re.M)]
    assert len(sizes) >= 2 and all(6 % n == 0 for n in sizes)


def test_where_memory_is_plenty_more_of_it_buys_nothing(description: ModelDescription) -> None:
    roomy = osdp.search(description, memory="1TiB", world_size=8, hardware=MACHINE, batch_size=2)
    text = roomy.explain(200)
    assert "all NO_SHARD: this plan" in paragraph(text, "Plans of one mode")
    assert "buys nothing" in paragraph(text, "The next 1.00 GiB")


def test_recomputation_says_what_it_saves(description: ModelDescription) -> None:
    plan = osdp.search(
        description, memory="1GiB", world_size=8, hardware=MACHINE, batch_size=4, checkpoint="hold"
    )
    text = plan.explain(300, search=False)
    (line,) = [
        line for line in text.splitlines() if line.strip().startswith("blocks.0-3 ") and "saves" in line
    ]
    inside = [o for o in description.operators if o.block == "blocks.0"]
    saved = sum(4 * o.saved_bytes_per_sample + o.saved_bytes_fixed for o in inside)
    saved -= 4 * description.blocks[0].input_bytes_per_sample
    assert osdp.base.byte_sizes.format_bytes(saved) in line and "4 equal" in line
    (change,) = re.findall(r"kept: step (?:as long|([+-][\d.]+)%)", line)
    kept = plan.replace(recompute=dict.fromkeys(plan.recompute)).simulate()
    assert float(change or 0) / 100 == pytest.approx(
        kept.step_time_s / plan.simulate().step_time_s - 1, abs=6e-5
    )
