"""What type checkers see of OSDP: `make lint` runs mypy on this file, `make test-extras` pyright; nothing executes it.

`assert_type` fails where a name is Any, and a misspelt name must be an error: the ignored lines fail the check when they
are not one.
"""

from __future__ import annotations

from typing import assert_type

import torch
from torch import Tensor, nn

import osdp
from osdp.plan.frontier import Frontier
from osdp.plan.prediction import Prediction
from osdp.plan.timeline import Timeline
from osdp.planning.solve import Solution
from osdp.sharding.report_value import Report

model = nn.Sequential(nn.Linear(4, 4))
description = osdp.describe(model, torch.zeros(2, 4))
assert_type(description, osdp.ModelDescription)
assert_type(osdp.Hardware.load("a100-8"), osdp.Hardware)
assert_type(osdp.profile(description), osdp.Hardware)

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

osdp.searchh(description)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
plan.no_such_field  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # noqa: B018
osdp.fully_shard(description, plan)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
