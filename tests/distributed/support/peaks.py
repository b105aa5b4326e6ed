"""What a step may hold, in bytes: of a stack of blocks whose units and activations are known."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

import osdp
from osdp import _C

SAMPLES = 4
SLACK_BYTES = 24 * 1024  # rounding of single blocks, and the process group's own small tensors
STATES = 4  # parameters, gradients and AdamW's two moments


def layers(count: int, width: int, inner: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for _ in range(count):
        parts += [nn.Linear(width, inner), nn.Tanh(), nn.Linear(inner, width)]
    return nn.Sequential(*parts)


class Stack(nn.Module):
    def __init__(self, count: int, width: int, inner: int | tuple[int, ...]) -> None:
        super().__init__()
        inners = inner if isinstance(inner, tuple) else (inner,) * count
        self.blocks = nn.ModuleList(layers(1, width, i) for i in inners)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def units_bytes(plan: osdp.Plan) -> list[int]:
    """Of every unit that exists as a whole while it is used: a slice, where split."""
    operators = {o.name: o for o in plan.description.operators}
    sizes = []
    for unit in plan.units:
        size = sum(operators[name].parameter_bytes for name in unit)
        sizes.append(-(-size // plan.choices[unit[0]].granularity))
    return sizes


def activation_bytes(model: nn.Module, x: torch.Tensor, parameters: int) -> int:
    """The most that one process holds in a step beside parameters and the one gradient being made."""
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    before = _C.memory_live_bytes()
    loss = model(x).square().mean()
    saved = _C.memory_live_bytes() - before
    loss.backward()
    # In backward two gradients of activations are there at a time, none larger than the widest output.
    return saved + 2 * SAMPLES * 4 * max(max(p.shape) for p in model.parameters())


@dataclass
class Measured:
    """A stack whose steps are to be measured, and its input; bytes."""

    model: Stack
    x: torch.Tensor
    activations: int
    full: int  # parameters
    empty: int  # live beside the model


def measured_stack(count: int, width: int, inner: int | tuple[int, ...]) -> Measured:
    _C.memory_meter_install()
    torch.manual_seed(0)
    x = torch.randn(SAMPLES, width)
    model = Stack(count, width, inner)
    activations = activation_bytes(model, x, 0)
    full = sum(p.numel() * 4 for p in model.parameters())
    del model
    empty = _C.memory_live_bytes()
    return Measured(Stack(count, width, inner), x, activations, full, empty)
