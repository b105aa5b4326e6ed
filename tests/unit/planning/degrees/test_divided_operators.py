"""Parameters of modules that a cut divides belong to the stage where forward reads them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import osdp
from osdp.planning.degrees.chain import Chain, for_stages
from tests.unit.planning.degrees.problems import hosts_machine

WIDTH = 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH)

    def forward(self, x: Tensor, scale: Tensor | float = 1.0) -> Tensor:
        return x + self.down(torch.tanh(self.up(x * scale)))


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift, self.gain = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.ones(WIDTH))
        self.list = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.shift
        for block in self.list:
            x = block(x)
        return x * self.gain


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.begin, self.layers, self.head = nn.Linear(WIDTH, WIDTH), Layers(), nn.Linear(WIDTH, 2)
        self.first, self.last = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.ones(2))
        self.unread = nn.Parameter(torch.ones(2))
        self.register_buffer("mask", torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.begin(x * self.first))) * self.last


class Several(Net):
    """`first` is read before the blocks and behind them."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.begin(x * self.first)) * self.first) * self.last


class GivenToBlocks(Net):
    """`first` is read by two blocks, between which the model cannot be cut; parameters of `layers` are not read."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.begin(x) * self.last[0]
        for i, block in enumerate(self.layers.list):
            x = block(x, self.first) if i else block(x)
        return self.head(x)


class NotCalled(Net):
    """With layers that forward does not call: of a block, beside the blocks, and of the model."""

    def __init__(self) -> None:
        super().__init__()
        for module in (self, self.layers, self.layers.list[0]):
            module.spare = nn.Linear(WIDTH, WIDTH)


class GivenToOne(Net):
    """No stage can begin with the block that is given `first`."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.begin(x)
        for i, block in enumerate(self.layers.list):
            x = block(x, self.first) if i == 2 else block(x)
        return self.head(x) * self.last


class Table(nn.Module):
    """A table's weight is added without a call of the table; another one's is also the head's."""

    def __init__(self) -> None:
        super().__init__()
        self.begin, self.table, self.norm = (
            nn.Linear(WIDTH, WIDTH),
            nn.Embedding(2, WIDTH),
            nn.LayerNorm(WIDTH),
        )
        self.list, self.behind = nn.ModuleList(Block() for _ in range(3)), nn.Embedding(2, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.begin(x) + self.table.weight
        for block in self.list:
            x = block(x)
        return self.norm(x + self.behind.weight)


class Tied(Table):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.begin.weight.sum() + x) @ self.begin.weight.T


def chain_of(kind: type[nn.Module]) -> Chain:
    return Chain(for_stages(osdp.describe(kind(), torch.zeros(2, WIDTH))))


def parameters(chain: Chain) -> dict[str, list[str]]:
    d = chain.description
    names = {
        link.name: [p.name for i in link.operators for p in d.operators[i].parameters] for link in chain.links
    }
    return {
        link: [n for n in own if n.split(".")[-1] not in ("weight", "bias")] for link, own in names.items()
    }


def test_each_is_in_the_link_of_its_read() -> None:
    assert parameters(chain_of(Net)) == {
        "begin": ["first", "unread", "layers.shift"],
        "layers.list.0": [],
        "layers.list.1": [],
        "layers.list.2": ["layers.gain"],
        "head": ["last"],
    }


def test_what_several_read_keeps_them_together() -> None:
    chain = chain_of(GivenToBlocks)
    assert [link.name for link in chain.links] == ["begin", "layers.list.0", "head"]
    with pytest.raises(osdp.InvalidProblemError, match="into 3 parts, since first is read in several"):
        chain.check_stages(4)
    assert [link.name for link in chain_of(GivenToOne).links] == [
        "begin",
        "layers.list.0",
        "layers.list.1",
        "head",
    ]
    with pytest.raises(osdp.InvalidProblemError, match="into 2 parts, since first is read in several"):
        chain_of(Several).check_stages(3)


def test_what_forward_does_not_call_is_where_the_module_around_it_is() -> None:
    chain = chain_of(NotCalled)
    spare = {
        link.name: [n for i in link.operators if "spare" in (n := chain.description.operators[i].name)]
        for link in chain.links
    }
    assert spare == {
        "begin": [],
        "layers.list.0": ["layers.list.0.spare"],
        "layers.list.1": [],
        "layers.list.2": ["layers.spare"],
        "head": ["spare"],
    }


def test_what_is_read_outside_of_its_own_module() -> None:
    chain = chain_of(Table)
    names = {link.name: [chain.description.operators[i].name for i in link.operators] for link in chain.links}
    assert [*names] == ["begin", "list.0", "list.1", "list.2", "norm"]
    assert "table" in names["begin"] and "behind" in names["list.2"]
    with pytest.raises(
        osdp.InvalidProblemError, match=r"into 1 parts, since begin\.weight is read in several"
    ):
        chain_of(Tied).check_stages(2)


class Residual(Net):
    """A module outside of lists that reads a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.tail = Scaled()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.tail(self.layers(self.begin(x))))


class Scaled(Block):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor, scale: Tensor | float = 1.0) -> Tensor:
        return super().forward(x) * self.gain


def test_a_module_that_reads_its_own_is_a_link() -> None:
    names = [link.name for link in chain_of(Residual).links]
    assert names == ["begin", "layers.list.0", "layers.list.1", "layers.list.2", "tail", "head"]


class OneNorm(Net):
    """A module called behind the first blocks, and one that all blocks share."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.begin(x)
        for i, block in enumerate(self.layers.list):
            x = block(self.norm(x)) if i < 2 else block(x)
        return self.head(x)


class OneLinear(Net):
    def __init__(self) -> None:
        super().__init__()
        for block in self.layers.list[1:]:
            block.down = self.layers.list[0].down

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.begin(x)))


class CalledAgain(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers.list[0](self.layers(self.begin(x))))


class TiedWithin(Net):
    def __init__(self) -> None:
        super().__init__()
        self.layers.list[2].up.weight = self.layers.list[0].up.weight


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (OneNorm, ["begin", "layers.list.1", "layers.list.2", "head"]),
        (OneLinear, ["begin", "layers.list.0", "head"]),
        (CalledAgain, ["begin", "layers.list.0", "head"]),
        (TiedWithin, ["begin", "layers.list.0", "head"]),
    ],
)
def test_what_reads_a_weight_at_several_places_is_one_link(kind: type[Net], names: list[str]) -> None:
    chain = chain_of(kind)
    assert [link.name for link in chain.links] == names
    with pytest.raises(osdp.InvalidProblemError, match="is read in several"):
        chain.check_stages(len(names) + 1)


def test_stages_have_all_of_it_once() -> None:
    chain = chain_of(Net)
    whole, parts = osdp.describe(Net(), torch.zeros(2, WIDTH)), [chain.stage(0, 2), chain.stage(2, 5)]
    own = [[o for o in d.operators if o.name == ""] for d in parts]
    assert [[p.name for o in of for p in o.parameters] for of in own] == [["first", "unread"], ["last"]]
    assert [o.calls for of in own for o in of] == [0, 1]  # the model computes in the last stage
    assert sum(d.parameter_bytes for d in parts) == whole.parameter_bytes
    for field in ("saved_bytes_per_sample", "flops_per_sample"):
        assert sum(getattr(o, field) for d in parts for o in d.operators) == sum(
            getattr(o, field) for o in whole.operators
        )
    buffers = [d.buffer_bytes for d in (*parts, whole)]
    assert buffers == [20, 20, 20]  # the model's own are in each stage
    (root,) = (o for o in chain.stage(0, 5).operators if o.name == "")
    (of_whole,) = (o for o in whole.operators if o.name == "")
    assert {p.name for p in root.parameters} == {p.name for p in of_whole.parameters}
    assert root.parameter_bytes == of_whole.parameter_bytes and root.calls == of_whole.calls


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_plans_verify(stages: int) -> None:
    options: dict[str, Any] = {
        "world_size": 8,
        "hardware": hosts_machine(),
        "global_batch_size": 16,
        "gap": 0.3,
    }
    described = osdp.describe(Net(), torch.zeros(2, WIDTH))
    plan = osdp.search(described, memory="4MiB", tensor_parallel=1, pipeline_parallel=stages, **options)
    assert isinstance(plan, osdp.ParallelPlan) and osdp.verify(plan) == ""
    assert osdp.ParallelPlan.loads(plan.dumps()) == plan
    predicted = [s.plan.predicted for s in plan.stages]
    assert all(p is not None and p.operators[""].state_bytes > 0 for p in (predicted[0], predicted[-1]))
    twice = dataclasses.replace(plan, stages=(*plan.stages[:-1], plan.stages[0]))
    assert osdp.verify(twice) != "" or stages == 1
