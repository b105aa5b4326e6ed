"""register_post_accumulate_grad_hook: called with the reduced gradient, so that an optimizer may step in backward."""

from __future__ import annotations

import pytest
import torch
from harness import Member
from support import blocks, plans
from support.descriptions import describe_once
from support.pair import Pair, adamw, naming, unused_optimizer
from torch import nn

import osdp

PLANS = {**{mode: mode for mode in plans.MODES}, "slices": lambda d: plans.in_slices(d, "out")}


def step_in_backward(model: nn.Module) -> None:
    for parameter in model.parameters():
        optimizer = adamw([parameter])

        def step(parameter: nn.Parameter, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(step)


def train_in_backward(pair: Pair) -> None:
    for step in range(3):
        with naming(f"step {step}"):
            pair.backward(pair.data(step))
            assert all(p.grad is None for model, _ in pair.both for p in model.parameters())
    pair.same_parameters()


def optimizer_in_backward(me: Member, hybrid: bool) -> None:
    chosen = {"HYBRID_SHARD": "HYBRID_SHARD"} if hybrid else PLANS
    sharding = {"ranks_per_host": 2} if hybrid else {}
    for name, plan in chosen.items():
        with naming(f"{name}, hooks from before sharding"):
            options = {"optimizer": unused_optimizer, **sharding}
            train_in_backward(Pair(me, blocks.workload(), plan, prepare=step_in_backward, **options))
        with naming(f"{name}, hooks from after sharding"):
            pair = Pair(me, blocks.workload(), plan, **options)
            step_in_backward(pair.whole), step_in_backward(pair.sharded)
            train_in_backward(pair)


@pytest.mark.outcome(
    "an optimizer's step in `register_post_accumulate_grad_hook` (optimizer in backward)", "equal"
)
@pytest.mark.parametrize(("world", "hybrid"), [(3, False), (4, True)])
def test_an_optimizer_in_backward_trains_as_in_one_process(ranks, world, hybrid):
    ranks(optimizer_in_backward, hybrid, world=world)


class Log:
    """What hooks were given: name -> gradients."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.seen: dict[str, list[torch.Tensor]] = {}
        named = model.named_parameters()
        self.handles = [p.register_post_accumulate_grad_hook(self.hook(name)) for name, p in named]

    def hook(self, name: str):
        def note(parameter: nn.Parameter) -> None:
            assert parameter.grad.shape == parameter.shape and parameter.grad.dtype == parameter.dtype, name
            self.seen.setdefault(name, []).append(parameter.grad.clone())

        return note

    def check(self, calls: int) -> None:
        """Each parameter `calls` times since the last check, last with the gradient that it has now."""
        for name, parameter in self.model.named_parameters():
            seen = self.seen.pop(name, [])
            assert len(seen) == calls, f"{name}: {len(seen)} calls"
            assert not seen or torch.equal(seen[-1], parameter.grad), name


def what_hooks_see(me: Member) -> None:
    for name, plan in PLANS.items():
        with naming(name):
            pair = Pair(me, blocks.workload(), plan)
            first, second = Log(pair.sharded), Log(pair.sharded)
            pair.train(steps=1)
            first.seen.clear(), second.seen.clear()
            pair.backward(pair.data(1, 0), 2)
            pair.backward(pair.data(1, 1), 2)  # accumulates
            first.check(2), second.check(2)
            pair.same_gradients()
            pair.update()
            for handle in second.handles:
                handle.remove()
            pair.backward(pair.data(2, 0), 2, osdp.no_sync(pair.sharded))
            first.check(0)  # there is no gradient yet that a rank could step with
            pair.backward(pair.data(2, 1), 2)
            first.check(1), second.check(0)
            pair.same_gradients()
            pair.update()
            pair.train(steps=1)


@pytest.mark.outcome(
    "several `register_post_accumulate_grad_hook`s, removed ones, accumulation, `no_sync`", "equal"
)
def test_hooks_see_the_reduced_gradient_once_per_backward(ranks):
    ranks(what_hooks_see, world=2)


def mixed(me: Member) -> None:
    for name, plan in PLANS.items():
        with naming(name):
            policy = osdp.MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            model = blocks.workload().model(7, torch.float32)
            (tokens,), _ = blocks.tokens(2)
            described = describe_once(model, tokens)
            plan = osdp.Plan.uniform(described, plan) if isinstance(plan, str) else plan(described)
            osdp.fully_shard(model, plan, me.group, mixed_precision=policy)
            log = Log(model)
            for _ in range(2):
                model(tokens).float().square().mean().backward()
            log.check(2)


@pytest.mark.parametrize("world", [1, 2])
def test_hooks_under_mixed_precision_see_what_a_rank_keeps(ranks, world):
    ranks(mixed, world=world)


class Refusal(Exception):
    pass


def hook_raises(me: Member) -> None:
    def refuse(_: nn.Parameter) -> None:
        raise Refusal

    for name, plan in PLANS.items():
        with naming(name):
            pair = Pair(me, blocks.workload(), plan)
            handle = next(pair.sharded.parameters()).register_post_accumulate_grad_hook(refuse)
            with pytest.raises(Refusal):
                pair.forward(pair.data(0))[1].backward()
            handle.remove()
            pair.sharded.zero_grad()
            pair.train(steps=2)


def test_a_hook_that_raises(ranks):
    ranks(hook_raises, world=2)
