"""A model cut into two stages, run one after the other in one process: what it computes is the model's, or is noticed."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from osdp.errors import ShardingError
from osdp.parallel.crossing import Crossing
from osdp.parallel.other_stage import Passing
from osdp.parallel.output_shapes import OutputShapes
from osdp.parallel.stage_module import INPUT, cut_to_stage, only_tensor

WIDTH = 4


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.stem.size = 3  # type: ignore[assignment]
        self.pool, self.tail = nn.AvgPool1d(2), nn.Sequential(nn.Linear(WIDTH // 2, WIDTH), nn.Tanh())
        self.scale = nn.Parameter(torch.ones(WIDTH // 2))

    def begin(self, x: Tensor) -> Tensor:
        return self.pool(self.stem(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(self.tail(self.begin(x)))


class InPlace(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x += 1
        return self.pool(self.tail(self.pool(x)))


class Asks(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.begin(x.to(self.tail[0].weight.dtype) * self.stem.size) + len(self.stem.weight)
        return self.pool(self.tail(x))


class Alike(Net):
    """All that passes has one shape."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.tail = nn.AvgPool1d(1), nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())


class Gated(Alike):
    def forward(self, x: Tensor) -> Tensor:
        x = self.begin(x)
        return torch.where(x.sum(-1, keepdim=True) > 0, self.tail(x), 1.0)


class WrittenTo(Alike):
    def forward(self, x: Tensor) -> Tensor:
        x, total = self.begin(x), torch.zeros(WIDTH, dtype=x.dtype)
        total[:] = torch.nan_to_num(x[0])
        return self.tail(x) + total


class Scaled(Alike):
    def forward(self, x: Tensor) -> Tensor:
        return self.tail(self.begin(x)) * torch.nan_to_num(self.scale).sum()


class Twice(Alike):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = torch.nan_to_num(self.tail(self.begin(x)))
        return x


def stages_of(model: nn.Module, entry: str) -> list[tuple[nn.Module, Passing]]:
    stages = []
    for stage in (0, 1):
        part = copy.deepcopy(model)
        later = {id(p) for p in part.get_submodule(entry).parameters()}

        def of_module(module: nn.Module, at: str, later: set[int] = later) -> set[int]:
            # The pooling's activations count for the first stage.
            return {int(id(p) in later) for p in module.parameters()} or ({0} if at == "pool" else set())

        owners: Any = SimpleNamespace(
            of_parameter=lambda p, later=later: int(id(p) in later),
            of_module=of_module,
            runs=lambda at: False,
        )
        stages.append((part, cut_to_stage(part, owners, stage, ["stem", entry])))
    return stages


def run(stages: list[tuple[nn.Module, Passing]], x: Tensor) -> Tensor:
    (first, _), (second, _) = stages
    result: Tensor = second(first(x), **{f"{INPUT}0": x})
    return result


@pytest.mark.parametrize("kind", [Net, InPlace, Asks])
@pytest.mark.parametrize("entry", ["tail", "tail.0"])
def test_two_stages_compute_what_the_model_does(kind: type[nn.Module], entry: str) -> None:
    torch.manual_seed(0)
    model, x = kind().double(), torch.randn(2, WIDTH, dtype=torch.float64)
    stages = stages_of(model, entry)
    assert torch.equal(run(stages, x), model(x))
    assert not any(passing.elsewhere and passing.elsewhere.found for _, passing in stages)


@pytest.mark.parametrize(
    ("kind", "name"), [(Gated, "stem"), (WrittenTo, "stem"), (Scaled, "scale"), (Twice, "stem")]
)
def test_what_depends_on_another_stage_without_being_nan(kind: type[nn.Module], name: str) -> None:
    stages = stages_of(kind().double(), "tail")
    result = run(stages, torch.randn(2, WIDTH, dtype=torch.float64))
    assert result.isfinite().all() and [p.elsewhere and p.elsewhere.found for _, p in stages] == ["", name]


class WritesAndTransposes(nn.Module):
    """What the second stage's first module does with its input."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.tail = nn.Sequential(nn.ReLU(inplace=True), Transposed(), nn.Linear(2, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(self.stem(x))


class Transposed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mT


def test_the_gradient_of_what_was_received_can_be_sent() -> None:
    torch.manual_seed(0)
    model, x = WritesAndTransposes().double(), torch.randn(3, 2, WIDTH, dtype=torch.float64)
    (first, _), (second, _) = stages_of(model, "tail")
    received = first(x).detach().requires_grad_()
    (found,) = torch.autograd.grad(second(received, **{f"{INPUT}0": x}).square().sum(), received)
    inside = model.stem(x).detach().requires_grad_()
    (wanted,) = torch.autograd.grad(model.tail(inside * 1).square().sum(), inside)
    assert found.is_contiguous() and torch.equal(found, wanted)


class Pair(nn.Module):
    """Returns more than a tensor, and draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        y = self.inner(x + torch.rand(()))
        return y, {"sum": y.sum(-1), "index": y.argmax(-1)}


class Asking(Pair):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x) if x.sum() > 0 else None


def test_modules_of_other_stages_return_what_they_do_in_shape() -> None:
    model = nn.Module()
    model.pair, model.asking, model.other = Pair(), Asking(), Pair()
    before = torch.get_rng_state()
    shapes = OutputShapes(model)
    passing = Passing(1, shapes=shapes)
    passing.received = torch.zeros(3, WIDTH, dtype=torch.bfloat16)
    given = torch.zeros(3, WIDTH, dtype=torch.bfloat16)
    y, more = passing.nothing("pair", "pair", (given,), {})
    assert y.shape == (3, 2 * WIDTH) and y.dtype == torch.bfloat16 and y.isnan().all()
    assert more["sum"].shape == (3,) and more["sum"].isnan().all() and more["index"].dtype == torch.int64
    assert shapes.of("other", (given,), {}) is shapes.of("pair", (given,), {})  # they are alike
    for name, arguments in (("asking", (given,)), ("pair", (object(),))):  # asks for values, gets an object
        assert passing.nothing(name, name, arguments, {}).shape == (3, WIDTH)
    passing.captured = given  # behind the stage nothing larger, in the same structure
    y, more = passing.nothing("pair", "pair", (given,), {})
    assert y.shape == (3, WIDTH) and more["sum"].shape == (3,)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_blocks_leave_in_an_argument_is_compared() -> None:
    def crossing(shared: Any) -> Crossing:
        return Crossing.of((torch.zeros(2), shared), {}, "0")

    bias = torch.ones(2)
    empty, full = SimpleNamespace(bias=None), SimpleNamespace(bias=bias)
    assert crossing({}) != crossing({"bias": bias}) == crossing({"bias": bias.clone()})
    assert crossing(empty) != crossing(full) == crossing(copy.deepcopy(full))
    assert crossing({"step": 1}) != crossing({"step": 2})
    assert crossing([full]) != crossing([empty])


def test_the_last_stage_passes_the_logits_on() -> None:
    """Sparse models of transformers have a loss of their routers before them."""
    logits, one = torch.zeros(2, 3), torch.tensor(1.0)
    for output in (logits, (torch.arange(2), one, logits), {"aux_loss": one, "logits": logits}):
        assert only_tensor(output) is logits
    assert only_tensor((one,)) is one
    with pytest.raises(ShardingError, match="a tuple, has no floating-point tensor"):
        only_tensor((torch.arange(2),))
