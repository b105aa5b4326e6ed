"""What a step may hold, in bytes: of a stack of blocks whose units and activations are known."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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


def step_peaks(
    model: nn.Module,
    x: torch.Tensor,
    empty: int,
    steps: int,
    micro_batches: int = 1,
    loss: Callable[[torch.Tensor], torch.Tensor] = lambda y: y.square().mean(),
    after_backward: Callable[[], None] = lambda: None,
) -> list[int]:
    """Bytes beyond `empty` that each of some steps with AdamW holds at most, up to the end of its last backward.

    Without oneDNN: its products in 16 bits have temporary memory, of another size on each kind of processor, which no
    plan counts.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, foreach=False)
    peaks = []
    torch._C._set_mkldnn_enabled(False)  # torch.backends.mkldnn.flags would warn of TF32
    try:
        for _ in range(steps):
            _C.memory_reset_peak()
            for _ in range(micro_batches):
                loss(model(x)).backward()
            peaks.append(_C.memory_peak_bytes() - empty)
            after_backward()
            optimizer.step()
            optimizer.zero_grad()
    finally:
        torch._C._set_mkldnn_enabled(True)
    return peaks


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


class Waits(torch.autograd.Function):
    """The identity, which lets the lane go ahead for a moment in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient, None


class RandomGraph(nn.Module):
    """Blocks of mixed sizes; each takes one or two earlier values, added or side by side.

    With `frozen`, two of five parameters are. Where `waits` is set, computation waits now and then, in forward and in
    backward, differently in every step.
    """

    WIDTHS = (32, 64, 96, 192, 512)

    def __init__(self, seed: int, frozen: bool = False) -> None:
        super().__init__()
        dice = random.Random(seed)
        self.blocks = nn.ModuleList()
        self.program: list[tuple[int, int, str]] = []
        widths = [64]
        for at in range(dice.randint(4, 9)):
            a, b = (max(dice.randint(0, at), dice.randint(0, at)) for _ in range(2))
            same = widths[a] == widths[b]
            how = dice.choice(("one", "one", "add" if same else "cat", "cat"))
            into = widths[a] + (widths[b] if how == "cat" else 0)
            inner, out = dice.choice(self.WIDTHS), dice.choice(self.WIDTHS)
            parts: list[nn.Module] = [nn.Linear(into, inner), nn.Tanh(), nn.Linear(inner, out)]
            parts += dice.choice(([], [nn.LayerNorm(out)], [nn.LayerNorm(out), nn.SiLU()]))
            self.blocks.append(nn.Sequential(*parts))
            self.program.append((a, b, how))
            widths.append(out)
        used = {value for step in self.program for value in step[: 1 if step[2] == "one" else 2]}
        self.ends = [at for at in range(1, len(widths)) if at not in used]
        self.head = nn.Linear(sum(widths[at] for at in self.ends), dice.choice((1, 64)))
        if frozen:
            dice = random.Random(seed)
            for parameter in self.parameters():
                parameter.requires_grad_(dice.random() < 0.6)
            self.head.weight.requires_grad_(True)
        self.waits: random.Random | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values = [x]
        for (a, b, how), block in zip(self.program, self.blocks, strict=True):
            given = values[a]
            if how == "add":
                given = given + values[b]
            elif how == "cat":
                given = torch.cat([given, values[b]], -1)
            values.append(self._wait(block(given)))
        return self.head(torch.cat([values[at] for at in self.ends], -1))

    def _wait(self, x: torch.Tensor) -> torch.Tensor:
        if self.waits is None or self.waits.random() < 0.5:
            return x
        time.sleep(self.waits.choice((0.0, 0.002)))
        return Waits.apply(x, self.waits.choice((0.0, 0.002)))
