"""Frozen copies of trained modules, whose parameters scripts move towards those of the originals."""

from __future__ import annotations

import copy

import torch
from torch import nn

import osdp
from osdp.description.frozen_copies import frozen_copies


def shapes_of(*names: str) -> dict[str, tuple[int, ...]]:
    return {name: (8, 6) if name.endswith("weight") else (8,) for name in names}


def test_copies_are_found_beside_and_inside_their_originals() -> None:
    student = [f"student.layers.{n}.{p}" for n in range(2) for p in ("weight", "bias")]
    teacher = [name.replace("student", "teacher") for name in student]
    wrapped = [name.replace("student", "ema.module") for name in student]
    head = ["head.weight"]
    assert frozen_copies(shapes_of(*student, *teacher, *head), [*student, *head]) == {*student, *teacher}
    assert frozen_copies(shapes_of(*student, *wrapped), student) == {*student, *wrapped}
    bare = [name.removeprefix("student.") for name in student]
    assert frozen_copies(shapes_of(*bare, *teacher), bare) == {*bare, *teacher}


def test_layers_that_are_frozen_are_no_copies() -> None:
    layers = [f"layers.{n}.{p}" for n in range(4) for p in ("weight", "bias")]
    assert not frozen_copies(shapes_of(*layers), layers[4:])
    # Another shape, or a parameter more than the trained one has.
    other = {**shapes_of("q.a.weight", "k.a.weight"), "k.a.weight": (4, 6)}
    assert not frozen_copies(other, ["q.a.weight"])
    assert not frozen_copies(shapes_of("q.a.weight", "k.a.weight", "k.b.weight"), ["q.a.weight"])
    assert not frozen_copies(shapes_of("q.a.weight"), []) and not frozen_copies({}, [])


class Momentum(nn.Module):
    """As MoCo: the keys' encoder gets new data in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8))
        self.keys = copy.deepcopy(self.queries).requires_grad_(False)
        self.head = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for query, key in zip(self.queries.parameters(), self.keys.parameters(), strict=True):
                key.data = key.data * 0.9 + query.data * 0.1
            keys = self.keys(x)
        return (self.head(self.queries(x)) * nn.functional.normalize(keys)).sum()


def test_a_description_is_the_same_each_time_and_slices_no_copy() -> None:
    """Memory that a parameter left is used again: what is there must not be taken for the parameter."""
    model = Momentum()
    described = {osdp.describe(model, torch.randn(4, 6)).dumps() for _ in range(8)}
    assert len(described) == 1
    operators = osdp.ModelDescription.loads(described.pop()).operators
    assert {o.name for o in operators if o.split_shape is not None} == {"head"}
