"""checkpoint_wrapper of torch and of FairScale on leaves and around containers, inside and outside of wraps."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable

import pytest
import torch
from harness import Member
from support.pair import SEED, adamw, close
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
    offload_wrapper,
)
from torch.utils.checkpoint import checkpoint

import osdp

FSDP = osdp.FullyShardedDataParallel
Part = Callable[[nn.Module], nn.Module]
WIDTH = 6


def fairscale_style(module: nn.Module) -> nn.Module:
    """Its forward knows the module by a weak reference, which a copy of the module has as well."""

    def recomputed(me: weakref.ref, *args: Tensor) -> Tensor:
        module = me()
        return checkpoint(functools.partial(type(module).forward, module), *args, use_reentrant=True)

    module.forward = functools.partial(recomputed, weakref.ref(module))
    return module


WRAPPERS = {
    "torch": checkpoint_wrapper,
    "reentrant": functools.partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.REENTRANT),
    "offloaded": offload_wrapper,
    "fairscale": fairscale_style,
}


def block() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 9), nn.Tanh(), nn.Linear(9, WIDTH))


def net(leaf: Part, container: Part) -> nn.Module:
    torch.manual_seed(SEED)
    model = nn.Sequential(block(), block(), block())
    model[0][2], model[1] = leaf(model[0][2]), container(model[1])
    return model


def recomputes(me: Member, style: str, order: str) -> None:
    wrapper = WRAPPERS[style]

    def part(module: nn.Module) -> nn.Module:
        if order == "inside":
            return FSDP(wrapper(module), me.group)
        if order == "outside":
            return wrapper(FSDP(module, me.group))
        return wrapper(module)

    plain = net(lambda m: m, lambda m: m)
    model = FSDP(net(part, part), me.group)
    names = [name for name, _ in plain.named_parameters()]
    both = [(m, adamw(m.parameters())) for m in (plain, model)]
    torch.manual_seed(3)
    for step in range(3):
        x = torch.randn(2 * me.world, WIDTH)
        losses = []
        for each, data in ((plain, x), (model, me.part(x))):
            loss = each(data.clone().requires_grad_()).square().mean()
            loss.backward()
            losses.append(loss)
        close(me.mean(losses[1]), losses[0], 1e-5, f"loss of step {step}")
        for _, optimizer in both:
            optimizer.step()
            optimizer.zero_grad()
    state, wanted = model.state_dict(), plain.state_dict()
    assert list(state) == list(wanted) == names
    for name in names:
        close(state[name], wanted[name], 1e-5, name)
    assert list(FSDP.optim_state_dict(model, both[1][1])["state"]) == names
    files = me.everywhere((model.local_state_dict(), model.local_metadata_dict()))
    assert list(FSDP.consolidate_shard_weights(*zip(*files, strict=True))) == names
    model.load_state_dict(wanted)


@pytest.mark.parametrize("order", ["inside", "outside", "without"])
@pytest.mark.parametrize("style", WRAPPERS)
def test_what_a_checkpoint_wrapper_recomputes(ranks, style, order):
    ranks(recomputes, style, order, world=2)


def wrapped_afterwards(me: Member) -> None:
    plain, inner = net(lambda m: m, lambda m: m), net(lambda m: m, lambda m: m)
    model = FSDP(
        inner, me.group, auto_wrap_policy=lambda module, recurse, **_: recurse or module in (inner[1],)
    )
    apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, nn.Linear))
    x = torch.randn(2, WIDTH)
    for each in (plain, model):
        each(x).square().mean().backward()
    with FSDP.summon_full_params(model, with_grads=True):
        for (name, wanted), found in zip(plain.named_parameters(), model.parameters(), strict=True):
            close(found.grad, me.mean(wanted.grad), 1e-5, name)
    assert list(model.state_dict()) == list(plain.state_dict())


def test_activation_checkpointing_after_the_wrap(ranks):
    ranks(wrapped_afterwards, world=2)


def saved(me: Member, folder: str) -> None:
    """What was saved with wrappers is loaded without them, and the other way."""

    def build(part: Part) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = FSDP(nn.Sequential(part(nn.Linear(WIDTH, WIDTH)), part(nn.BatchNorm1d(WIDTH))), me.group)
        optimizer = adamw(model.parameters())
        model(torch.randn(4, WIDTH)).square().mean().backward()
        optimizer.step()
        return model, optimizer

    def same(found: nn.Module, wanted: nn.Module) -> None:
        state = found.state_dict()
        for name, value in wanted.state_dict().items():
            close(state[name], value, 0, name)

    (wrapped, first), (plain, second) = build(checkpoint_wrapper), build(lambda m: m)
    osdp.save(wrapped, first, f"{folder}/wrapped")
    osdp.load(plain, second, f"{folder}/wrapped")
    same(plain, wrapped)
    for state, wanted in zip(second.state.values(), first.state.values(), strict=True):
        close(state["exp_avg"], wanted["exp_avg"], 0, "a state")
    with torch.no_grad():
        for p in plain.parameters():
            p.add_(1)
    osdp.save(plain, second, f"{folder}/plain")
    osdp.load(wrapped, first, f"{folder}/plain")
    same(wrapped, plain)


def test_checkpoints_with_and_without_wrappers(ranks, tmp_path):
    ranks(saved, str(tmp_path), world=2)
