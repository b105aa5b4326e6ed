"""optim_input: what an optimizer was made with, given instead of it, says how its state dict numbers parameters."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import OptimStateKeyType

import osdp

FSDP = osdp.FullyShardedDataParallel


def in_groups(model: nn.Sequential) -> list[dict]:
    return [{"params": model[2].weight}, {"params": [model[1].weight, model[0].weight], "lr": 0.1}]


@pytest.mark.parametrize(
    "made_with", [lambda model: list(model.parameters())[::-1], in_groups], ids=["reversed", "groups"]
)
def test_parameters_are_numbered_in_the_order_of_optim_input(made_with):
    # All parameters have one shape, so a state with another's number would load without an error.
    model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(3)))
    given = made_with(model)
    optimizer = torch.optim.Adam(given)
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, number + 1.0)
    optimizer.step()
    wanted = optimizer.state_dict()
    named = FSDP.rekey_optim_state_dict(wanted, OptimStateKeyType.PARAM_NAME, model, optim_input=given)
    for name, parameter in model.named_parameters():
        assert named["state"][name]["exp_avg"] is optimizer.state[parameter]["exp_avg"]
    back = FSDP.rekey_optim_state_dict(named, OptimStateKeyType.PARAM_ID, model, optim_input=given)
    ready = FSDP.shard_full_optim_state_dict(named, model, optim_input=given)
    for each in (back, ready):
        assert each["param_groups"] == wanted["param_groups"]
        for number, state in wanted["state"].items():
            assert each["state"][number]["exp_avg"] is state["exp_avg"]
