"""Parts over other ranks, on several levels: ranks of an expert by itself, its group's, and all."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from harness import Member
from support.experts import FSDP, WIDTH, Mixture, groups_of, mixture, new_mixture, own_group
from support.pair import close
from torch import nn

import osdp
from osdp.ranks.process_groups import group_of_ranks
from osdp.sharding.nested_models import parts_of, with_parts


class Around(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.before, self.body = nn.Linear(WIDTH, WIDTH).double(), body

    def forward(self, x):
        return self.body(self.before(x))


def on_three_levels(me: Member) -> None:
    """One expert, called by both layers, frozen in part; a part of it is each rank's own. The model is wrapped twice."""
    group = own_group(me)
    alone = group_of_ranks([dist.get_process_group_ranks(me.group)[me.rank]])

    def wrap(model: Mixture, group) -> nn.Module:
        expert = model.layers[0].expert
        expert.up.bias.requires_grad_(False)
        expert.down = FSDP(expert.down, alone)
        for layer in model.layers:
            layer.expert = FSDP(expert, group) if layer is model.layers[0] else model.layers[0].expert
        return FSDP(Around(FSDP(model, me.group)), me.group)

    model = new_mixture(me, wrap, group)
    names = ["body.layers.0.expert", "body.layers.0.expert.down"]
    assert [name for name, _, _ in parts_of(model)] == names
    whole = Around(mixture(0, 0))
    whole.body.layers[1].expert = whole.body.layers[0].expert
    whole.load_state_dict(model.state_dict())
    whole.body.layers[0].expert.up.bias.requires_grad_(False)
    for step in range(2):
        torch.manual_seed(10 * step + me.rank)
        x = torch.randn(4, WIDTH, dtype=torch.float64)
        for each in (whole, model):
            each.zero_grad()
            each(x).square().mean().backward()
        wanted, powers = {}, torch.zeros((), dtype=torch.float64)
        for name, parameter in whole.named_parameters():
            if parameter.grad is None:
                continue
            everyones = me.everywhere(parameter.grad)
            groups = [list(range(me.world))]
            if "expert" in name:
                groups = [[r] for r in range(me.world)] if ".down." in name else groups_of(me.world)
            means = {tuple(ranks): sum(everyones[r] for r in ranks) / len(ranks) for ranks in groups}
            wanted[name] = next(mean for ranks, mean in means.items() if me.rank in ranks)
            powers += sum(mean.square().sum() for mean in means.values())
        with osdp.summon_full_params(model, with_grads=True, writeback=False):
            got = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
            assert list(got) == list(wanted)
            for name, gradient in got.items():
                close(gradient, wanted[name], 1e-9, name)
        close(torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9), powers.sqrt(), 1e-9, "torch's norm")
        close(model.clip_grad_norm_(1e9), powers.sqrt(), 1e-9, "norm")
    assert not any(sharded.gathered_bytes() for _, sharded in with_parts(model))


def test_parts_over_other_ranks_inside_of_such_parts(ranks):
    ranks(on_three_levels, world=4)


def an_infinity(me: Member) -> None:
    """In one group's expert: no rank steps, also where nothing else is sharded."""

    def wrap(model: Mixture, group) -> nn.Module:
        for layer in model.layers:
            layer.expert = FSDP(layer.expert, group)
        return FSDP(model, me.group, sharding_strategy="NO_SHARD")

    model = new_mixture(me, wrap)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    scaler.scale(model(torch.randn(4, WIDTH, dtype=torch.float64)).sum()).backward()
    if me.rank in groups_of(me.world)[0]:
        model.layers[0].expert.up.weight.grad.fill_(torch.inf)
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2**15
    for name, value in model.state_dict().items():
        close(value, before[name], 0, name)


@pytest.mark.parametrize("world", [2, 4])
def test_an_infinity_in_one_groups_expert_skips_the_step_on_all(ranks, world):
    ranks(an_infinity, world=world)
