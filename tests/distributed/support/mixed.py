"""MixedPair: a pair whose whole model casts as mixed precision does, written down plainly in one process.

For each rank's part of the batch: a copy of the model in the parameters' dtype, its loss, its gradients; those
are kept in the model's own dtype until they are averaged, averaged in the dtype of the reduction, and added to
the model's own gradient.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
from harness import Member
from torch import nn

import osdp
from osdp.base.cast_floats import cast_floats
from support.pair import Pair, cut
from support.workload import Batch, Workload


class MixedPair(Pair):
    """`policy`: what the sharded model is given. `exact`: gradients must agree in every bit."""

    def __init__(
        self,
        me: Member,
        workload: Workload,
        plan: Any,
        policy: osdp.MixedPrecision,
        exact: bool,
        **options: Any,
    ) -> None:
        options.setdefault("dtype", torch.float32)
        super().__init__(me, workload, plan, mixed_precision=policy, **options)
        self.policy, self.exact = policy, exact
        self.kept: list[dict[str, torch.Tensor]] = [{} for _ in range(me.world)]

    def part_of(self, batch: Batch, rank: int) -> Batch:
        rank_there = dataclasses.replace(self.me, rank=rank)
        arguments, target = batch
        return tuple(
            rank_there.part(a) if isinstance(a, torch.Tensor) else a for a in arguments
        ), rank_there.part(target)

    def low(self) -> nn.Module:
        model = copy.deepcopy(self.whole)
        model.zero_grad()
        dtype = self.policy.param_dtype
        return model if dtype is None else model.to(dtype)

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        self.lows = [self.low() for _ in range(self.me.world)]
        self.losses = []
        for rank, low in enumerate(self.lows):
            arguments, target = self.part_of(batch, rank)
            if self.policy.param_dtype is not None:
                arguments = cast_floats(arguments, self.policy.param_dtype)
            self.losses.append(self.workload.loss(low(*arguments), target))
        mine, my_target = self._part(batch)
        loss = self.workload.loss(self.sharded(*mine), my_target)
        self.agree(loss, self.losses[self.me.rank], "loss")
        return torch.stack(self.losses), loss

    def backward(self, batch: Batch, divide: int = 1, context: Any = None) -> None:
        _, mine = self.forward(batch)
        for rank, (low, loss) in enumerate(zip(self.lows, self.losses, strict=True)):
            (loss / divide).backward()
            for name, parameter in low.named_parameters():
                if parameter.grad is not None:
                    gradient = parameter.grad.to(self.dtype)
                    self.kept[rank][name] = self.kept[rank].get(name, 0) + gradient
        (mine / divide).backward()
        if self.runtime.sync:
            self.average()

    @property
    def runtime(self) -> Any:
        return osdp.sharding.sharded_model.runtime_of(self.sharded).runtime

    def average(self) -> None:
        reduce = self.policy.reduce_dtype or self.policy.param_dtype
        if self.me.world == 1:
            reduce = self.dtype  # nothing is averaged
        for name, parameter in self.whole.named_parameters():
            parts = [kept[name].to(reduce) for kept in self.kept if name in kept]
            if not parts:
                continue
            total = parts[0]
            for part in parts[1:]:
                total = total + part
            mean = (total * (1 / self.me.world)).to(self.dtype)
            parameter.grad = mean if parameter.grad is None else parameter.grad + mean
        self.kept = [{} for _ in range(self.me.world)]

    def same_gradients(self) -> None:
        if not self.exact:
            return super().same_gradients()
        runtime = osdp.sharding.sharded_model.runtime_of(self.sharded)
        wanted = dict(self.whole.named_parameters())
        for name, parameter in self.sharded.named_parameters():
            full = wanted[name].grad
            assert (full is None) == (parameter.grad is None), name
            if full is None:
                continue
            assert parameter.grad.dtype == parameter.dtype == self.dtype, name
            for piece in runtime.pieces(name):
                self.agree(piece.view(parameter.grad), cut(piece, full), f"gradient of {name}")
        return None

    def agree(self, got: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
        tolerance = 0.0 if self.exact else self.tolerance
        torch.testing.assert_close(
            got.detach(), wanted.detach(), rtol=tolerance, atol=tolerance, msg=lambda text: f"{what}: {text}"
        )
