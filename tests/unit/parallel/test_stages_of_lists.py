"""A model cut to a stage keeps its lists of modules, through which forward goes, and begins where gradients pass."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import osdp
from osdp.parallel.stage_module import ModuleOfOtherStage, cut_to_stage


def test_a_list_whose_modules_are_all_of_another_stage() -> None:
    model: Any = nn.Module()
    model.blocks, model.head = nn.ModuleList(nn.Linear(2, 2) for _ in range(2)), nn.Linear(2, 2)
    owners: Any = SimpleNamespace(
        of_module=lambda module, at: {int(at.startswith("head"))},
        of_parameter=lambda parameter: 1,
        runs=lambda at: False,
    )
    cut_to_stage(model, owners, 1, ["blocks.0", "head"])
    assert [type(block) for block in model.blocks] == [ModuleOfOtherStage, ModuleOfOtherStage]
    assert isinstance(model.head, nn.Linear)


class Reentrant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.head, self.stem(x), use_reentrant=True)


def test_a_stage_that_begins_within_a_reentrant_checkpoint() -> None:
    model: Any = Reentrant()
    owners: Any = SimpleNamespace(
        of_module=lambda module, at: {int(at == "head")},
        of_parameter=lambda parameter: int(any(parameter is p for p in head)),
        runs=lambda at: False,
    )
    head = list(model.head.parameters())
    passing = cut_to_stage(model, owners, 1, ["stem", "head"])
    x = torch.zeros(1, 2)
    with torch.no_grad():
        assert model(x, osdp_input_0=x).shape == (1, 2)  # an evaluation
    with pytest.raises(osdp.ShardingError, match="use_reentrant=False"):
        model(x.requires_grad_(), osdp_input_0=x)
    assert passing.received is None
