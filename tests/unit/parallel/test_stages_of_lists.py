"""A model cut to a stage keeps its lists of modules, through which forward goes."""

from types import SimpleNamespace
from typing import Any

from torch import nn

from osdp.parallel.stage_module import StandIn, cut_to_stage


def test_a_list_whose_modules_are_all_of_another_stage() -> None:
    model: Any = nn.Module()
    model.blocks, model.head = nn.ModuleList(nn.Linear(2, 2) for _ in range(2)), nn.Linear(2, 2)
    owners: Any = SimpleNamespace(
        of_module=lambda module, at: {int(at.startswith("head"))},
        of_parameter=lambda parameter: 1,
        runs=lambda at: False,
    )
    cut_to_stage(model, owners, 1, ["blocks.0", "head"])
    assert [type(block) for block in model.blocks] == [StandIn, StandIn]
    assert isinstance(model.head, nn.Linear)
