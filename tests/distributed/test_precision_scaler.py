"""fp16 with a gradient scaler; gradients that are not finite: every rank decides the same."""

from __future__ import annotations

import warnings

import pytest
import torch
from harness import Member
from support import plans
from support.descriptions import describe_once
from support.pair import naming
from support.workload import Workload, vectors
from torch import nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler as TorchScaler

import osdp

LOAD = Workload(lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6)), vectors(6, 6))


def build(me: Member, mode: str, **options) -> nn.Module:
    model = LOAD.model(3, torch.float32)
    plan = plans.apart(osdp.Plan.uniform(describe_once(model, torch.zeros(2, 6)), mode))
    return osdp.fully_shard(model, plan, process_group=me.group, **options)


def poison(model: nn.Module, value: float) -> None:
    """One element of what rank 0 alone holds (of a gradient that every rank holds, on all ranks)."""
    runtime = osdp.sharding.sharded_model.runtime_of(model)
    for name, parameter in model.named_parameters():
        piece = runtime.pieces(name)[0]
        if parameter.numel() and all(offset == 0 for offset in piece.global_offsets):
            parameter.grad.view(-1)[0] = value
            return


def optimizers(model: nn.Module):
    for options in ({"foreach": False}, {"foreach": True}, {"fused": True}):
        yield options, torch.optim.AdamW(model.parameters(), lr=0.1, **options)


def skipped(me: Member, mode: str) -> None:
    for options, _ in optimizers(build(me, mode)):
        model = build(me, mode)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **options)
        scaler = osdp.ShardedGradScaler("cpu", init_scale=8.0, growth_interval=1, process_group=me.group)
        with naming(str(options)):
            for step, (bad, unscales) in enumerate(
                [(False, False), (True, False), (True, True), (False, True)]
            ):
                (x,), target = LOAD.data(step, me.world * 2, torch.float32)
                before = {n: v.clone() for n, v in model.state_dict().items()}
                scaler.scale(LOAD.loss(model(me.part(x)), me.part(target))).backward()
                if bad:
                    poison(model, float("inf") if unscales else float("nan"))
                if unscales:
                    scaler.unscale_(optimizer)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                after = model.state_dict()
                same = all(torch.equal(after[n], before[n]) for n in before)
                assert same is bad, f"step {step}: {'taken' if bad else 'skipped'}"
                scales = me.everywhere(scaler.get_scale())
                assert len(set(scales)) == 1 and scales[0] == [16, 8, 4, 8][step], scales


@pytest.mark.parametrize("mode", ["NO_SHARD", "FULL_SHARD"])
def test_an_infinity_on_one_rank_skips_the_step_on_all(ranks, mode):
    ranks(skipped, mode, world=2)


def torch_scaler_with_a_fused_optimizer(me: Member) -> list[bool]:
    """Whether each rank's parameters changed."""
    model = build(me, "FULL_SHARD")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    scaler = TorchScaler("cpu", process_group=me.group)
    scaler.scale(model(torch.ones(2, 6)).sum()).backward()
    poison(model, float("inf"))
    before = [p.detach().clone() for p in model.parameters()]
    scaler.step(optimizer)
    return me.everywhere(any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)))


def test_why_torchs_own_scaler_is_not_enough(ranks):
    """When this fails, torch has learned it, and osdp.ShardedGradScaler may go."""
    assert ranks(torch_scaler_with_a_fused_optimizer, world=2)[0] == [False, True]


def half_training(me: Member) -> None:
    """fp16 overflows at first and recovers: the loss falls, and every rank counts the same steps."""
    for mode in plans.MODES:
        model = build(
            me, mode, mixed_precision=osdp.MixedPrecision(torch.float16, output_dtype=torch.float32)
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scaler = osdp.ShardedGradScaler("cpu", init_scale=2.0**20, process_group=me.group)
        losses, steps = [], 0
        for _ in range(25):
            (x,), target = LOAD.data(1, me.world * 4, torch.float32)
            loss = LOAD.loss(model(me.part(x)), me.part(target))
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = osdp.clip_grad_norm_(model, 10.0)
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            steps += scaler.get_scale() >= before
            assert torch.isfinite(norm) == (scaler.get_scale() >= before)
            optimizer.zero_grad()
            losses.append(float(me.mean(loss)))
        taken = me.everywhere((steps, losses[-1]))
        assert len(set(taken)) == 1 and 0 < steps < 25, taken
        assert losses[-1] < 0.9 * losses[0], losses
        assert all(p.dtype == torch.float32 for p in model.parameters())


def test_half_precision_with_a_scaler_trains(ranks):
    ranks(half_training, world=2)


def sum_beyond_half(me: Member) -> None:
    """Gradients of 30000 on every rank: their sum is no half, their mean is."""
    for mode in plans.MODES:
        model = nn.Linear(4, 4, bias=False)
        plan = osdp.Plan.uniform(model, mode)
        osdp.fully_shard(model, plan, me.group, mixed_precision=osdp.MixedPrecision(torch.float16))
        (model(torch.ones(1, 4)) * 30000.0).sum().backward()
        assert torch.equal(model.weight.grad, torch.full_like(model.weight.grad, 30000.0)), mode


@pytest.mark.parametrize("world", [3, 4])
def test_a_mean_that_half_can_hold_is_right_although_the_sum_overflows(ranks, world):
    ranks(sum_beyond_half, world=world)


def nan_clip(me: Member) -> None:
    """clip_grad_norm_ with a NaN that one rank holds: every rank sees it, and every gradient becomes NaN, as in one
    process."""
    for value in (float("nan"), float("inf")):
        model = build(me, "FULL_SHARD")
        model(torch.ones(2, 6)).sum().backward()
        poison(model, value)
        norm = float(osdp.clip_grad_norm_(model, 1.0))
        norms = me.everywhere(str(norm))
        assert norms == [str(value)] * me.world
        for parameter in model.parameters():
            whole = torch.isnan(parameter.grad) | (parameter.grad == 0)
            assert bool(whole.all()), parameter.grad


def test_a_nan_gradient_is_seen_by_every_rank(ranks):
    ranks(nan_clip, world=2)
