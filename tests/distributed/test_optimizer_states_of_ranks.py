"""Optimizers that ranks made in other orders, or over other parameters, when their states are gathered."""

from __future__ import annotations

import pytest
import torch
from harness import Member
from support.pair import SEED, adamw, close
from torch import nn

import osdp

FSDP = osdp.FullyShardedDataParallel


def net() -> nn.Module:
    torch.manual_seed(SEED)
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))


def other_orders(me: Member) -> None:
    plain = net()
    model = FSDP(net(), me.group)
    order = list(model.parameters())
    both = [(plain, adamw(plain.parameters())), (model, adamw(reversed(order) if me.rank else order))]
    torch.manual_seed(3)
    x = torch.randn(2 * me.world, 4)
    for (each, optimizer), data in zip(both, (x, me.part(x)), strict=True):
        each(data).square().mean().backward()
        optimizer.step()
    found = FSDP.optim_state_dict(model, both[1][1])["state"]
    names = [name for name, _ in plain.named_parameters()]
    assert list(found) == names
    for name, state in zip(names, both[0][1].state_dict()["state"].values(), strict=True):
        close(found[name]["exp_avg"], state["exp_avg"], 1e-5, name)
    full = FSDP.full_optim_state_dict(model, both[1][1])
    ready = FSDP.scatter_full_optim_state_dict(full if me.rank == 0 else None, model, optim=both[1][1])
    both[1][1].load_state_dict(ready)
    again = FSDP.optim_state_dict(model, both[1][1])["state"]
    for name in names:
        close(again[name]["exp_avg_sq"], found[name]["exp_avg_sq"], 0, name)


def test_the_order_of_an_optimizers_parameters_may_differ(ranks):
    ranks(other_orders, world=2)


def other_parameters(me: Member) -> None:
    model = FSDP(net(), me.group)
    optimizer = adamw(list(model.parameters())[me.rank :])
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    with pytest.raises(osdp.ShardingError, match=r"'0.weight' differs between rank 1"):
        FSDP.optim_state_dict(model, optimizer)
    model(torch.ones(2, 4)).sum().backward()


def test_states_of_other_parameters_are_refused(ranks):
    ranks(other_parameters, world=2)
