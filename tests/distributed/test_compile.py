"""torch.compile of blocks inside of units: gradients are those of one process, and nothing is compiled anew each step."""

from __future__ import annotations

import pytest
import torch
from harness import Member
from support import blocks, plans
from support.pair import Pair, naming
from torch import nn
from torch._dynamo.utils import counters

LOAD = blocks.workload(count=2)


def compile_each(model: nn.Module, backend: str) -> None:
    for block in model.blocks:
        block.compile(backend=backend)


def wrap_each(model: nn.Module, backend: str) -> None:
    for i, block in enumerate(model.blocks):
        model.blocks[i] = torch.compile(block, backend=backend)


def train(me: Member, backend: str, when: str, how: str) -> None:
    torch._dynamo.reset()
    compiled = {"block.compile()": compile_each, "torch.compile(block)": wrap_each}[how]
    for name in ("NO_SHARD", "FULL_SHARD", "mixture 0", "recomputed"):

        def planned(description, name=name):
            every = plans.everything(description, 1)
            return plans.recomputed(every["FULL_SHARD"], "regather") if name == "recomputed" else every[name]

        with naming(name):
            counters.clear()
            models = []

            def prepare(model: nn.Module, models=models) -> None:
                models.append(model)
                if when == "before" and len(models) == 2:  # not the reference
                    compiled(model, backend)

            pair = Pair(me, LOAD, planned, prepare=prepare)
            if when == "after":
                compiled(pair.sharded, backend)
            pair.train(2)
            frames = counters["stats"]["unique_graphs"]
            pair.train(3)
            assert counters["stats"]["unique_graphs"] == frames, "compiled anew"
            assert frames > 0, "nothing was compiled"


@pytest.mark.parametrize("how", ["block.compile()", "torch.compile(block)"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_blocks(ranks, backend, when, how):
    ranks(train, backend, when, how, world=2)
