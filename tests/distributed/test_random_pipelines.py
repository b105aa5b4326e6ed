"""Random models in random stages, degrees, schedules and plans: whatever is drawn, the numbers are those of one process."""

from __future__ import annotations

import functools
import os
import random
from typing import Any

import pytest
import torch
from harness import Member
from support import plans
from support.pair import naming
from test_parallelize import LENGTH, STYLES, WIDTH, WORDS, Block
from test_pipeline_parameters import trains
from torch import Tensor, nn

import osdp

AT_ONCE = 3
PROGRAMS = int(os.environ.get("OSDP_PROGRAMS", AT_ONCE))


class Odd(Block):
    """A block with drawn parts: a parameter or buffer of its own, a layer that is not called, a weight of two layers."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.randn(WIDTH)) if dice.random() < 0.4 else None
        self.register_buffer("part", torch.full((WIDTH,), 0.5) if dice.random() < 0.4 else None)
        self.spare = nn.Linear(WIDTH, WIDTH) if dice.random() < 0.3 else None
        self.mix = nn.Linear(WIDTH, WIDTH) if dice.random() < 0.4 else None
        self.again = nn.Linear(WIDTH, WIDTH) if self.mix is not None and dice.random() < 0.7 else None
        if self.mix is not None and self.again is not None:
            self.again.weight = self.mix.weight

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        y = super().forward(x if self.part is None else x + self.part, bias)
        y = y if self.gain is None else y * self.gain
        for layer in (self.mix, self.again):
            y = y if layer is None else y + torch.tanh(layer(y))
        return y


class RandomStages(nn.Module):
    """What is drawn of the model itself: positions, what is between blocks, a temperature, what nothing reads."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        dice = random.Random(seed)
        self.token = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Odd(dice) for _ in range(dice.choice((4, 4, 5, 6))))
        self.own = nn.ParameterDict()
        self.between = [dice.choice(("", "", "scale", "shift", "even", "weight")) for _ in self.blocks]
        for i, what in enumerate(self.between):
            if what in ("scale", "shift"):
                self.own[str(i)] = nn.Parameter(torch.randn(WIDTH))
        self.table = nn.Embedding(LENGTH, WIDTH) if self.between.count("weight") == 1 else None
        drawn = {
            "positions": torch.randn(1, LENGTH, WIDTH),
            "unread": torch.ones(2),
            "temperature": torch.ones(()),
        }
        for name, value in drawn.items():
            self.register_parameter(name, nn.Parameter(value) if dice.random() < 0.5 else None)
        self.register_buffer("even", (torch.arange(LENGTH) % 2 == 0).double()[:, None])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=dice.random() < 0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens)
        x = x if self.positions is None else x + self.positions
        for i, (block, what) in enumerate(zip(self.blocks, self.between, strict=True)):
            x = block(x, self.even) if what == "even" else block(x)
            if what in ("scale", "shift"):
                x = x * self.own[str(i)] if what == "scale" else x + self.own[str(i)]
            elif what == "weight" and self.table is not None:
                x = x + self.table.weight
        x = self.head(self.norm(x)).mean(1)
        return x if self.temperature is None else x * self.temperature


def program(me: Member, first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        dice = random.Random(seed)
        names = [name for name, _ in RandomStages(seed).named_parameters()]
        frozen = tuple(n for n in names if n != "head.weight" and dice.random() < dice.choice((0, 0.3)))
        degrees = dice.choice(((1, 2), (2, 2), (1, 4), (2, 1), (4, 1)))
        asked: dict[str, Any] = {
            "schedule": dice.choice(("gpipe", "1f1b")),
            "batch_size": dice.choice((1, 2)),
        }
        if degrees[0] > 1:
            asked["tp_plan"] = {**STYLES, "head": "colwise_gather_output"}
            asked["tp_plan"] |= dice.choice(({}, {"token": "rowwise"}, {"token": "colwise_gather_output"}))
        of_stage = None
        if (chosen := dice.randrange(4)) > 1:
            of_stage = functools.partial(mixed, seed=chosen)
        options = {"dtensor_parameters": True} if of_stage is None and dice.random() < 0.3 else {}
        with naming(f"seed {seed}: {degrees}, {asked}, {frozen=}, plan {chosen}, {options}"):
            trains(me, functools.partial(RandomStages, seed), degrees, asked, frozen, of_stage, **options)


def mixed(description: osdp.ModelDescription, seed: int) -> osdp.Plan:
    """Of one of the two seeds also recomputed."""
    plan = plans.mixture(description, seed)
    return plans.recomputed(plan, "regather") if seed == 3 and description.blocks else plan


def test_pipelines(ranks):
    ranks(program, 0, world=4)


@pytest.mark.extras
@pytest.mark.parametrize("first", range(AT_ONCE, max(PROGRAMS, 10 * AT_ONCE), AT_ONCE))
def test_more_pipelines(ranks, first):
    """More of them: OSDP_PROGRAMS=1000 pytest tests/distributed/test_random_pipelines.py -m extras"""
    ranks(program, first, world=4)
