"""torch.compile of GPT-2 and Llama, of blocks and whole: losses and gradients of the eager model in one process."""

from __future__ import annotations

import families
import pytest
import torch
from family_training import SEED, plans, train
from harness import Member
from support.pair import naming
from torch import nn
from torch._dynamo.utils import counters

import osdp


def blocks_of(model: nn.Module) -> nn.ModuleList:
    return model.transformer.h if hasattr(model, "transformer") else model.model.layers


def compile_blocks(model: nn.Module, backend: str) -> None:
    for block in blocks_of(model):
        block.compile(backend=backend)


def compile_model(model: nn.Module, backend: str) -> None:
    model.compile(backend=backend)


def trained(me: Member, name: str, plan: osdp.Plan, how: str, backend: str) -> None:
    """`how`: "blocks before" are compiled before sharding; "blocks", or the "whole", after it."""
    torch._dynamo.reset()
    counters.clear()
    whole, sharded = (families.model(name, seed) for seed in (SEED, SEED + me.rank))
    if how == "blocks before":
        compile_blocks(sharded, backend)
    osdp.fully_shard(sharded, plan, process_group=me.group)
    if how != "blocks before":
        {"blocks": compile_blocks, "whole": compile_model}[how](sharded, backend)
    graphs: list[int] = []
    train(me, name, whole, sharded, after_step=lambda: graphs.append(counters["stats"]["unique_graphs"]))
    assert graphs[0] > 0, "nothing was compiled"
    assert graphs[1:] == graphs[:1] * 2, f"compiled anew: {graphs}"


def train_under_each_plan(me: Member, name: str, how: str, backend: str) -> None:
    for what, plan in plans(name, me.world).items():
        if what != "NO_SHARD":
            with naming(what):
                trained(me, name, plan, how, backend)


@pytest.mark.parametrize(
    ("how", "backend"), [("blocks before", "aot_eager"), ("blocks", "inductor"), ("whole", "inductor")]
)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_compiled_training_is_that_of_one_process(ranks, name, how, backend):
    ranks(train_under_each_plan, name, how, backend, world=2, timeout_s=400)
