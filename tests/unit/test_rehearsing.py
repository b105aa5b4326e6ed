"""What plays many plans of one problem says of each what the simulator and the checker say."""

from __future__ import annotations

from dataclasses import replace

import pytest

import osdp
from osdp.hardware.hardware import Collective
from osdp.planning.rehearsal import rehearsal
from osdp.planning.verify import assembly_of, found_of
from tests.unit.gpt_descriptions import gpt, machine


@pytest.mark.parametrize("batch", [{"batch_size": 2}, {"global_batch_size": 64}])
@pytest.mark.parametrize("hosts", [1, 2])
def test_a_rehearsal_says_what_the_simulator_and_the_checker_say(batch: dict[str, int], hosts: int) -> None:
    hardware = machine(8, stolen_computation=0.25, between_hosts=Collective(40e-6, 1e-9))
    for limit in ("16MiB", "24MiB", "48MiB", "1GiB"):
        plan = osdp.search(
            gpt(4, 256), memory=limit, world_size=8, hosts=hosts, hardware=hardware, replay=0, **batch
        )
        assert plan.searched is not None and plan.certificate is not None and plan.predicted is not None
        assembly = assembly_of(plan, plan.searched)
        played = rehearsal(
            plan.description,
            hardware,
            assembly.model,
            assembly.request,
            precision=plan.precision,
            small_unit_bytes=plan.searched.small_unit_bytes,
            prefetch=plan.prefetch,
            separate_reductions=False,
        )
        found = found_of(plan, plan.certificate, assembly)
        at = ((plan.batch_size, plan.accumulation), found["choices"], found["blocks"])
        assert played.step_ps(*at) == round(plan.predicted.step_time_s * 1e12)
        assert played.peak_bytes(*at) == plan.certificate.memory_bytes


def test_a_plan_of_another_problem_is_refused() -> None:
    plan = osdp.search(gpt(2, 128), memory="20MiB", world_size=4, hardware=machine(4), batch_size=1)
    assert plan.searched is not None
    assembly = assembly_of(plan, replace(plan.searched, checkpoint=("none",)))
    played = rehearsal(
        plan.description,
        machine(4),
        assembly.model,
        assembly.request,
        precision="fp32",
        small_unit_bytes=1,
        prefetch=1,
        separate_reductions=False,
    )
    operators, blocks = len(plan.description.operators), len(plan.description.blocks)
    for choices, ways in (
        ([0] * (operators - 1), [0] * blocks),
        ([1000] * operators, [0] * blocks),
        ([0] * operators, [1] * blocks),
    ):
        with pytest.raises(ValueError, match="none of this problem"):
            played.step_ps((1, 1), choices, ways)
