"""Modules that get other names after fully_shard: what the plan said of a parameter holds under its new name too."""

from __future__ import annotations

import copy

import pytest
import torch
from harness import Member
from support import blocks, plans
from support.pair import Pair, close, naming
from torch import Tensor, nn
from torch.distributed.fsdp import StateDictType
from torch.distributed.tensor import DTensor

import osdp

FSDP = osdp.FullyShardedDataParallel
TOKENS = torch.zeros(2, blocks.LENGTH, dtype=torch.long)


def wrapped(model: nn.Module) -> None:
    model.blocks[0] = nn.Sequential(model.blocks[0])


def moved(model: nn.Module) -> None:
    model.blocks[0], model.blocks[1] = model.blocks[1], model.blocks[0]


def first_block(choice: osdp.Choice, only_split: bool = False):
    """FULL_SHARD, and this for the operators of the first block."""

    def plan(description: osdp.ModelDescription) -> osdp.Plan:
        chosen = (o for o in plans.with_parameters(description) if o.name.startswith("blocks.0."))
        names = [o.name for o in chosen if o.split_shape is not None or not only_split]
        return plans.apart(osdp.Plan.uniform(description)).replace(dict.fromkeys(names, choice))

    return plan


PLANS = {
    **{
        f"slices along {split}": first_block(osdp.Choice("FULL_SHARD", 2, 1, split), only_split=True)
        for split in ("out", "in")
    },
    "lines": first_block(osdp.Choice("HYBRID_SHARD")),
}


def full(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def shown(me: Member, name: str) -> None:
    lines = {"ranks_per_host": 2} if name == "lines" else {}
    for change in (wrapped, moved):
        with naming(change.__name__):
            pair = Pair(me, blocks.workload(), PLANS[name], **lines)
            pair.train(steps=1)
            change(pair.whole), change(pair.sharded)
            pair.train(steps=1)
            states = [optimizer.state_dict()["state"] for _, optimizer in pair.both]
            for number, wanted in states[0].items():
                for key, value in wanted.items():
                    close(full(states[1][number][key]), value, 1e-9, f"{key} of parameter {number}")
            FSDP.set_state_dict_type(pair.sharded, StateDictType.SHARDED_STATE_DICT)
            rows = pair.sharded.state_dict()
            for key, value in pair.whole.state_dict().items():
                close(full(rows[key]), value, 1e-9, key)
            pair.sharded.load_state_dict(rows)
            FSDP.set_state_dict_type(pair.sharded, StateDictType.FULL_STATE_DICT)
            pair.sharded_optimizer.load_state_dict(copy.deepcopy(pair.whole_optimizer.state_dict()))
            pair.train(steps=1)


@pytest.mark.parametrize("name", PLANS)
def test_states_of_modules_that_were_wrapped_or_moved(ranks, name):
    ranks(shown, name, world=4 if name == "lines" else 2)


def told(me: Member) -> None:
    pair = Pair(me, blocks.workload())
    model = pair.sharded
    del model.embed, model.blocks[0]
    model.embed = nn.Embedding(blocks.VOCABULARY, blocks.HIDDEN, dtype=torch.float64)
    with osdp.no_sync(model):
        model(TOKENS).sum().backward()
    for parameter, name in ((model.head.weight, "head.weight"), (model.embed.weight, "embed.weight")):
        with pytest.raises(osdp.ShardingError, match=f"'{name}'"):
            torch.optim.SGD([parameter], lr=0.1).step()


def test_an_error_names_the_parameter_after_others_were_removed(ranks):
    ranks(told, world=2)


def on_request(me: Member) -> None:
    model = blocks.Blocks()
    for part in (*model.blocks, model):
        osdp.fully_shard(part, process_group=me.group)
    model(TOKENS).sum().backward()
    model.head = nn.Linear(blocks.HIDDEN, blocks.VOCABULARY)
    model(TOKENS).sum().backward()
    model.unshard()
    assert full(model.norm.weight).shape == (blocks.HIDDEN,)
    model.reshard()
    model(TOKENS).sum().backward()


def test_unshard_of_a_unit_with_a_new_module(ranks):
    ranks(on_request, world=2)


class Scored(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x))

    def score(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.last[0].weight).sum()


def registered(me: Member) -> None:
    torch.manual_seed(0)
    plain = Scored()
    model = copy.deepcopy(plain)
    plan = osdp.Plan.uniform(osdp.describe(model, torch.ones(2, 4)))
    osdp.fully_shard(model, plan, me.group)
    for each in (plain, model):
        each.last = nn.Sequential(each.last)
    osdp.register_forward_method(model, "score", reads=["last.0.weight"])
    close(model.score(torch.ones(2, 4)), plain.score(torch.ones(2, 4)), 1e-6, "score")


def test_a_method_is_registered_after_a_module_was_wrapped(ranks):
    ranks(registered, world=2)


def emptied(me: Member) -> None:
    """`torch.nn.init` after to_empty(), also of a module that has been added since."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    osdp.fully_shard(model, process_group=me.group)
    model(torch.ones(2, 4)).sum().backward()
    model.append(nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()
    model.to_empty(device="cpu")
    torch.manual_seed(3)
    for module in model:
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)
    model(torch.ones(2, 4)).sum().backward()
    torch.manual_seed(3)
    for key, value in model.state_dict().items():
        wanted = nn.init.xavier_uniform_(torch.empty(4, 4)) if value.dim() > 1 else torch.zeros(4)
        close(full(value), wanted, 0, key)


def test_what_was_added_is_initialised_with_the_rest(ranks):
    ranks(emptied, world=2)
