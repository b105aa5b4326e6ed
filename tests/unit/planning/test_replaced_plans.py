"""Plan.replace on a searched plan: what it was made with travels with it."""

from __future__ import annotations

import dataclasses

import pytest

import osdp
from osdp.plan.plan import Plan
from osdp.plan.plan_fields import PlanFields
from osdp.plan.unit_grouping import SMALL_BYTES, group_units
from tests.unit.gpt_descriptions import gpt, machine

MODEL = gpt(3, 256)
CHANGED = ("choices", "units", "recompute", "predicted", "certificate")  # by replace


def found(memory: str, **asked: object) -> Plan:
    try:
        return osdp.search(MODEL, memory=memory, world_size=8, hardware=machine(8), batch_size=2, **asked)
    except osdp.InfeasibleError as error:
        assert error.smallest_limit is not None
        return found(str(error.smallest_limit) + "B", **asked)


@pytest.mark.parametrize(
    "asked",
    [
        {"precision": "bf16-reduce-fp32", "prefetch": 3},
        {"cost": "paper"},
        {"hosts": 2, "whole": "head"},
        {"separate_reductions": True, "checkpoint": False, "modes": ("FULL_SHARD", "SHARD_GRAD_OP")},
    ],
    ids=str,
)
def test_a_replaced_plan_is_grouped_as_the_search_groups_it(asked):
    tight, rich = found("20MiB", **asked), found("200MiB", **asked)
    assert tight.searched is not None and tight.searched.small_unit_bytes > SMALL_BYTES
    kept = [f.name for f in dataclasses.fields(PlanFields) if f.name not in CHANGED]
    for plan in (tight, rich):
        assert plan.replace({}) == plan
        assert plan.replace(plan.choices, recompute=plan.recompute) == plan
        same = Plan.loads(plan.dumps()).replace({})
        assert same == plan and osdp.verify(same) == ""
    for plan, other in ((tight, rich), (rich, tight)):
        ways = {**dict.fromkeys(plan.recompute), **other.recompute}
        replaced = plan.replace(other.choices, recompute=ways)
        assert replaced.units == other.units
        assert replaced.recompute == other.recompute
        assert [getattr(replaced, name) for name in kept] == [getattr(plan, name) for name in kept]
        if plan.units != other.units:
            assert (replaced.predicted, replaced.certificate) == (None, None)


def test_the_machine_decides_how_a_searched_plan_is_grouped():
    """Where group_units without the search's threshold gives other units; so the test above can fail."""
    plan = found("20MiB")
    assert group_units(MODEL, plan.choices) != plan.units
    name = next(name for name, choice in plan.choices.items() if choice.mode != "NO_SHARD")
    other = plan.replace({name: osdp.Choice("NO_SHARD")})
    assert other.choices[name].mode == "NO_SHARD" and len(other.units) < 2 * len(plan.units)
    assert other.replace({name: plan.choices[name]}).units == plan.units
    assert other.simulate().step_time_s > 0


def test_a_plan_by_hand_stays_as_it_was_grouped():
    plan = Plan.uniform(MODEL, "FULL_SHARD")
    apart = dataclasses.replace(plan, units=tuple((name,) for name in plan.choices))
    assert apart.replace({}) == apart
    name = next(iter(plan.choices))
    assert apart.replace({name: osdp.Choice("NO_SHARD")}).searched is None
