"""Frozen parameters beside trained ones: before, after, between, and inside one module."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import pytest
import torch
from harness import Member
from support import plans
from support.pair import Pair, adamw, naming, train_all, unused_optimizer
from support.workload import Workload, vectors
from torch import nn

import osdp
from osdp.sharding.sharded_model import runtime_of


def layers() -> nn.Module:
    widths = [6, 7, 9, 8, 5]
    parts: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        parts += [nn.Linear(a, b), nn.LayerNorm(b), nn.Tanh()]
    return nn.Sequential(*parts)


class Adapted(nn.Module):
    """A frozen weight with a trained low-rank correction, all in one module."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Parameter(torch.randn(6, 6), requires_grad=False)
        self.down = nn.Parameter(torch.randn(2, 6))
        self.up = nn.Parameter(torch.randn(6, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.base.T + x @ self.down.T @ self.up.T)


def freezing(*frozen: str) -> Callable[[nn.Module], None]:
    def freeze(model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            if any(name.startswith(prefix) for prefix in frozen):
                parameter.requires_grad_(False)

    return freeze


FROZEN = {
    "the first layers": ("0.", "1.", "3."),
    "the last layers": ("9.", "10."),
    "between trained ones": ("3.", "4."),
    "all weights: only biases train": ("0.weight", "3.weight", "6.weight", "9.weight"),
    "one bias": ("3.bias",),
}


def train_frozen(me: Member, which: str) -> None:
    train_all(
        me,
        Workload(layers, vectors(6, 5)),
        lambda d: plans.everything(d, mixtures=2),
        steps=3,
        prepare=freezing(*FROZEN[which]),
        optimizer=lambda parameters: adamw([p for p in parameters if p.requires_grad]),
    )


@pytest.mark.parametrize(("which", "world"), [(which, 2 + i % 2) for i, which in enumerate(FROZEN)])
def test_frozen(ranks, which, world):
    ranks(train_frozen, which, world=world)


def train_adapted(me: Member) -> None:
    train_all(me, Workload(lambda: nn.Sequential(Adapted(), Adapted()), vectors(6, 6)), plans.everything)


@pytest.mark.parametrize("world", [2, 4])
def test_a_frozen_weight_and_its_trained_adapter_in_one_module(ranks, world):
    ranks(train_adapted, world=world)


def frozen_does_not_change(me: Member) -> None:
    for mode in plans.MODES:
        with naming(mode):
            pair = Pair(me, Workload(layers, vectors(6, 5)), mode, prepare=freezing("3."))
            before = pair.sharded.state_dict()["3.weight"].clone()
            pair.train(steps=2)
            assert pair.sharded[3].weight.grad is None
            assert not pair.sharded[3].weight.requires_grad
            assert torch.equal(pair.sharded.state_dict()["3.weight"], before)


def test_a_frozen_parameter_stays_as_it_is(ranks):
    ranks(frozen_does_not_change, world=2)


def freeze_later(me: Member) -> None:
    """Fine-tuning in stages: what trains changes between steps, after sharding."""
    for mode in plans.MODES:
        with naming(mode):
            pair = Pair(me, Workload(layers, vectors(6, 5)), mode)
            for step, frozen in enumerate([(), ("0.", "3."), ("9.",), ()]):
                for model, _ in pair.both:
                    model.requires_grad_(True)
                    freezing(*frozen)(model)
                with naming(f"stage {step}"):
                    pair.backward(pair.data(step))
                    pair.same_gradients()
                    pair.update()
            pair.same_parameters()


def test_freezing_and_thawing_between_steps(ranks):
    ranks(freeze_later, world=2)


def freeze_after_forward(me: Member) -> None:
    """As in one process, what is frozen when its gradient comes gets none; of a slice of some rows, too."""
    for split in ("out", "in"):
        with naming(split):
            pair = Pair(me, Workload(layers, vectors(6, 5)), lambda d, split=split: plans.in_slices(d, split))
            for step in range(2):
                losses = pair.forward(pair.data(step))
                for (model, _), loss in zip(pair.both, losses, strict=True):
                    freezing("3.", "9.weight")(model)
                    loss.backward()
                pair.same_gradients()
                for model, _ in pair.both:
                    assert model[3].weight.grad is None
                    model.requires_grad_(True)
                pair.update()
            pair.same_parameters()


def test_freezing_between_forward_and_backward(ranks):
    ranks(freeze_after_forward, world=2)


class Branches(nn.Module):
    """Two layers read one value; in backward the wide one, whose weight is frozen, comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.trained, self.wide = nn.Linear(6, 6), nn.Linear(6, 8), nn.Linear(6, 64)
        self.wide.weight.requires_grad_(False)
        self.look: Callable[[], None] = lambda: None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        trained = self.trained(h)
        trained.register_hook(lambda gradient: self.look())
        return trained.sum(-1) + self.wide(h).square().sum(-1)


def gathered_beside_another_branch(me: Member) -> None:
    model = Branches()
    plan = plans.apart(osdp.Plan.uniform(osdp.describe(model, torch.randn(4, 6)), "FULL_SHARD"))
    osdp.fully_shard(model, dataclasses.replace(plan, prefetch=0), process_group=me.group)
    seen = []
    model.look = lambda: seen.append(runtime_of(model).gathered_bytes())
    for _ in range(2):
        model(torch.randn(4, 6)).sum().backward()
    assert seen == [(6 * 8 + 8) * 4] * 2  # `trained`


def test_a_frozen_weight_is_not_held_while_other_readers_of_its_input_run(ranks):
    ranks(gathered_beside_another_branch, world=2)


def input_gradients(me: Member) -> None:
    """Everything frozen, and the gradient of the input wanted: an attack, or a prompt being tuned."""
    for mode in plans.MODES:
        with naming(mode):
            workload = Workload(layers, vectors(6, 5))
            pair = Pair(me, workload, mode, prepare=freezing(""), optimizer=unused_optimizer)
            x = pair.data(0)[0][0]
            whole, mine = x.clone().requires_grad_(), me.part(x).clone().requires_grad_()
            pair.whole(whole).square().sum().backward()
            pair.sharded(mine).square().sum().backward()
            torch.testing.assert_close(mine.grad, me.part(whole.grad), rtol=1e-9, atol=1e-9)


def test_the_gradient_of_the_input_through_frozen_layers(ranks):
    ranks(input_gradients, world=2)
