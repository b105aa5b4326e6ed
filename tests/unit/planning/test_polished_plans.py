"""Plans that were played: what is proven of them and of which objective, and that they play no slower."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import osdp
from osdp.hardware.hardware import Collective, Hardware
from osdp.plan.plan import Plan
from osdp.planning.verify import verify
from tests.unit.gpt_descriptions import gpt, machine
from tests.unit.problems import limits_of_sums

FILES = Path(__file__).parents[2] / "data" / "files"
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
    for share in (0.03, 0.1, 0.3, 1.0, 3.0, 30.0):
        other = dataclasses.replace(hardware, exposed_communication=share)
        alone = searched(other, memory, replay=0)
        assert alone.certificate.optimal
        assert plan.predicted.throughput >= alone.predicted.throughput * (1 - 1e-3)
    assert searched(hardware, memory) == plan  # no clock decides


# A collective takes its latency and little else: who joins whom decides, which no sum over operators tells.
LATENT = dataclasses.replace(
    HIDDEN,
    all_gather=Collective(1e-3, 1e-11),
    reduce_scatter=Collective(1e-3, 1e-11),
    all_reduce=Collective(1e-3, 1e-11),
)


@pytest.mark.parametrize("memory", ["17MiB", "20MiB"])
def test_no_smaller_space_has_a_plan_that_plays_faster_where_neighbours_share_latencies(memory: str) -> None:
    plan = searched(LATENT, memory)
    assert verify(plan) == "" and plan.certificate.gap <= plan.searched.replay
    for smaller in ({"modes": "FULL_SHARD", "granularity": 1}, {"checkpoint": False}, {"granularity": 1}):
        try:
            alone = searched(LATENT, memory, **smaller)
        except osdp.InfeasibleError:
            continue
        assert plan.predicted.throughput >= alone.predicted.throughput * 0.99


def test_a_plan_far_from_the_optimum_is_judged_by_less_communication() -> None:
    hardware = dataclasses.replace(
        HIDING,
        all_gather=Collective(1e-4, 1e-11),
        reduce_scatter=Collective(1e-4, 1e-11),
        all_reduce=Collective(1e-4, 1e-11),
    )
    plans = [searched(hardware, "17MiB", replay=replay) for replay in (0.5, 0.05, 0.02)]
    for plan in plans:
        assert verify(plan) == "" and verify(plan, search=True) == ""
        assert plan.certificate.gap <= plan.searched.replay or plan.searched.exposed == 0
        assert plan.predicted.throughput >= plans[0].predicted.throughput * (1 - plan.searched.gap)
    shares = [plan.searched.exposed for plan in plans]
    assert shares[0] > shares[1] >= shares[2]
    assert plans[0].predicted.throughput > 1.1 * searched(hardware, "17MiB", replay=0).predicted.throughput


def test_what_is_returned_is_faster_than_the_objectives_optimum() -> None:
    plan = searched(HIDING)
    assert plan.certificate.step_gap is not None and 0 <= plan.certificate.step_gap < 1
    assert plan.predicted.throughput > searched(HIDING, replay=0).predicted.throughput * 1.01


def test_what_is_proven_is_of_the_objective_with_the_plans_share() -> None:
    with limits_of_sums():
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


def test_without_replay_the_objective_alone_decides() -> None:
    plan = searched(HIDING, replay=0)
    assert plan.certificate.optimal and plan.searched.exposed == HIDING.exposed_communication
