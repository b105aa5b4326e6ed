"""Which links a group of ranks uses: those inside its host, or those between hosts."""

import dataclasses
from typing import Any

import pytest

import osdp
from osdp import _search
from osdp.hardware.hardware import Collective, InsideHosts
from osdp.planning.core_inputs import make_device
from osdp.planning.degrees.layout import Degrees, Layout
from tests.unit.gpt_descriptions import gpt
from tests.unit.planning.degrees.problems import hosts_machine, searched

SIZE = 10**6
SLOW, FAST = Collective(1e-4, 8e-9), Collective(1e-5, 1e-10)
# As osdp.profile measures two hosts of two ranks: collectives of all ranks, and of those of a host.
MEASURED = dataclasses.replace(
    osdp.Hardware.load("rtx-titan-8"),
    world_size=4,
    all_gather=SLOW,
    reduce_scatter=SLOW,
    all_reduce=SLOW,
    between_hosts=SLOW,
    inside_hosts=InsideHosts(FAST, FAST, FAST),
)


@pytest.mark.parametrize(
    ("degrees", "per_host", "gathers"),
    [
        (Degrees(1, 2, 2), 2, FAST),  # a stage on each host
        (Degrees(2, 1, 2), 2, SLOW),  # a replica on each host
        (Degrees(1, 1, 4), 2, SLOW),
        (Degrees(1, 2, 2), 4, SLOW),  # said to be one host: as fast as all of its ranks were
    ],
)
def test_a_group_inside_a_host_has_the_speed_measured_there(
    degrees: Degrees, per_host: int, gathers: Collective
) -> None:
    layout = Layout(degrees, per_host)
    device = make_device(layout.machine(MEASURED), degrees.data, layout.data_hosts)
    shared = degrees.tensor if layout.data_hosts > 1 else 1  # the link, by the groups of a stage
    hop = gathers.alpha_s + SIZE / degrees.data * gathers.beta_s_per_byte * shared
    assert _search.collective_s(device, "all_gather", SIZE) == pytest.approx((degrees.data - 1) * hop)


def test_hosts_that_were_measured_are_shared_inside_at_their_own_speed() -> None:
    plan = osdp.Plan.uniform(gpt(2, 64), "HYBRID_SHARD")
    over = dataclasses.replace(MEASURED, inside_hosts=None)
    inside, alike = (plan.simulate(m, world_size=4, hosts=2).communication_s for m in (MEASURED, over))
    assert inside < alike


def test_what_a_stage_sends() -> None:
    within = Layout(Degrees(1, 4, 1), 2).send_s(MEASURED, 0, SIZE)
    between = Layout(Degrees(1, 4, 1), 2).send_s(MEASURED, 1, SIZE)
    assert within == pytest.approx(1e-5 + SIZE * 1e-10)
    assert between == pytest.approx(1e-4 + SIZE * 8e-9)


def test_stages_of_one_host_share_its_cores() -> None:
    """Four ranks on two cores: a stage of two ranks is twice as fast while the other one waits."""
    shared = hosts_machine(4, fewer_ranks_speedup=(2.0, 2.0))
    assert Layout(Degrees(1, 2, 2), 4).speeds(shared) == [2.0, 1.0]
    assert Layout(Degrees(1, 4, 1), 4).speeds(shared) == pytest.approx([2.0, 2.0, 4 / 3, 1.0])
    assert Layout(Degrees(1, 2, 4), 4).speeds(shared) == [1.0]  # stages on hosts of their own
    assert Layout(Degrees(1, 2, 2), 4).speeds(hosts_machine(4)) == [1.0]


def test_a_bubble_on_shared_cores_costs_nothing() -> None:
    """Then a pipeline is worth what it saves: with cores for all ranks the search prefers data parallelism here."""
    asked: dict[str, Any] = {"tensor_parallel": 1, "tp_plan": None, "world_size": 4, "memory": "64MiB"}
    asked |= {"batch_size": 2, "description": gpt(4, 128)}
    quick, slower = Collective(1e-6, 1e-11), Collective(1e-6, 5e-11)
    links = {"all_gather": quick, "reduce_scatter": slower, "all_reduce": slower}
    own, shared = (
        searched(hardware=hosts_machine(4, fewer_ranks_speedup=f, **links), **asked) for f in ((), (2.0, 2.0))
    )
    assert own.pipeline_parallel == 1 < shared.pipeline_parallel
    assert osdp.verify(shared) == "" and shared.step_time_s < own.step_time_s
    assert shared.simulate().step_time_s == shared.step_time_s
