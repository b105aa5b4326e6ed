"""What differs in torch while a model is sharded is what docs/torch.md lists; afterwards nothing does."""

from __future__ import annotations

import gc
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Member, Pool
from support import plans
from torch import nn
from torch.nn.utils import clip_grad

import osdp
from osdp.sharding.resharding import Resharding
from osdp.sharding.sharded_model import sharded_models
from osdp.sharding.torch_patches.install import leave_torch

PAGE = Path(__file__).parents[2] / "docs" / "torch.md"
FIRST_CELL, NAME = re.compile(r"^\| (`torch[^|]*) \|", re.MULTILINE), re.compile(r"`(torch[\w.]*)`")


def torch_now() -> dict[str, Any]:
    """Every function and class attribute of torch's modules, by name, and what its dicts of global hooks hold."""
    found: dict[str, Any] = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "torch" or not isinstance(module, types.ModuleType):
            continue
        for key, value in list(vars(module).items()):
            kind = type(value)  # not isinstance: some objects warn when they are asked for their class
            if kind is types.FunctionType:
                found[f"{name}.{key}"] = value
            elif issubclass(kind, type) and value.__module__ == name:
                methods = ((k, v) for k, v in vars(value).items() if type(v) is types.FunctionType)
                found |= {f"{name}.{key}.{k}": v for k, v in methods}
            elif issubclass(kind, dict) and "hook" in key:
                found[f"{name}.{key}"] = tuple(value.values())
    for name in ("get_total_norm", "clip_grads_with_norm_", "clip_grad_norm_"):
        # torch wraps them in no_grad, and the wrapper's closure holds them.
        wrapper = getattr(clip_grad, f"_{name}", None) or getattr(clip_grad, name)
        found[f"torch.nn.utils.clip_grad.{name}"] = wrapper.__closure__[0].cell_contents
    return found


def changed(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    return {
        name for name, value in before.items() if after.get(name) is not value and after.get(name) != value
    }


def model_of(me: Member) -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
    return osdp.fully_shard(
        model, plans.uniform(osdp.describe(model, torch.zeros(2, 4)))["FULL_SHARD"], process_group=me.group
    )


def unsharded(me: Member) -> dict[str, Any]:
    optimizer = torch.optim.SGD(model_of(me).parameters(), lr=0.1)
    optimizer.step()  # torch wraps it at its first use
    del optimizer
    gc.collect()
    assert not sharded_models(), "another case's model is alive"
    return torch_now()


def as_found(me: Member) -> None:
    before = unsharded(me)
    model = model_of(me)
    other = model_of(me)
    model(torch.ones(2, 4)).sum().backward()
    listed = {name for cell in FIRST_CELL.findall(PAGE.read_text()) for name in NAME.findall(cell)}
    assert changed(before, torch_now()) == listed, changed(before, torch_now()) ^ listed
    del model
    gc.collect()
    assert changed(before, torch_now()) == listed
    with Resharding(other, lent=True):  # as at a first forward
        leave_torch()  # as if another model, the last one in sight, were collected meanwhile
    assert changed(before, torch_now()) == listed
    del other
    gc.collect()
    assert not changed(before, torch_now())


def under_another_library(me: Member) -> None:
    """It replaced what OSDP had replaced, and keeps it."""
    before = unsharded(me)
    model = model_of(me)
    ours = torch.optim.Optimizer.state_dict

    def theirs(self: torch.optim.Optimizer) -> dict[str, Any]:
        return {**ours(self), "theirs": True}

    torch.optim.Optimizer.state_dict = theirs  # type: ignore[method-assign]
    try:
        for _ in range(2):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            saved = optimizer.state_dict()
            assert saved["theirs"]
            assert saved["state"][0]["momentum_buffer"].shape == (8, 4)  # in full: a DTensor
            del model, optimizer, saved
            gc.collect()
            assert changed(before, torch_now()) == {"torch.optim.optimizer.Optimizer.state_dict"}
            model = model_of(me)
    finally:
        torch.optim.Optimizer.state_dict = ours  # type: ignore[method-assign]
    del model
    gc.collect()
    assert not changed(before, torch_now())


class Collecting(nn.Module):
    """Collects garbage in its forward on one rank, also where rank 0 traces it."""

    def __init__(self, rank: int, collects: int) -> None:
        super().__init__()
        self.first, self.last, self.collects = nn.Linear(4, 8), nn.Linear(8, 4), rank == collects

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.collects:
            gc.collect()
        return self.last(self.first(x).tanh())


def collected_on_one_rank(me: Member) -> None:
    """The last registered model is garbage while another is taken off for a trace, which one rank notices."""
    plain = unsharded(me)["torch.optim.optimizer.Optimizer.state_dict"]
    for collects in range(me.world):
        gc.collect()
        garbage = [model_of(me)]
        garbage.append(garbage)
        model = Collecting(me.rank, collects)
        for part in (model.first, model.last, model):
            osdp.fully_shard(part)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        del garbage
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
            installed = me.everywhere(torch.optim.Optimizer.state_dict is not plain)
            assert all(installed), installed
            optimizer.step()
        del model, optimizer


@pytest.fixture(scope="module")
def fresh() -> Iterator[Pool]:
    """Ranks that no other test's models live on."""
    pool = Pool(2)
    yield pool
    pool.close()


def test_torch_is_left_as_it_was_found(fresh: Pool) -> None:
    fresh.run(as_found, world=2)


def test_what_another_library_has_replaced_stays(fresh: Pool) -> None:
    fresh.run(under_another_library, world=2)


def test_garbage_of_one_rank_takes_nothing_from_models_that_are_taken_off(fresh: Pool) -> None:
    fresh.run(collected_on_one_rank, world=2)
