"""torch.distributed.checkpoint's state dict functions, and loading what does not fit, with parts wrapped in the class."""

from __future__ import annotations

import copy

import pytest
import torch
from harness import Member
from support.nested import Block, Net
from support.pair import SEED, adamw, close
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor

import osdp

FSDP = osdp.FullyShardedDataParallel
FULL = StateDictOptions(full_state_dict=True)


class Scaled(nn.Module):
    """What names could go wrong with: a part called "module", a parameter of its own, a buffer that is not saved, and a
    version."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(6, 6)
        self.scale = nn.Parameter(torch.ones(6))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x) * self.scale

    def _load_from_state_dict(self, state, prefix, metadata, *rest) -> None:
        self.loaded_version = metadata.get("version")
        super()._load_from_state_dict(state, prefix, metadata, *rest)


def net(seed: int) -> Net:
    torch.manual_seed(seed)
    model = Net()
    model.inner.append(Scaled())
    return model.double()


def wrapped(me: Member, seed: int) -> FSDP:
    return FSDP(net(seed), me.group, auto_wrap_policy=ModuleWrapPolicy({Block, Scaled}))


def compiled(me: Member, seed: int) -> nn.Module:
    return torch.compile(wrapped(me, seed), backend="eager")


def train(me: Member, model: nn.Module, optimizer: torch.optim.Optimizer, seed: int, whole: bool) -> Tensor:
    torch.manual_seed(seed)
    tokens = torch.randint(10, (2 * me.world, 4))
    loss = model(tokens if whole else me.part(tokens)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach() if whole else me.mean(loss)


def same(state: object, wanted: object, what: str) -> None:
    if isinstance(wanted, dict):
        assert isinstance(state, dict) and set(state) == set(wanted), what
        for key, value in wanted.items():
            same(state[key], value, f"{what} {key}")
    elif isinstance(wanted, Tensor):
        close(state.full_tensor() if isinstance(state, DTensor) else state, wanted, 1e-9, what)


def compiled_class(me: Member) -> None:
    whole = net(SEED)
    theirs = adamw(whole.parameters())
    train(me, whole, theirs, 1, True)
    wanted = copy.deepcopy(get_state_dict(whole, theirs))
    later = train(me, whole, theirs, 2, True)
    model = compiled(me, SEED + me.rank)
    optimizer = adamw(model.parameters())
    train(me, model, optimizer, 1, False)
    kept = copy.deepcopy(get_state_dict(model, optimizer))
    for options in (None, FULL):
        same(get_state_dict(model, optimizer, options=options), wanted, "state")
    for given, options in ((kept, None), (wanted, FULL)):
        model = compiled(me, SEED + 5)
        optimizer = adamw(model.parameters())
        weights, states = copy.deepcopy(given)
        set_model_state_dict(model, weights, options=options)
        set_optimizer_state_dict(model, optimizer, states, options=options)
        close(train(me, model, optimizer, 2, False), later, 1e-9, f"next loss, {options}")
    before = model.state_dict()
    some = {k: v for k, v in wanted[0].items() if "up" not in k}
    set_model_state_dict(model, dict(some), options=StateDictOptions(full_state_dict=True, strict=False))
    for name, value in model.state_dict().items():  # what the state dict lacks stays
        close(value, some.get(name.removeprefix("_orig_mod."), before[name]), 1e-9, name)


def test_torchs_state_dict_functions_with_the_class_compiled(ranks):
    ranks(compiled_class, world=2)


def misfits(me: Member) -> None:
    model, plain = wrapped(me, SEED), net(SEED)
    state = model.state_dict()
    del state["blocks.0.up.weight"]
    state["inner.2.extra"] = torch.zeros(1)
    for each in (model, plain):
        result = each.load_state_dict(state, strict=False)
        assert result.missing_keys == ["blocks.0.up.weight"] and result.unexpected_keys == ["inner.2.extra"]
        assert each.inner[2].loaded_version == 2
    state["blocks.1.up.bias"] = torch.zeros(6)  # this rank's rows, by their shape
    found = []
    for each in (model, plain):
        with pytest.raises(RuntimeError) as error:
            each.load_state_dict(state)
        found.append(str(error.value).splitlines())
    assert found[0][1:3] == found[1][1:3]  # missing and unexpected keys
    assert "size mismatch for blocks.1.up.bias: (6,)" in found[0][3] and len(found[0]) == len(found[1]) == 4
    same(model.state_dict(), plain.state_dict(), "state")


def test_what_does_not_fit_a_wrapped_part_is_named_as_in_the_unwrapped_model(ranks):
    ranks(misfits, world=2)
