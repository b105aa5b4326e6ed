"""Pipeline.evaluate: losses and outputs without gradients, between steps; targets that are no one tensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import Member
from support.pair import close, naming
from test_parallelize import SAMPLES, batch, net, plan_for
from torch import Tensor, nn

import osdp


def weighted(logits: Tensor, target: Any) -> Tensor:
    """Of labels with a mask: divided by the number of samples, so the mean over micro-batches is that of the batch."""
    losses = nn.functional.cross_entropy(logits.flatten(0, 1), target["labels"].flatten(), reduction="none")
    return (losses * target["mask"].flatten()).sum() * target["scale"] / len(logits)


def target_of(labels: Tensor) -> dict[str, Tensor]:
    return {"labels": labels, "mask": (labels % 3 > 0).double(), "scale": torch.tensor(0.5).double()}


def part_of(pipe: osdp.Pipeline, sizes: list[int]) -> slice:
    replica = pipe.mesh["dp"].get_local_rank()
    return slice(sum(sizes[:replica]), sum(sizes[: replica + 1]))


def evaluates(pipe: osdp.Pipeline, whole: nn.Module, sizes: list[int]) -> None:
    """`sizes`: samples of each replica."""
    tokens, labels = (torch.cat([t, t + 1])[: sum(sizes)] % 24 for t in batch(7))
    mine = part_of(pipe, sizes)
    loss, output = pipe.evaluate(tokens[mine], target=target_of(labels[mine]))
    with torch.no_grad():
        wanted = whole(tokens)
    assert loss is not None
    close(loss.double(), weighted(wanted, target_of(labels)), 1e-6, "loss")
    assert (output is not None) == pipe.last
    if output is not None:
        close(output, wanted[mine], 1e-9, "output")
        assert not output.requires_grad
    assert pipe.evaluate(tokens[mine])[0] is None
    assert all(p.grad is None for p in pipe.parameters())


def between_steps(me: Member) -> None:
    for tensor, pipeline in ((1, 2), (2, 2)):
        with naming(f"{tensor} x {pipeline}"):
            model, whole = net(), net()
            plan = me.once(lambda m=model, t=tensor, p=pipeline: plan_for(m, t, p, me.world))
            pipe = osdp.parallelize(model, plan, weighted)
            optimizers = [torch.optim.SGD(m.parameters(), lr=0.5) for m in (pipe.module, whole)]
            size, parts = SAMPLES // plan.data_parallel, plan.micro_batches
            evaluates(pipe, whole, [size] * plan.data_parallel)  # before the first step
            for step in range(2):
                tokens, labels = batch(step)
                mine = part_of(pipe, [size] * plan.data_parallel)
                found = pipe.step(tokens[mine], target=target_of(labels[mine]))
                wanted = weighted(whole(tokens), target_of(labels))
                wanted.backward()
                close(found.double(), wanted.detach(), 1e-6, "loss of a step")
                norms = pipe.clip_grad_norm_(0.3), nn.utils.clip_grad_norm_(whole.parameters(), 0.3)
                close(norms[0], norms[1], 1e-9, "norm")
                for optimizer in optimizers:
                    optimizer.step(), optimizer.zero_grad()
                evaluates(pipe, whole, [parts, 2 * parts][: plan.data_parallel])
            with pytest.raises(osdp.InvalidProblemError, match="are not divided by the plan's"):
                pipe.evaluate(tokens[: parts - 1])
            with pytest.raises(
                osdp.ShardingError, match=r"stage \d of a pipeline, whose forward its schedule calls"
            ):
                pipe.module(tokens)


def test_evaluations_between_steps(ranks):
    ranks(between_steps, world=4)


def without_targets(me: Member) -> None:
    model = net()
    pipe = osdp.parallelize(
        model, me.once(lambda: plan_for(model, 1, 2, me.world)), lambda logits, _: logits.square().mean()
    )
    tokens = batch(0)[0][part_of(pipe, [SAMPLES // 2] * 2)]
    whole = net()
    close(pipe.step(tokens).double(), whole(batch(0)[0]).square().mean(), 1e-6, "loss")
    close(pipe.step(tokens, target=None).double(), whole(batch(0)[0]).square().mean(), 1e-6, "loss")


def test_a_loss_without_targets(ranks):
    ranks(without_targets, world=4)
