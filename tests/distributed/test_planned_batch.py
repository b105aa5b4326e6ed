"""A training batch that is larger than the plan's is said once; smaller ones, and those without gradients, are not."""

from __future__ import annotations

import warnings

import torch
from harness import Member
from torch import nn

import osdp


def told(me: Member, batches: list[int], *, planned: bool = True, training: bool = True) -> list[str]:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    sample = torch.randn(4, 8)
    plan = osdp.search(model, (sample,), memory="64MiB", world_size=me.world)
    if not planned:
        plan = osdp.Plan.uniform(osdp.describe(model, sample))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        osdp.fully_shard(model, plan, me.group).train(training)
        for batch in batches:
            loss = model(torch.randn(batch, 8)).sum()
            if training:
                loss.backward()
    lines = [w for w in caught if "samples and the plan is for" in str(w.message)]
    assert all(w.filename == __file__ for w in lines)
    return [str(w.message) for w in lines]


def larger_batches(me: Member) -> None:
    assert told(me, [4, 4, 2]) == [], "a last, smaller batch"
    (line,) = told(me, [4, 8, 8, 16])
    assert "has 8 samples and the plan is for 4" in line and "batch_size=8" in line
    assert told(me, [8], training=False) == [] and told(me, [8], planned=False) == []


def test_a_larger_batch_than_planned_is_said_once(ranks):
    ranks(larger_batches, world=2)
