"""torch's get_ and set_state_dict on FullyShardedDataParallel: its names are the unwrapped model's, its parts' too."""

from __future__ import annotations

import pytest
import torch
from harness import Member
from support.nested import Block, net
from support.pair import SEED, adamw, close
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

import osdp

FULL = StateDictOptions(full_state_dict=True)
FROM_RANK_0 = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


def wrapped(me: Member, seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = osdp.FullyShardedDataParallel(net(seed), me.group, auto_wrap_policy=ModuleWrapPolicy({Block}))
    return model, adamw(model.parameters())


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, tokens: torch.Tensor) -> None:
    model(tokens).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def there_and_back(me: Member, options: StateDictOptions | None) -> None:
    whole = net(SEED)
    whole_optimizer = adamw(whole.parameters())
    model, optimizer = wrapped(me, SEED)
    tokens = torch.randint(10, (2 * me.world, 4), generator=torch.Generator().manual_seed(1))
    step(whole, whole_optimizer, tokens)
    step(model, optimizer, me.part(tokens))
    saved, states = get_state_dict(model, optimizer, options=None if options is None else FULL)
    assert list(saved) == list(whole.state_dict())
    if options is not None and options.broadcast_from_rank0 and me.rank:
        saved, states = {}, {}
    fresh, its_optimizer = wrapped(me, SEED + 1)
    set_model_state_dict(fresh, saved, options=options)
    set_optimizer_state_dict(fresh, its_optimizer, states, options=options)
    step(whole, whole_optimizer, tokens)
    step(fresh, its_optimizer, me.part(tokens))
    got = get_model_state_dict(fresh, options=FULL)
    for name, value in whole.state_dict().items():
        close(got[name], value, 1e-9, name)


@pytest.mark.parametrize(
    ("options", "world"),
    [(None, 2), (FULL, 2), (FROM_RANK_0, 4)],  # torch broadcasts in the default group, which has all 4 ranks
    ids=["sharded", "full", "from rank 0"],
)
def test_get_and_set_state_dict_of_the_class(ranks, options, world):
    ranks(there_and_back, options, world=world)
