"""Random models: modules called once, several times or never, tied, frozen, nested, read by others, recomputed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from support.refusals import Refusal, RefusesBackward

WIDTHS = (5, 6, 8)


class Residual(nn.Module):
    """A block; its forward takes keyword arguments, and returns what `shape` says."""

    def __init__(self, dice: random.Random, width: int) -> None:
        super().__init__()
        inner = dice.choice(WIDTHS)
        self.norm = nn.LayerNorm(width) if dice.random() < 0.5 else nn.Identity()
        self.up, self.down = nn.Linear(width, inner, bias=dice.random() < 0.7), nn.Linear(inner, width)
        self.scale = nn.Parameter(torch.randn(width)) if dice.random() < 0.4 else None
        self.shape = dice.choice(("tensor", "tuple", "dict"))

    def forward(self, x: torch.Tensor, *, gain: float = 1.0) -> Any:
        h = self.down(torch.tanh(self.up(self.norm(x)))) * gain
        y = x + (h if self.scale is None else h * self.scale)
        return {"tensor": y, "tuple": (y, h), "dict": {"h": h, "y": [y]}}[self.shape]


def only(output: Any) -> torch.Tensor:
    """The block's result, whatever is around it."""
    if isinstance(output, dict):
        return output["y"][0] + 0.1 * output["h"]
    return output[0] if isinstance(output, tuple) else output


class RandomNet(nn.Module):
    """`steps` are drawn once; each takes earlier values and gives one more. Alike for alike seeds."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        dice = random.Random(seed)
        width = dice.choice(WIDTHS)
        self.first = nn.Linear(4, width)
        self.parts = nn.ModuleList()
        self.gains = nn.ParameterList()
        self.program: list[tuple[str, int, int, int]] = []  # what, part, and the values that it takes
        for at in range(dice.randint(2, 7)):
            what = dice.choice(
                (
                    "linear",
                    "linear",
                    "residual",
                    "residual",
                    "again",
                    "tied",
                    "gain",
                    "read",
                    "reentrant",
                    "checkpoint",
                    "function",
                    "detached",
                    "conv",
                )
            )
            linears = [i for i, part in enumerate(self.parts) if type(part) is nn.Linear]
            if what in ("again", "read", "tied") and not linears:
                what = "linear"
            part = len(self.parts)
            if what in ("linear", "detached"):
                self.parts.append(nn.Linear(width, width, bias=dice.random() < 0.7))
            elif what in ("residual", "reentrant", "checkpoint", "function"):
                self.parts.append(Residual(dice, width))
            elif what == "conv":
                self.parts.append(nn.Conv1d(1, 1, 3, padding=1))
            elif what == "tied":
                self.parts.append(nn.Linear(width, width))
                self.parts[-1].weight = self.parts[dice.choice(linears)].weight
            elif what == "gain":
                part = len(self.gains)
                self.gains.append(nn.Parameter(torch.randn(width)))
            else:
                part = dice.choice(linears)
            self.program.append((what, part, dice.randint(0, at), dice.randint(0, at)))
        if dice.random() < 0.3:
            self.never = nn.Linear(width, 3)
        self.last = nn.Sequential(nn.Linear(width, 6), nn.Tanh(), nn.Linear(6, 3))
        for p in self.parameters():
            if dice.random() < 0.12:
                p.requires_grad_(False)
        self.last[2].weight.requires_grad_(True)
        self.refuses: tuple[str, int] | None = None  # "forward" or "backward", and the step at which

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values = [torch.tanh(self.first(x))]
        for at, (what, part, a, b) in enumerate(self.program):
            values.append(torch.tanh(values[b] + self._value(what, part, values[a])))
            if self.refuses == ("forward", at):
                raise Refusal("forward")
            if self.refuses == ("backward", at):
                values[-1] = RefusesBackward.apply(values[-1])
        return self.last(values[-1])

    def _value(self, what: str, part: int, x: torch.Tensor) -> torch.Tensor:
        if what == "gain":
            return x * self.gains[part]
        module = self.parts[part]
        if what == "read":
            return F.linear(x, module.weight)
        if what == "detached":
            with torch.no_grad():
                y = module(x)
            return y
        if what == "conv":
            return module(x.unsqueeze(1)).squeeze(1)
        if what in ("reentrant", "checkpoint"):
            if not x.requires_grad:
                x = x.detach().requires_grad_()
            return only(checkpoint(module, x, use_reentrant=what == "reentrant"))
        if what == "function":
            twice: Callable[[torch.Tensor], torch.Tensor] = lambda y: only(module(only(module(y)), gain=0.5))  # noqa: E731
            return checkpoint(twice, x, use_reentrant=False)
        return only(module(x)) if isinstance(module, Residual) else module(x)
