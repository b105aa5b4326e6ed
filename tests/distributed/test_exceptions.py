"""After an exception inside forward or backward the model is usable, and trains as if it had not been."""

from __future__ import annotations

import functools

import pytest
import torch
from harness import Member
from support import plans
from support.pair import Pair, naming
from support.refusals import Refusal, RefusesBackward
from support.workload import Workload, vectors
from torch import nn
from torch.utils.checkpoint import checkpoint

from osdp.sharding.sharded_model import runtime_of


class Fragile(nn.Module):
    """`fails`: None, or where the next pass raises; deep inside, with sharded layers before and after."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        self.last = nn.Linear(8, 4)
        self.fails: str | None = None
        self.checkpointing = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = checkpoint(self.middle, x, use_reentrant=False) if self.checkpointing else self.middle(x)
        return self.last(x)

    def middle(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner[0](x)
        if self.fails == "interrupt":
            raise KeyboardInterrupt
        x = self.inner[1](x)
        if self.fails == "forward":
            raise Refusal("forward")
        if self.fails == "backward":
            x = RefusesBackward.apply(x)
        return self.inner[2](x)


def fail(pair: Pair, where: str, step: int) -> None:
    for model, _ in pair.both:
        model.fails = where
    arguments, target = pair.data(step)
    with pytest.raises(Refusal, match=where):
        loss = pair.workload.loss(pair.sharded(pair.me.part(arguments[0])), pair.me.part(target))
        loss.backward()
    for model, _ in pair.both:
        model.fails = None
        model.zero_grad()


def fail_and_go_on(me: Member, where: str, checkpointing: bool) -> None:
    chosen = {
        **{mode: mode for mode in plans.MODES},
        "slices": lambda d: plans.in_slices(d, "out"),
        "mixture": lambda d: plans.mixture(d, 3),
    }
    for name, plan in chosen.items():
        with naming(name):
            pair = Pair(me, Workload(Fragile, vectors(6, 4)), plan)
            for model, _ in pair.both:
                model.checkpointing = checkpointing
            fail(pair, where, 8)  # in the very first pass, before any order was recorded
            pair.train(steps=2)
            fail(pair, where, 9)
            fail(pair, where, 10)
            shapes = {name: p.shape for name, p in pair.sharded.named_parameters()}
            pair.evaluate()
            pair.train(steps=2)
            assert shapes == {name: p.shape for name, p in pair.sharded.named_parameters()}
            assert runtime_of(pair.sharded).gathered_bytes() == 0


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_training_goes_on_after_an_exception(ranks, where, checkpointing):
    ranks(fail_and_go_on, where, checkpointing, world=2)


def fail_without_zero_grad(me: Member) -> None:
    """A failed forward leaves gradients that were there before it."""
    for mode in plans.MODES:
        with naming(mode):
            pair = Pair(me, Workload(Fragile, vectors(6, 4)), mode)
            pair.backward(pair.data(0))
            pair.sharded.fails = "forward"
            with pytest.raises(Refusal):
                pair.sharded(me.part(pair.data(1)[0][0]))
            pair.sharded.fails = None
            pair.same_gradients()
            pair.update()
            pair.train(steps=1)


def test_a_failed_forward_leaves_the_gradients(ranks):
    ranks(fail_without_zero_grad, world=2)


def interrupt_and_save(me: Member) -> None:
    """torch runs hooks that are always called after an Exception alone: Ctrl-C is none."""
    chosen = {**{mode: mode for mode in plans.MODES}, "slices": lambda d: plans.in_slices(d, "out")}
    for name, plan in chosen.items():
        with naming(name):
            pair = Pair(me, Workload(Fragile, vectors(6, 4)), plan)
            pair.train(steps=1)
            model = pair.sharded
            ahead = functools.partial(model.register_forward_hook, prepend=True)
            # In a forward; in a user's hook within it; in hooks of the model, before and after its forward.
            for register in (
                None,
                model.inner[1].register_forward_hook,
                model.register_forward_pre_hook,
                ahead,
            ):
                for saves in (True, False):
                    hook = None if register is None else register(interrupt)
                    model.fails = "interrupt" if register is None else None
                    with pytest.raises(KeyboardInterrupt):
                        model(me.part(pair.data(1)[0][0]))
                    model.fails = None
                    if hook is not None:
                        hook.remove()
                    if saves:
                        pair.same_parameters()  # the checkpoint that scripts save then
                        assert runtime_of(model).gathered_bytes() == 0
                    pair.train(steps=1)


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.outcome(
    "Ctrl-C in a forward, or a hook around it, on all ranks; saving a checkpoint then, and going on", "equal"
)
def test_what_is_interrupted_can_be_saved_and_goes_on(ranks):
    ranks(interrupt_and_save, world=2)
