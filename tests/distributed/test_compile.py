"""torch.compile of blocks and models: gradients are those of one process, and nothing is compiled anew each step."""

from __future__ import annotations

import copy

import pytest
import torch
from harness import Member
from support import blocks, plans
from support.mixed import MixedPair
from support.pair import Pair, close, naming
from torch import nn
from torch._dynamo.utils import counters

import osdp

LOAD = blocks.workload(count=2)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.125)


def compile_each(model: nn.Module, backend: str) -> None:
    for block in model.blocks:
        block.compile(backend=backend)


def wrap_each(model: nn.Module, backend: str) -> None:
    for i, block in enumerate(model.blocks):
        model.blocks[i] = torch.compile(block, backend=backend)


def compile_all(model: nn.Module, backend: str) -> None:
    model.compile(backend=backend)


HOW = {"block.compile()": compile_each, "torch.compile(block)": wrap_each, "model.compile()": compile_all}


def train(me: Member, backend: str, when: str, how: str, names: list[str]) -> None:
    compiled = HOW[how]
    for name in names:

        def planned(description, name=name):
            every = plans.everything(description, 1)
            base, _, recompute = name.partition(", ")
            return plans.recomputed(every[base], recompute) if recompute else every[base]

        with naming(name):
            torch._dynamo.reset()
            counters.clear()
            # The reference too: a graph of one must not be run on the other.
            pair = Pair(
                me, LOAD, planned, prepare=(lambda m: compiled(m, backend)) if when == "before" else None
            )
            if when == "after":
                for model, _ in pair.both:
                    compiled(model, backend)
            pair.train(2)
            frames = counters["stats"]["unique_graphs"]
            pair.train(3)
            assert counters["stats"]["unique_graphs"] == frames, "compiled anew"
            assert frames > 0, "nothing was compiled"


MORE = pytest.mark.extras
CASES = [  # each plan is seconds of Dynamo's; "few units": each block is one
    ("eager", "before", "block.compile()", ["mixture 0"]),
    ("eager", "before", "torch.compile(block)", ["FULL_SHARD"]),
    ("eager", "after", "model.compile()", ["slices along out"]),
    ("aot_eager", "before", "block.compile()", ["FULL_SHARD, regather"]),
    ("aot_eager", "after", "block.compile()", ["few units, hold"]),
    ("aot_eager", "after", "model.compile()", ["few units, regather"]),
    pytest.param(
        "eager", "after", "model.compile()", ["NO_SHARD", "FULL_SHARD", "few units, regather"], marks=MORE
    ),
    pytest.param("aot_eager", "before", "block.compile()", ["FULL_SHARD", "slices along in"], marks=MORE),
    pytest.param("aot_eager", "after", "block.compile()", ["mixture 0", "few units"], marks=MORE),
    pytest.param("aot_eager", "after", "model.compile()", ["SHARD_GRAD_OP", "slices along out"], marks=MORE),
]


@pytest.mark.parametrize(("backend", "when", "how", "names"), CASES)
def test_compiled_blocks(ranks, backend, when, how, names):
    ranks(train, backend, when, how, names, world=2)


def low_precision(me: Member) -> None:
    """Mixed precision switches dtypes around the graphs, not inside."""
    torch._dynamo.reset()
    description = osdp.describe(LOAD.model(7, torch.float32), *LOAD.data(0, 2, torch.float32)[0])
    plan = plans.apart(osdp.Plan.uniform(description, "FULL_SHARD"))
    pair = MixedPair(me, LOAD, plan, osdp.MixedPrecision(torch.bfloat16), exact=True, optimizer=sgd)
    compile_each(pair.sharded, "aot_eager")
    pair.train(3)


def test_compiled_blocks_in_low_precision(ranks):
    ranks(low_precision, world=2)


def compiled_as_a_whole(me: Member) -> None:
    model = LOAD.model(7, torch.float32)
    model.compile(backend="eager")
    plan = osdp.Plan.uniform(LOAD.model(7, torch.float32), "FULL_SHARD")
    with pytest.raises(osdp.ShardingError, match="compile its blocks before fully_shard"):
        osdp.fully_shard(model, plan, me.group)


def test_a_model_compiled_as_a_whole_is_refused(ranks):
    ranks(compiled_as_a_whole, world=1)


def copied(me: Member) -> None:
    """Blocks of a copy are not compiled, as torch's copies are; a copy of torch.compile(model) compiles its own model."""
    pair = Pair(me, LOAD, "FULL_SHARD", prepare=lambda m: compile_each(m, "eager"))
    pair.train(1)
    outer = torch.compile(pair.sharded, backend="eager")
    made = copy.deepcopy(outer)
    assert type(made) is type(outer)
    assert made._orig_mod is not pair.sharded
    batch = pair.data(5)
    for each in (pair.whole, made):
        arguments, target = batch if each is pair.whole else pair._part(batch)
        LOAD.loss(each(*arguments), target).backward()
    wanted = dict(pair.whole.named_parameters())
    with osdp.summon_full_params(made._orig_mod, with_grads=True):
        for name, p in made._orig_mod.named_parameters():
            close(p.grad, wanted[name].grad, 1e-9, name)
    assert all(p.grad is None for p in pair.sharded.parameters())


def test_copies_of_compiled_models(ranks):
    ranks(copied, world=2)


class Scaled(blocks.Block):
    """With a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.arange(blocks.HIDDEN) / 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale


def states(me: Member) -> None:
    """Of a block that is compiled in place and has a parameter of its own, of such a layer, before and after sharding."""
    for when in ("before", "after"):
        model = nn.Sequential(Scaled(), nn.Linear(blocks.HIDDEN, 3), nn.Linear(3, 3)).double()
        wanted = copy.deepcopy(model.state_dict())
        plan = osdp.Plan.uniform(osdp.describe(model, torch.zeros(2, blocks.HIDDEN).double()), "FULL_SHARD")
        for compiled in model[:2] if when == "before" else ():
            compiled.compile(backend="eager")
        osdp.fully_shard(model, plan, me.group)
        for compiled in model[:2] if when == "after" else ():
            compiled.compile(backend="eager")
        wanted = {name: 2 * me.once(lambda value=value: value) for name, value in wanted.items()}
        model.load_state_dict(wanted)
        for name, got in {**model.state_dict(), **model[0].state_dict(prefix="0.")}.items():
            close(got, wanted[name], 0, f"{name}, compiled {when}")


def test_state_dicts_of_what_is_compiled_in_place_are_full(ranks):
    ranks(states, world=2)
