"""Other ways into backward: autograd.grad, chosen inputs, kept graphs, hooks of the user."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from harness import Member
from support import blocks, plans
from support.pair import Pair, close, naming

import osdp

CASES: dict[str, Callable[[Pair], None]] = {}


def case(run: Callable[[Pair], None]) -> Callable[[Pair], None]:
    CASES[run.__name__] = run
    return run


@case
def backward_twice_through_a_kept_graph(pair: Pair) -> None:
    for loss in pair.forward(pair.data(0)):
        loss.backward(retain_graph=True)
        loss.backward()
    pair.same_gradients()
    pair.update()


@case
def backward_for_some_parameters(pair: Pair) -> None:
    """`inputs=` limits where gradients go: as in one process, or refused by name."""
    losses = pair.forward(pair.data(0))
    chosen = ("head.weight", "blocks.0.up.weight", "blocks.1.norm.bias")
    try:
        for (model, _), loss in zip(pair.both, losses, strict=True):
            loss.backward(inputs=[dict(model.named_parameters())[name] for name in chosen])
    except osdp.ShardingError as refusal:
        assert any(name in str(refusal) for name in chosen)
        pair.whole.zero_grad(), pair.sharded.zero_grad()
        return
    pair.same_gradients()
    pair.update()


@case
def gradient_of_the_input_by_autograd_grad(pair: Pair) -> None:
    x = torch.randn(2 * pair.me.world, 3, blocks.HIDDEN, dtype=pair.dtype)
    block = pair.whole.blocks[0], pair.sharded.blocks[0]
    whole, mine = x.clone().requires_grad_(), pair.me.part(x).clone().requires_grad_()
    (wanted,) = torch.autograd.grad(block[0](whole).square().sum(), whole)
    (got,) = torch.autograd.grad(block[1](mine).square().sum(), mine)
    close(got, pair.me.part(wanted), pair.tolerance, "gradient of the input")
    assert all(p.grad is None for p in pair.sharded.parameters())


@case
def hook_on_a_parameters_gradient(pair: Pair) -> None:
    for model, _ in pair.both:
        for name in ("head.weight", "blocks.0.up.bias"):
            dict(model.named_parameters())[name].register_hook(lambda gradient: gradient * 3)
    pair.train(steps=3)


@case
def forward_and_backward_hooks_on_modules(pair: Pair) -> None:
    seen: dict[int, list[str]] = {0: [], 1: []}
    for which, (model, _) in enumerate(pair.both):
        log = seen[which]
        for name, module in model.named_modules():
            if name.endswith(("up", "blocks.0", "head")):
                module.register_forward_pre_hook(lambda m, i, n=name, log=log: log.append(f"pre {n}"))
                module.register_forward_hook(lambda m, i, o, n=name, log=log: log.append(f"post {n}"))
                module.register_full_backward_hook(lambda m, i, o, n=name, log=log: log.append(f"back {n}"))
        model.blocks[1].up.register_forward_hook(lambda m, i, o: o * 2)
    pair.train(steps=2)
    assert seen[0] == seen[1]
    assert seen[1]


@case
def gradient_scaler_style_scaling(pair: Pair) -> None:
    """Gradients scaled by the user between backward and step, in place and out of place."""
    for step in range(2):
        pair.backward(pair.data(step))
        for model, _ in pair.both:
            for parameter in model.parameters():
                if parameter.grad is not None and parameter.numel():
                    parameter.grad.mul_(0.5) if step else setattr(parameter, "grad", parameter.grad * 0.5)
        pair.same_gradients()
        pair.update()


@case
def parameters_changed_by_hand_between_steps(pair: Pair) -> None:
    """Element-wise changes under no_grad, as moving averages and weight clipping make them."""
    for step in range(2):
        for model, _ in pair.both:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(0.9).clamp_(-0.3, 0.3)
        with naming(f"step {step}"):
            pair.train(steps=1)


def run(me: Member, name: str) -> None:
    chosen = {**{mode: mode for mode in plans.MODES}, "mixture": lambda d: plans.mixture(d, 5)}
    for what, plan in chosen.items():
        with naming(what):
            pair = Pair(me, blocks.workload(), plan)
            CASES[name](pair)
            pair.train(steps=2)


@pytest.mark.parametrize("name", CASES)
def test_autograd(ranks, name):
    ranks(run, name, world=2)
