"""torch.compile breaks graphs as often as with FSDP2 and the same units; a graph without hooks runs in its cover only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import Member
from support import blocks, plans
from support.pair import Pair, close, naming
from support.workload import Workload
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import osdp
from osdp.sharding.sharded_model import runtime_of


class Straight(blocks.Blocks):
    """Without a loop: Dynamo gives up a frame that breaks inside of one, and does not count that break."""

    def __init__(self) -> None:
        super().__init__(count=3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        first, second, third = self.blocks
        return self.head(self.norm(third(second(first(self.embed(tokens))))))


LOAD = Workload(Straight, blocks.tokens, blocks.surprise)
PLANS = {
    "blocks": lambda d: osdp.Plan.uniform(d, "FULL_SHARD"),
    "operators": lambda d: plans.apart(osdp.Plan.uniform(d, "FULL_SHARD")),
}


def described() -> osdp.ModelDescription:
    return osdp.describe(LOAD.model(7, torch.float64), *LOAD.data(0, 2, torch.float64)[0])


def shard_by_fsdp2(model: nn.Module, plan: osdp.Plan, mesh: DeviceMesh) -> None:
    """The plan's units; a block that is one is wrapped itself."""
    for unit in plan.units:
        block = unit[0].rpartition(".")[0]
        whole = len(unit) > 1 and block and all(name.startswith(f"{block}.") for name in unit)
        modules = [model.get_submodule(name) for name in ([block] if whole else unit)]
        fully_shard(modules if len(modules) > 1 else modules[0], mesh=mesh)
    fully_shard(model, mesh=mesh)


def compile_model(model: nn.Module, backend: str) -> Callable[..., Any]:
    return torch.compile(model, backend=backend)


def compile_in_place(model: nn.Module, backend: str) -> Callable[..., Any]:
    model.compile(backend=backend)
    return model


def compile_blocks(model: nn.Module, backend: str) -> Callable[..., Any]:
    for block in model.blocks:
        block.compile(backend=backend)
    return model


def breaks_of(me: Member, model: nn.Module, called: Callable[..., Any]) -> int:
    """In three steps; none after the first. Losses and parameters are those of one process."""
    torch._dynamo.reset()
    counters.clear()
    whole = LOAD.model(7, torch.float64)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.125) for m in (whole, model)]
    seen = []
    for step in range(3):
        (tokens,), target = LOAD.data(step, 4, torch.float64)
        wanted = LOAD.loss(whole(tokens), target)
        loss = LOAD.loss(called(me.part(tokens)), me.part(target))
        close(me.mean(loss), wanted, 1e-9, f"loss of step {step}")
        for each in (wanted, loss):
            each.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        seen.append((counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())))
    assert seen[0][0] > 0, "nothing was compiled"
    assert seen == seen[:1] * 3, f"compiled anew: graphs and breaks after each step {seen}"
    return seen[0][1]


def beside_fsdp2(me: Member, units: str, compile_it: Callable[..., Any], backend: str) -> tuple[int, int]:
    plan = PLANS[units](described())
    theirs = LOAD.model(7, torch.float64)
    shard_by_fsdp2(theirs, plan, DeviceMesh.from_group(me.group, "cpu"))
    ours = LOAD.model(7, torch.float64)
    osdp.fully_shard(ours, plan, me.group)
    return breaks_of(me, ours, compile_it(ours, backend)), breaks_of(me, theirs, compile_it(theirs, backend))


# A break for each module that is called to gather: embedding, three blocks, norm and head; or each of their operators.
@pytest.mark.parametrize(
    ("compile_it", "units", "breaks"),
    [
        pytest.param(compile_model, "blocks", 6, marks=pytest.mark.extras),
        (compile_in_place, "blocks", 6),
        pytest.param(compile_blocks, "blocks", 0, marks=pytest.mark.extras),
        pytest.param(compile_model, "operators", 9, marks=pytest.mark.extras),
        (compile_blocks, "operators", 3),
    ],
)
def test_as_many_breaks_as_fsdp2(ranks, compile_it, units, breaks):
    backend = "aot_eager" if compile_it is compile_model else "eager"
    for ours, theirs in ranks(beside_fsdp2, units, compile_it, backend, world=2):
        assert ours <= theirs
        assert ours == breaks


def memory_as_planned(me: Member) -> None:
    """A model that is compiled as a whole is gathered unit by unit."""
    reserved = []
    for compiled in (False, True):
        torch._dynamo.reset()
        pair = Pair(me, LOAD, PLANS["blocks"])
        if compiled:
            pair.sharded.compile(backend="aot_eager")
        pair.train(3)
        runtime = runtime_of(pair.sharded).runtime
        reserved.append((runtime.arena_bytes(), runtime.statistics()["gathered_bytes"]))
    assert reserved[0] == reserved[1]


def test_memory_of_a_compiled_model_is_as_planned(ranks):
    ranks(memory_as_planned, world=2)


PARTS = {  # what else may run a graph that was made within a cover, or a part of it
    "a layer": lambda model, x: model.blocks[0].up(model.blocks[0].norm(x)),
    "a block": lambda model, x: model.blocks[1](x),
    "its forward": lambda model, x: model.blocks[1].forward(x),
    "the class's forward": lambda model, x: type(model.blocks[1]).forward(model.blocks[1], x),
    "checkpoint": lambda model, x: torch.utils.checkpoint.checkpoint(model.blocks[1], x, use_reentrant=False),
}


def parts(me: Member, backend: str) -> None:
    torch._dynamo.reset()
    pair = Pair(me, LOAD, PLANS["blocks"])
    pair.sharded.compile(backend=backend)
    pair.train(1)
    x = torch.ones(2, 3, blocks.HIDDEN, dtype=torch.float64)
    functions = {name: torch.compile(part, backend=backend) for name, part in PARTS.items()}
    # The same code object that was compiled within the cover, called from outside of it.
    frame = torch.compile(blocks.Block.forward, backend=backend)
    functions["a frame"] = lambda model, x: frame(model.blocks[2], x)
    for name, function in functions.items():
        uncompiled = PARTS.get(name, lambda model, x: blocks.Block.forward(model.blocks[2], x))
        mine, wanted = x.clone().requires_grad_(), x.clone().requires_grad_()
        got, right = function(pair.sharded, mine), uncompiled(pair.whole, wanted)
        close(got, right, 1e-9, name)
        for each in (got, right):
            each.square().sum().backward()
        close(mine.grad, wanted.grad, 1e-9, f"gradient of the input of {name}")
        pair.same_gradients()
        pair.update()
    pair.train(2)
    pair.evaluate()
    with pytest.raises(IndexError):
        pair.sharded(torch.full((2, 3), blocks.VOCABULARY))
    pair.train(2)


@pytest.mark.parametrize("backend", [pytest.param("eager", marks=pytest.mark.extras), "aot_eager"])
def test_graphs_run_within_their_cover_only(ranks, backend):
    ranks(parts, backend, world=2)


def full_graphs(me: Member) -> None:
    torch._dynamo.reset()
    pair = Pair(me, LOAD, PLANS["blocks"])
    for block in pair.sharded.blocks:
        block.compile(backend="aot_eager", fullgraph=True)
    pair.train(2)
    torch._dynamo.reset()
    pair = Pair(me, LOAD, PLANS["blocks"])
    pair.sharded.compile(backend="aot_eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="single units of the plan"):
        pair.forward(pair.data(0))
    with torch.compiler.set_stance("force_eager"):
        pair.train(2)


def test_full_graphs_of_units_and_not_of_the_model(ranks):
    ranks(full_graphs, world=2)


def by_blocks(me: Member, recomputed: bool) -> nn.Module:
    """In FSDP2's manner."""
    torch._dynamo.reset()
    model = LOAD.model(7, torch.float64)
    for i, block in enumerate(model.blocks):
        if recomputed:
            model.blocks[i] = block = checkpoint_wrapper(block)
        osdp.fully_shard(block, process_group=me.group)
    return osdp.fully_shard(model, process_group=me.group)


def full_graphs_by_blocks(me: Member) -> None:
    for recomputed in (False, True):
        model = by_blocks(me, recomputed)
        for block in model.blocks:
            block.compile(backend="aot_eager", fullgraph=True)
        with naming(f"{recomputed=}"):
            assert breaks_of(me, model, model) == 0
            assert counters["stats"]["unique_graphs"] == 1
    model = by_blocks(me, False)
    model.compile(backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="single units of the plan"):
        model(LOAD.data(0, 2, torch.float64)[0][0])
    model.compile(backend="eager")
    assert breaks_of(me, model, model) <= 3  # at the blocks, as with FSDP2


@pytest.mark.parametrize("world", [1, 2])
def test_full_graphs_of_blocks_without_a_plan(ranks, world):
    ranks(full_graphs_by_blocks, world=world)


def by_what_torch_compile_returned(me: Member) -> None:
    """OSDP's functions take it for the model."""
    torch._dynamo.reset()
    pair = Pair(me, LOAD, PLANS["blocks"])
    compiled = torch.compile(pair.sharded, backend="eager")
    assert runtime_of(compiled) is runtime_of(pair.sharded)
    (tokens,), target = pair.data(0)
    pair.workload.loss(pair.whole(tokens), target).backward()
    with osdp.no_sync(compiled):
        pair.workload.loss(compiled(me.part(tokens)), me.part(target)).backward()
    pair.sharded.zero_grad()
    pair.workload.loss(compiled(me.part(tokens)), me.part(target)).backward()
    norm = osdp.clip_grad_norm_(compiled, 0.01)
    close(norm, torch.nn.utils.clip_grad_norm_(pair.whole.parameters(), 0.01), 1e-9, "norm")
    pair.same_gradients()


def test_functions_take_what_torch_compile_returned(ranks):
    ranks(by_what_torch_compile_returned, world=2)


def many_blocks(me: Member) -> None:
    """More of them than Dynamo compiles a function for: all run the first one's graph."""
    torch._dynamo.reset()
    counters.clear()
    pair = Pair(me, blocks.workload(count=12), PLANS["blocks"])
    for block in pair.sharded.blocks:
        block.compile(backend="eager")
    pair.train(2)
    assert counters["stats"]["unique_graphs"] == 1


def test_blocks_share_a_graph(ranks):
    ranks(many_blocks, world=2)
