"""Which links a group of ranks uses: those inside its host, or those between hosts."""

import dataclasses

import pytest

import osdp
from osdp import _search
from osdp.hardware.hardware import Collective, InsideHosts
from osdp.planning.core_inputs import make_device
from osdp.planning.degrees.layout import Degrees, Layout
from tests.unit.gpt_descriptions import gpt

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
