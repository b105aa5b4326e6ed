"""torch.utils.checkpoint where a user may put it: around the root, nested, around functions and sequences."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from harness import Member
from support import plans
from support.pair import Pair, naming, train_all
from support.workload import Workload, vectors
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

WIDTH = 6
Wrap = Callable[["Checkpointed", torch.Tensor], torch.Tensor]


class Checkpointed(nn.Module):
    """`body`: how forward runs `first`, `blocks` and `last`."""

    def __init__(self, body: Wrap) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.Sequential(*(self.block() for _ in range(3)))
        self.last = nn.Linear(WIDTH, 4)
        self.body = body

    @staticmethod
    def block() -> nn.Module:
        return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 9), nn.Tanh(), nn.Linear(9, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(self, x)


class Root(nn.Module):
    """Recomputes the whole of the model inside it."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.inner = Checkpointed(straight)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.reentrant:
            x = x.clone().requires_grad_()
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


def straight(model: Checkpointed, x: torch.Tensor) -> torch.Tensor:
    return model.last(model.blocks(model.first(x)))


def nested(model: Checkpointed, x: torch.Tensor) -> torch.Tensor:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(model.blocks[1], model.blocks[0](x), use_reentrant=False)

    return model.last(model.blocks[2](checkpoint(inner, model.first(x), use_reentrant=False)))


def nested_reentrant(model: Checkpointed, x: torch.Tensor) -> torch.Tensor:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(model.blocks[1], model.blocks[0](x), use_reentrant=True)

    return model.last(model.blocks[2](checkpoint(inner, model.first(x), use_reentrant=True)))


def sequence(model: Checkpointed, x: torch.Tensor) -> torch.Tensor:
    return model.last(checkpoint_sequential(model.blocks, 2, model.first(x), use_reentrant=False))


def part_of_a_block(model: Checkpointed, x: torch.Tensor) -> torch.Tensor:
    """The region begins in one block and ends in the next."""
    x = model.first(x)
    first, second, third = model.blocks

    def region(x: torch.Tensor) -> torch.Tensor:
        return second[1](second[0](first[3](first[2](x))))

    x = checkpoint(region, first[1](first[0](x)), use_reentrant=False)
    return model.last(third(second[3](second[2](x))))


def the_last_layer_too(model: Checkpointed, x: torch.Tensor) -> torch.Tensor:
    def region(x: torch.Tensor) -> torch.Tensor:
        return model.last(model.blocks[2](x))

    x = model.blocks[1](model.blocks[0](model.first(x)))
    return checkpoint(region, x, use_reentrant=False)


def one_block_twice(model: Checkpointed, x: torch.Tensor) -> torch.Tensor:
    x = checkpoint(model.blocks[0], model.first(x), use_reentrant=False)
    x = checkpoint(model.blocks[0], x, use_reentrant=True)
    return model.last(model.blocks[0](model.blocks[1](model.blocks[2](x))))


def function_reentrant(model: Checkpointed, x: torch.Tensor) -> torch.Tensor:
    """A function that calls modules and reads parameters itself, of modules that are called outside of it too."""

    def region(x: torch.Tensor) -> torch.Tensor:
        x = model.blocks[0](x) * model.blocks[1][0].weight
        return nn.functional.linear(model.blocks[1][1](x), model.blocks[1][3].weight)

    x = checkpoint(region, model.blocks[1](model.first(x)), use_reentrant=True)
    return model.last(model.blocks[2](model.blocks[1](x)))


def function_reentrant_nested(model: Checkpointed, x: torch.Tensor) -> torch.Tensor:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return model.blocks[1](x) * model.blocks[1][0].bias

    def outer(x: torch.Tensor) -> torch.Tensor:
        return (
            model.blocks[0](checkpoint(inner, model.blocks[0](x), use_reentrant=True))
            * model.blocks[0][0].weight
        )

    x = checkpoint(outer, model.blocks[0](model.first(x)), use_reentrant=True)
    return model.last(model.blocks[1](model.blocks[2](x)))


class Loud(nn.Module):
    """Calls the model under test from a parent, twice, each time recomputed."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Checkpointed(nested)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(checkpoint(self.inner, x * scale, use_reentrant=False) for scale in (1.0, 0.5))


BODIES = (
    nested,
    nested_reentrant,
    sequence,
    part_of_a_block,
    the_last_layer_too,
    one_block_twice,
    function_reentrant,
    function_reentrant_nested,
)
WORKLOADS = {
    **{f.__name__: Workload(partial(Checkpointed, f), vectors(WIDTH, 4)) for f in BODIES},
    "all of it": Workload(lambda: Root(False), vectors(WIDTH, 4)),
    "all of it, reentrant": Workload(lambda: Root(True), vectors(WIDTH, 4)),
    "twice, nested": Workload(Loud, vectors(WIDTH, 4)),
}


PLANS = ("SHARD_GRAD_OP", "FULL_SHARD", "few units", "slices along in", "mixture 0")


def train(me: Member, name: str) -> None:
    train_all(me, WORKLOADS[name], lambda d: {key: plans.everything(d)[key] for key in PLANS}, steps=2)


def two_forwards_then_their_backwards(me: Member) -> None:
    """The first backward cannot know that a function of the second's is still to be recomputed, and reads parameters."""
    for mode in ("SHARD_GRAD_OP", "FULL_SHARD"):
        with naming(mode):
            pair = Pair(me, WORKLOADS["function_reentrant"], mode)
            losses = [pair.forward(pair.data(0, micro)) for micro in (0, 1)]
            for whole, mine in losses:
                (whole / 2).backward(), (mine / 2).backward()
            pair.same_gradients()


def test_two_forwards_and_functions_that_are_recomputed(ranks):
    ranks(two_forwards_then_their_backwards, world=2)


@pytest.mark.outcome(
    "a re-entrant checkpoint around a function that calls modules and reads parameters", "equal"
)
@pytest.mark.parametrize("name", WORKLOADS)
def test_training_is_that_of_one_process(ranks, name):
    ranks(train, name, world=2)
