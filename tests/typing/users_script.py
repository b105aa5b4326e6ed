"""What type checkers see of OSDP: `make lint` runs mypy on this file, `make test-extras` pyright; nothing executes it.

`assert_type` fails where a name is Any, and a misspelt name must be an error: the ignored lines fail the check when they
are not one. Every public name is here (tests/unit/test_public_names.py).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, assert_type

import torch
from torch import Tensor, nn

import osdp
from osdp.parallel.pipeline import Pipeline
from osdp.plan.frontier import Frontier
from osdp.plan.plan_fields import Prediction
from osdp.plan.timeline import Timeline
from osdp.planning.solve import Solution
from osdp.sharding.report_value import Report

model = nn.Sequential(nn.Linear(4, 4))
description = osdp.describe(model, torch.zeros(2, 4))
assert_type(description, osdp.ModelDescription)
assert_type(osdp.Hardware.load("a100-8"), osdp.Hardware)
assert_type(osdp.profile(description), osdp.Hardware)
assert_type(osdp.describe(model, torch.zeros(2, 4), device="cuda", precision="bf16"), osdp.ModelDescription)

plan = osdp.search(description, memory="8GiB", world_size=2)
assert_type(plan, osdp.Plan)
for sample in (torch.zeros(2, 4), (torch.zeros(2, 4),), {"input": torch.zeros(2, 4)}):
    assert_type(osdp.search(model, sample), osdp.Plan)
assert_type(osdp.Plan.uniform(description, "FULL_SHARD"), osdp.Plan)
assert_type(plan.replace({"0": osdp.Choice("NO_SHARD")}), osdp.Plan)
assert_type(plan.choices["0"], osdp.Choice)
assert_type(plan.predicted, Prediction | None)
assert_type(plan.simulate(), Timeline)
assert_type(plan.frontier(), Frontier)
assert_type(osdp.frontier(plan, limits=["2GiB"]), Frontier)
assert_type(plan.explain(), str)
assert_type(plan.diff(plan), str)
assert_type(osdp.verify(plan), str)
assert_type(osdp.solve([[(1, 2)]], 4), Solution)

assert_type(osdp.fully_shard(model, plan), nn.Sequential)
assert_type(osdp.fully_shard([model, model]), list[nn.Sequential])
assert_type(osdp.FullyShardedDataParallel(model, plan=plan), osdp.FullyShardedDataParallel)
with osdp.no_sync(model), osdp.summon_full_params(model):
    pass
assert_type(osdp.clip_grad_norm_(model, 1.0), Tensor)
assert_type(osdp.report(model), Report)
osdp.register_forward_method(model, "loss")
optimizer = torch.optim.AdamW(model.parameters())
osdp.save(model, optimizer, "checkpoint")
osdp.load(model, optimizer, "checkpoint")
with osdp.Checkpoints("run", keep=2) as checkpoints:
    assert_type(checkpoints.load(model, optimizer), int)
    checkpoints.save(model, optimizer, 1)
scaler = osdp.ShardedGradScaler()
scaler.step(optimizer)
assert_type(osdp.bare_step_s(model, torch.zeros(2, 4)), float)

# FSDP1's way, on the class and on an instance, and FSDP2's methods.
FSDP = osdp.FullyShardedDataParallel
wrapped = FSDP(model, mixed_precision=osdp.MixedPrecision(param_dtype=torch.bfloat16))
assert_type(wrapped.clip_grad_norm_(1.0), Tensor)
assert_type(FSDP.optim_state_dict(wrapped, optimizer), dict[str, Any])
assert_type(wrapped.optim_state_dict(optimizer), dict[str, Any])
assert_type(FSDP.fsdp_modules(wrapped), list[osdp.FullyShardedDataParallel])
summoned: AbstractContextManager[None] = wrapped.summon_full_params(writeback=False)
with summoned, FSDP.summon_full_params(wrapped):
    pass
wrapped.summon_full_params(write_back=False)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
for part in model.modules():
    if isinstance(part, osdp.FSDPModule):
        part.set_requires_gradient_sync(False)
        part.set_modules_to_forward_prefetch([part])
        part.set_requires_sync(False)  # type: ignore[operator]  # pyright: ignore[reportCallIssue]

degrees = osdp.search(model, torch.zeros(2, 4), world_size=4, pipeline_parallel=2)
assert_type(degrees, osdp.Plan | osdp.ParallelPlan)
if isinstance(degrees, osdp.ParallelPlan):
    assert_type(degrees.stages[0].plan, osdp.Plan)
    pipeline = osdp.parallelize(model, degrees, nn.functional.mse_loss)
    assert_type(pipeline, Pipeline)
    assert_type(pipeline.step(torch.zeros(2, 4), target=torch.zeros(2, 4)), Tensor)

try:
    osdp.search(description, memory=1)
except osdp.InfeasibleError as error:
    assert_type(error.smallest_limit, int | None)
except osdp.FormatError as error:
    assert_type(error.field, str)
errors: tuple[type[osdp.OSDPError], ...] = (
    osdp.BuildError, osdp.DescribeError, osdp.DisagreementError, osdp.GradientError, osdp.InvalidProblemError,
    osdp.OrderError, osdp.OutOfMemoryError, osdp.PlanMismatchError, osdp.ProcessGroupError, osdp.ProfileError,
    osdp.RankError, osdp.ReplicaError, osdp.ShardingError,
)  # fmt: skip
warning: type[UserWarning] = osdp.MachineMismatchWarning

osdp.searchh(description)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
plan.no_such_field  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # noqa: B018
osdp.fully_shard(description, plan)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
