"""Clipping where layers are cut over a tensor-parallel group by hand: the norm is one process's, on all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import Member
from support import plans
from support.pair import SEED, close, naming
from torch import distributed as dist
from torch import nn

import osdp
from osdp.ranks.process_groups import group_of_ranks

WIDTH, INNER, TP = 6, 8, 2
SLICES = ("up", "down.weight")


class _Copied(torch.autograd.Function):
    """Input of slices: their gradients of it are summed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class _Summed(torch.autograd.Function):
    """Output of slices, summed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, None


class Layers(nn.Module):
    """Megatron's cut of two layers, or, without a group, the whole."""

    def __init__(self, group: Any = None, place: int = 0) -> None:
        super().__init__()
        torch.manual_seed(SEED)
        self.group = group
        self.norm, self.last = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH, bias=False)
        self.double()
        if group is not None:
            own = slice(place * INNER // TP, (place + 1) * INNER // TP)
            with torch.no_grad():
                self.up.weight = nn.Parameter(self.up.weight[own].clone())
                self.up.bias = nn.Parameter(self.up.bias[own].clone())
                self.down.weight = nn.Parameter(self.down.weight[:, own].clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        x = x if self.group is None else _Copied.apply(x, self.group)
        x = self.down(torch.tanh(self.up(x)))
        x = x if self.group is None else _Summed.apply(x, self.group)
        return self.last(x)


def groups(me: Member) -> tuple[Any, Any, int, int]:
    """The tensor-parallel and the data-parallel group of this rank, and its place in each."""
    ranks = dist.get_process_group_ranks(me.group)
    replica, place = divmod(me.rank, TP)
    tp = group_of_ranks(ranks[replica * TP : (replica + 1) * TP])
    return tp, group_of_ranks(ranks[place::TP]), place, replica


def slice_of(name: str, whole: torch.Tensor, place: int) -> torch.Tensor:
    if not name.startswith(("up", "down")):
        return whole
    return whole.chunk(TP, dim=1 if name.startswith("down") else 0)[place]


def sharded(how: str, group: Any, model: Layers) -> tuple[nn.Module, Callable[..., torch.Tensor]]:
    plan = osdp.Plan.uniform(model, "FULL_SHARD" if how == "class" else how)
    if how == "class":
        wrapped = osdp.FullyShardedDataParallel(model, group, plan=plan)
        return wrapped, wrapped.clip_grad_norm_
    osdp.fully_shard(model, plan, group)
    return model, lambda *args, **kwargs: osdp.clip_grad_norm_(model, *args, **kwargs)


def clipped(me: Member) -> None:
    tp, dp, place, replica = groups(me)
    for how in (*plans.MODES, "class"):
        whole = Layers()
        model, clip = sharded(how, dp, Layers(tp, place))
        optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (whole, model)]
        for step, (most, norm_type) in enumerate(
            [(1e-2, 2.0), (1e6, 2.0), (1e-2, 1.0), (1e-3, 3.0), (1e-3, math.inf)]
        ):
            with naming(f"{how}, to {most}, order {norm_type}"):
                for optimizer in optimizers:
                    optimizer.zero_grad()
                x = torch.randn(4, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
                whole(x).square().mean().backward()
                model(x.chunk(2)[replica]).square().mean().backward()
                told: dict[str, Any] = {"tp_parameters": SLICES}
                if step % 2:  # Megatron's attribute instead
                    told = {}
                    for name, p in model.named_parameters():
                        p.tensor_model_parallel = name.startswith(("up", "down"))
                wanted = nn.utils.clip_grad_norm_(whole.parameters(), most, norm_type)
                got = clip(most, norm_type, tp_group=tp, **told)
                close(got, wanted, 1e-9, "norm")
                everyones = [torch.empty_like(got) for _ in range(me.world)]
                dist.all_gather(everyones, got, group=me.group)
                assert all(torch.equal(other, got) for other in everyones)
                for optimizer in optimizers:
                    optimizer.step()
                state = model.state_dict()
                for name, value in whole.state_dict().items():
                    close(state[name], slice_of(name, value, place), 1e-9, name)


@pytest.mark.outcome("clipping under tensor parallelism by hand, with tp_group", "equal")
def test_the_norm_over_slices_and_replicas(ranks):
    ranks(clipped, world=4)


def refused(me: Member) -> None:
    tp, dp, place, _ = groups(me)
    model, clip = sharded("FULL_SHARD", dp, Layers(tp, place))
    model(torch.randn(2, WIDTH, dtype=torch.float64)).sum().backward()
    before = {name: p.grad.clone() for name, p in model.named_parameters()}
    for told, match in (
        ({"tp_group": tp}, "nothing says which parameters are slices"),
        ({"tp_group": tp, "tp_parameters": ["up", "upp"]}, "'upp' matches no parameter"),
        ({"tp_group": dp, "tp_parameters": SLICES}, "the model is sharded over rank"),
        ({"tp_parameters": SLICES}, "pass that group too"),
    ):
        with pytest.raises(osdp.InvalidProblemError, match=match):
            clip(1.0, **told)
    with pytest.raises(osdp.DisagreementError, match="called differently on ranks"):
        clip(1.0, tp_group=tp, tp_parameters=SLICES if place else "up")
    if me.rank == 3:
        model.up.bias.grad[:] = math.inf
    with pytest.raises(osdp.GradientError, match="no gradient was changed"):
        clip(1.0, error_if_nonfinite=True, tp_group=tp, tp_parameters=SLICES)
    assert all(
        torch.equal(p.grad, before[n]) or not p.grad.isfinite().all() for n, p in model.named_parameters()
    )
    clip(1.0, tp_group=tp, tp_parameters=[])  # everything is alike on its ranks


@pytest.mark.outcome(
    "a tensor-parallel group without a word which parameters are slices", osdp.InvalidProblemError
)
def test_what_is_unclear_is_refused(ranks):
    ranks(refused, world=4)
