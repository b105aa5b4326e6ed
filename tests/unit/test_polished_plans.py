"""Plans that were played: what is proven of them and of which objective, and that they play no slower."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import osdp
from osdp.hardware.hardware import Hardware
from osdp.plan.plan import Plan
from osdp.planning import runner_up_selection
from osdp.planning.verify import verify
from tests.unit.gpt_descriptions import gpt, machine

FILES = Path(__file__).parents[1] / "data" / "files"
# Computation hides nearly all communication, and the other way round.
HIDING = machine(8, flops_per_s=1e12)
HIDDEN = machine(8, flops_per_s=1e15)


def searched(hardware: Hardware, memory: str = "24MiB", **arguments: object) -> Plan:
    return osdp.search(
        gpt(4, 256), memory=memory, world_size=8, hardware=hardware, **{"batch_size": 2, **arguments}
    )


@pytest.mark.parametrize("hardware", [HIDING, HIDDEN])
@pytest.mark.parametrize("memory", ["18MiB", "24MiB", "40MiB"])
def test_no_objective_alone_finds_a_plan_that_plays_faster(hardware: Hardware, memory: str) -> None:
    plan = searched(hardware, memory)
    assert verify(plan) == "" and verify(plan, search=True) == ""
    for share, _ in runner_up_selection.OBJECTIVES:
        other = dataclasses.replace(hardware, exposed_communication=share)
        alone = searched(other, memory, replay=0)
        assert alone.certificate.optimal
        assert plan.predicted.throughput >= alone.predicted.throughput * (1 - 1e-3)
    assert searched(hardware, memory) == plan  # no clock decides


def test_the_objective_is_the_one_whose_plan_plays_best() -> None:
    plan = searched(HIDING)
    assert plan.searched.exposed != HIDING.exposed_communication
    assert plan.predicted.throughput > searched(HIDING, replay=0).predicted.throughput * 1.01


def test_what_is_proven_is_of_the_objective_with_the_plans_share() -> None:
    plan = searched(HIDING)
    share = plan.searched.exposed
    alone = searched(dataclasses.replace(HIDING, exposed_communication=share), replay=0)
    assert alone.certificate.optimal and plan.certificate.proven
    assert plan.certificate.time_ps >= alone.certificate.time_ps
    assert plan.certificate.search_bound_ps == pytest.approx(alone.certificate.time_ps, rel=1e-9)


PLANS = [searched(HIDING), searched(HIDDEN, "40MiB")]


@settings(deadline=None, max_examples=60)
@given(plan=st.sampled_from(PLANS), share=st.floats(0, 100))
def test_a_changed_share_is_noticed(plan: Plan, share: float) -> None:
    changed = dataclasses.replace(plan, searched=dataclasses.replace(plan.searched, exposed=share))
    # To a picosecond of what communicates.
    if abs(share - plan.searched.exposed) > 1e-6:
        assert verify(changed) != ""


def test_of_older_plans_the_share_is_the_hardwares() -> None:
    old = json.loads((FILES / "plan-6.json").read_text())
    old["hardware"]["exposed_communication"] = 0.75
    assert Plan.loads(json.dumps(old)).searched.exposed == 0.75


def test_a_search_of_the_objective_alone_plays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_up_selection, "rehearsal", None)
    plan = searched(HIDING, replay=0)
    assert plan.certificate.optimal and plan.searched.exposed == HIDING.exposed_communication
