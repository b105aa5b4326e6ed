"""A family trained sharded and in one process, side by side: losses and gradients agree in every step."""

from __future__ import annotations

from collections.abc import Callable

import families
import torch
from harness import Member
from support.pair import close, cut
from torch import nn

import osdp
from osdp.sharding.sharded_model import runtime_of

Prepare = Callable[[nn.Module], nn.Module]
SAMPLES = 2  # of each rank
SEED = 3


def alternating(described: osdp.ModelDescription) -> osdp.Plan:
    plan = osdp.Plan.uniform(described, "FULL_SHARD")
    modes = ("NO_SHARD", "FULL_SHARD", "SHARD_GRAD_OP")
    return plan.replace({name: osdp.Choice(modes[i % 3]) for i, name in enumerate(plan.choices)})


def searched(described: osdp.ModelDescription, world: int) -> osdp.Plan:
    """Under the least memory of a search that may also recompute and slice, and a little more."""
    options = {"world_size": world, "hardware": "rtx-titan-8", "batch_size": SAMPLES}
    least = osdp.search(described, memory="1GiB", **options).predicted.peak_memory_bytes
    for part in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        try:
            return osdp.search(described, memory=int(part * least), **options)
        except osdp.InfeasibleError:
            continue
    raise AssertionError("nothing fits in what a plan needs")


def plans(name: str, world: int, prepare: Prepare = nn.Module.train) -> dict[str, osdp.Plan]:
    sample = families.batch(name, 0, SAMPLES)
    described = osdp.describe(prepare(families.model(name, SEED)), **sample)
    return {
        "NO_SHARD": osdp.Plan.uniform(described, "NO_SHARD"),
        "FULL_SHARD": osdp.Plan.uniform(described, "FULL_SHARD"),
        "alternating": alternating(described),
        "searched": searched(described, world),
        # Those of Conv1D differ by a row.
        "slices": osdp.Plan.uniform(described, "FULL_SHARD", granularity=3, split="in"),
    }


def part(me: Member, batch: families.Batch) -> families.Batch:
    return {key: me.part(value) for key, value in batch.items()}


def same_gradients(whole: nn.Module, sharded: nn.Module, tolerance: float) -> None:
    runtime = runtime_of(sharded)
    wanted = dict(whole.named_parameters())
    for name, p in sharded.named_parameters():
        full = wanted[name].grad
        assert (full is None) == (p.grad is None) or p.numel() == 0, name
        for piece in runtime.pieces(name) if full is not None and p.numel() else ():
            close(piece.view(p.grad), cut(piece, full), tolerance, f"gradient of {name}")


def train(
    me: Member,
    name: str,
    whole: nn.Module,
    sharded: nn.Module,
    steps: int = 3,
    after_step: Callable[[], None] = lambda: None,
) -> None:
    """Steps of both, compared in each."""
    tolerance = families.FAMILIES[name].tolerance
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-3) for m in (whole, sharded)]
    for step in range(steps):
        batch = families.batch(name, 100 + step, SAMPLES * me.world)
        wanted, loss = whole(**batch).loss, sharded(**part(me, batch)).loss
        close(me.mean(loss), wanted, tolerance, f"loss of step {step}")
        wanted.backward()
        loss.backward()
        same_gradients(whole, sharded, tolerance)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        after_step()
