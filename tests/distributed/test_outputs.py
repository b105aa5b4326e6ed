"""What a module may take and return: containers, dataclasses, its own input, what is changed in place."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from harness import Member
from support import plans
from support.pair import train_all
from support.workload import Workload, squares, vectors
from torch import nn


@dataclass
class Hidden:
    state: torch.Tensor
    note: str


Couple = namedtuple("Couple", ["first", "second"])


class ReturnsDataclass(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> Hidden:
        return Hidden(torch.tanh(self.layer(x)), "kept")


class ReturnsNested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.other = nn.Linear(6, 6)

    def forward(self, hidden: Hidden, *, scale: float) -> dict[str, Any]:
        assert hidden.note == "kept"
        h = torch.tanh(self.layer(hidden.state))
        return {"a": [{"h": h}, None, 3], "b": Couple(self.other(h) * scale, ("text", h + 1))}


class Nested(nn.Module):
    """Dataclasses, dicts, lists and named tuples between modules, and out of the root."""

    def __init__(self) -> None:
        super().__init__()
        self.first = ReturnsDataclass()
        self.second = ReturnsNested()
        self.last = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        out = self.second(self.first(x), scale=0.5)
        return {
            "out": Hidden(self.last(out["b"].first + out["b"].second[1]), "kept"),
            "aux": [out["a"][0]["h"]],
        }


def nested_loss(output: dict[str, Any], target: torch.Tensor) -> torch.Tensor:
    return squares(output["out"].state, target) + output["aux"][0].square().mean()


def only_auxiliary(output: dict[str, Any], target: torch.Tensor) -> torch.Tensor:
    """The root's last layer gets no gradient; the first ones do, through an inner output."""
    return output["aux"][0].square().mean()


class Passes(nn.Module):
    """Returns its input unchanged, though it has parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class PassesSome(nn.Module):
    """Returns its input beside its result."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, torch.tanh(self.layer(x))


class Passing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.passes = Passes()
        self.some = PassesSome()
        self.last = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept, result = self.some(self.passes(self.first(x)))
        return self.last(kept + result)


class InPlace(nn.Module):
    """Changes what modules returned, in place, also through a view. Linears of sequences return views themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.middle = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.norm = nn.LayerNorm(8)
        self.last = nn.Linear(8, 4)
        self.middle[1].weight.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.middle[0](torch.relu_(self.first(x[:, None])))
        h.view(-1, 2, 4).transpose(1, 2).div_(2)
        h = self.norm(self.middle[1](h).tanh_()[:, 0] * 2)
        h[:, :3].mul_(0.5)
        h += 1
        return self.last(h).tanh_()


class ListInput(nn.Module):
    """Takes a list and keyword arguments; one argument gets no gradient."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 4)

        def forward(self, parts: list[torch.Tensor], mask: torch.Tensor | None = None) -> list[torch.Tensor]:
            out = [self.layer(p) for p in parts]
            return [o * mask for o in out] if mask is not None else out

    def __init__(self) -> None:
        super().__init__()
        self.inner = ListInput.Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(self.inner([x, x * 2], mask=(x[:, :1] > 0).to(x.dtype)))


class Detached(nn.Module):
    """Part of the forward runs without gradients: its modules have no backward this time."""

    def __init__(self) -> None:
        super().__init__()
        self.target = nn.Linear(6, 6)
        self.online = nn.Linear(6, 6)
        self.last = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            wanted = self.target(x)
        return self.last(self.online(x) - wanted) + self.online(x).detach().mean(1, keepdim=True)


WORKLOADS = {
    "nested": Workload(Nested, vectors(6, 4), nested_loss),
    "only an inner output is trained": Workload(Nested, vectors(6, 4), only_auxiliary),
    "input returned": Workload(Passing, vectors(6, 4)),
    "changed in place": Workload(InPlace, vectors(6, 4)),
    "lists and keywords": Workload(ListInput, vectors(6, 4)),
    "partly without gradients": Workload(Detached, vectors(6, 4)),
}


def train(me: Member, name: str) -> None:
    train_all(me, WORKLOADS[name], plans.corners, steps=3)


@pytest.mark.parametrize(("name", "world"), [(name, 2 + i % 2) for i, name in enumerate(WORKLOADS)])
def test_training_is_that_of_one_process(ranks, name, world):
    ranks(train, name, world=world)
