"""plan.explain(): every figure in it is one that a search gives."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch

import osdp
import osdp.base.byte_sizes
from osdp.description.model_description import ModelDescription
from osdp.plan.choice import Choice
from osdp.plan.plan import Plan
from osdp.planning.search import search_again
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


def test_every_choice_has_its_reason_once(plan: Plan) -> None:
    text = plan.explain(400, search=False)
    assert plan.predicted is not None
    why = text.split("Why each choice")[1]
    for name in plan.choices:
        assert plan.predicted.operators[name].reason in why
    assert "Why a batch" not in text and "The next" not in text


def test_the_price_of_memory_is_the_certificates(plan: Plan) -> None:
    text = paragraph(plan.explain(200, search=False), "Price of memory")
    ms = plan.price_of_memory_s_per_byte * 2**30 * 1e3
    if ms == 0:
        assert "memory is no limit" in text
    else:
        assert text.startswith(f"{ms:.4g} ms per GiB")


def test_the_next_gib_is_searched_for(plan: Plan) -> None:
    text = paragraph(plan.explain(200), "The next 1.00 GiB")
    assert plan.memory_limit_bytes is not None and plan.predicted is not None
    richer = search_again(plan, plan.memory_limit_bytes + 2**30)
    assert richer.predicted is not None and richer.predicted.throughput > plan.predicted.throughput
    assert f"{richer.predicted.throughput:.4g} samples/s in place of {plan.predicted.throughput:.4g}" in text
    assert f"batch {richer.batch_size} in place of {plan.batch_size}" in text


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
        assert f"With {size}: {other.predicted.throughput:.4g} samples/s" in text


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
    assert "0 ms per GiB" in paragraph(text, "Price of memory")
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
    assert osdp.base.byte_sizes.format_bytes(saved) in line and "4 x" in line


def test_a_changed_plan_does_not_claim_a_price(plan: Plan) -> None:
    name = next(name for name, choice in plan.choices.items() if choice.mode != "NO_SHARD")
    changed = dataclasses.replace(plan.replace({name: Choice("NO_SHARD")}), predicted=plan.predicted)
    assert "unknown" in paragraph(changed.explain(200, search=False), "Price of memory")
