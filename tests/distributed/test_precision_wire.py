"""What travels, counted where it is sent: bf16 halves it."""

from __future__ import annotations

import torch
from harness import Member
from support import plans
from support.descriptions import describe_once
from support.workload import Workload, vectors
from torch import nn

import osdp
from osdp.sharding.sharded_model import runtime_of

WIDTH = 256
LOAD = Workload(
    lambda: nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))), vectors(WIDTH, WIDTH)
)
PARAMETERS = 3 * WIDTH * WIDTH


def sent(me: Member, mode: str, policy: osdp.MixedPrecision | None) -> int:
    """Payload bytes that this rank sends in a step in which replicas are not compared, as in the first three."""
    model = LOAD.model(3, torch.float32)
    plan = plans.apart(osdp.Plan.uniform(describe_once(model, torch.zeros(2, WIDTH)), mode))
    osdp.fully_shard(model, plan, process_group=me.group, mixed_precision=policy)
    runtime = runtime_of(model).runtime
    for _ in range(4):
        runtime.reset_statistics()
        model(torch.ones(2, WIDTH)).sum().backward()
    return runtime.statistics()["sent_bytes"]


def count(me: Member) -> None:
    share = (me.world - 1) / me.world * PARAMETERS
    # (gathers, of 2 or 4 bytes; reductions): the unit that ends forward is kept for its backward.
    gathers = {"NO_SHARD": 0, "SHARD_GRAD_OP": 1, "FULL_SHARD": 2 - 1 / 3}
    for mode in plans.MODES:
        reductions = 2 if mode == "NO_SHARD" else 1
        for policy, gathered, reduced in (
            (None, 4, 4),
            (osdp.MixedPrecision(torch.bfloat16), 2, 2),
            (osdp.MixedPrecision(torch.bfloat16, torch.float32), 2, 4),
            (osdp.MixedPrecision(None, torch.float16), 4, 2),
        ):
            wanted = share * (gathers[mode] * gathered + reductions * reduced)
            got = sent(me, mode, policy)
            assert abs(got - wanted) < 1, f"{mode}, {policy}: {got} bytes, not {wanted}"


def test_half_the_bytes_travel(ranks):
    ranks(count, world=2)
    ranks(count, world=4)
