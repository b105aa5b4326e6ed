"""What a stage is predicted to hold of parameters and buffers is what its module holds, wherever the model is cut."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import osdp
from osdp.parallel.owners import Owners
from osdp.parallel.parallelize import _entries
from osdp.parallel.stage_module import cut_to_stage
from tests.unit.planning.degrees.problems import hosts_machine

WIDTH, LENGTH, BLOCKS = 4, 6, 4


class Block(nn.Module):
    """Has a buffer that a layer of its own reads, and one that all blocks share."""

    def __init__(self, mask: Tensor | None) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.BatchNorm1d(LENGTH), nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH)
        self.register_buffer("mask", mask)
        self.held = Held(5)

    def forward(self, x: Tensor, bias: Tensor | float = 0.0) -> Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x)))) + bias


class Held(nn.Module):
    """Computes nothing: others read its buffer."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("values", torch.ones(size))


class Layers(nn.Module):
    """Computes nothing, but has a buffer that blocks get."""

    def __init__(self, mask: Tensor | None) -> None:
        super().__init__()
        self.register_buffer("even", torch.ones(WIDTH))
        self.list = nn.ModuleList(Block(mask) for _ in range(BLOCKS))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.list:
            x = block(x, self.even)
        return x


class Net(nn.Module):
    def __init__(self, shared: bool = False) -> None:
        super().__init__()
        self.table, self.before, self.behind = Held(7), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
        self.layers = Layers(torch.ones(LENGTH, 1) if shared else None)
        self.register_buffer("own", torch.ones(11))

    def forward(self, x: Tensor) -> Tensor:
        return self.behind(self.layers(self.before(x)))


class Computes(Net):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.behind(self.layers(self.before(x)))) * 2


@pytest.mark.parametrize("kind", [Net, Computes])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("stages", [1, 2, 3, 6])
def test_bytes_predicted_are_those_held(kind: type[Net], shared: bool, stages: int) -> None:
    model = kind(shared)
    plan = osdp.search(
        model,
        (torch.zeros(2, LENGTH, WIDTH),),
        memory="4MiB",
        world_size=stages,
        hardware=hosts_machine(),
        global_batch_size=8,
        pipeline_parallel=stages,
        tensor_parallel=1,
        gap=0.3,
    )
    assert osdp.verify(plan) == ""
    if not isinstance(plan, osdp.ParallelPlan):
        return
    held = []
    for stage, part in enumerate(plan.stages):
        own = copy.deepcopy(model)
        cut_to_stage(own, Owners(own, plan), stage, _entries(plan))
        d = part.plan.description
        assert d.parameter_bytes == sum(p.nbytes for p in own.parameters())
        assert d.buffer_bytes == sum(b.nbytes for b in own.buffers()), part.modules
        held.append(d.buffer_bytes)
    assert stages == 1 or all(n >= 4 * (7 + 11) for n in held)
