"""Calls in an order that a training loop may make but that nobody planned for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from harness import Member
from support import blocks, plans
from support.pair import Pair, close, naming
from torch.nn import functional as F

import osdp
from osdp.sharding.sharded_model import runtime_of

CASES: dict[str, Callable[[Pair], None]] = {}


def case(run: Callable[[Pair], None]) -> Callable[[Pair], None]:
    CASES[run.__name__] = run
    return run


def steps(pair: Pair, count: int, start: int = 0) -> Iterator[int]:
    for step in range(start, start + count):
        with naming(f"step {step}"):
            yield step


@case
def two_forwards_before_one_backward(pair: Pair) -> None:
    for step in steps(pair, 3):
        first, second = pair.forward(pair.data(step, 0)), pair.forward(pair.data(step, 1))
        (first[0] + second[0]).backward()
        (first[1] + second[1]).backward()
        pair.same_gradients()
        pair.update()


@case
def two_forwards_then_two_backwards_in_either_order(pair: Pair) -> None:
    for step in steps(pair, 4):
        losses = [pair.forward(pair.data(step, micro)) for micro in (0, 1)]
        for whole, mine in losses[:: 1 if step % 2 else -1]:
            whole.backward()
            mine.backward()
        pair.same_gradients()
        pair.update()


@case
def forward_without_gradients_between_steps(pair: Pair) -> None:
    for step in steps(pair, 3):
        with torch.no_grad():
            pair.forward(pair.data(step, 5))
        pair.train(steps=1)


@case
def forward_in_inference_mode_between_steps(pair: Pair) -> None:
    for step in steps(pair, 2):
        arguments, _ = pair.data(step, 5)
        with torch.inference_mode():
            pair.sharded(*(pair.me.part(a) for a in arguments))
        pair.train(steps=1)


@case
def a_forward_whose_graph_is_thrown_away(pair: Pair) -> None:
    for step in steps(pair, 3):
        pair.forward(pair.data(step, 5))
        pair.train(steps=1)


@case
def evaluation_between_backward_and_the_optimizers_step(pair: Pair) -> None:
    for step in steps(pair, 3):
        pair.backward(pair.data(step))
        pair.evaluate()
        pair.same_gradients()
        pair.update()
        pair.evaluate()


@case
def a_training_forward_between_backward_and_the_optimizers_step(pair: Pair) -> None:
    for step in steps(pair, 3):
        pair.backward(pair.data(step))
        pair.forward(pair.data(step, 5))
        pair.update()


@case
def a_forward_made_before_the_optimizers_step_is_not_used_after_it(pair: Pair) -> None:
    for step in steps(pair, 3):
        pair.backward(pair.data(step))
        pair.update()
        pair.forward(pair.data(step, 5))  # sees the new parameters


@case
def evaluation_between_forward_and_backward(pair: Pair) -> None:
    for step in steps(pair, 3):
        losses = pair.forward(pair.data(step))
        pair.evaluate()
        for loss in losses:
            loss.backward()
        pair.same_gradients()
        pair.update()


@case
def evaluation_after_training(pair: Pair) -> None:
    pair.train(steps=2)
    for step in (50, 51):
        pair.evaluate(step)
    pair.train(steps=1)


@case
def zero_grad_between_forward_and_backward(pair: Pair) -> None:
    for step in steps(pair, 4):
        losses = pair.forward(pair.data(step))
        for (model, _), loss in zip(pair.both, losses, strict=True):
            model.zero_grad(set_to_none=step % 2 == 0)
            loss.backward()
        pair.same_gradients()
        for _, optimizer in pair.both:
            optimizer.step()


@case
def zero_grad_that_keeps_zeros(pair: Pair) -> None:
    for step in steps(pair, 3):
        pair.backward(pair.data(step))
        pair.same_gradients()
        pair.update(set_to_none=False)
        pair.same_gradients()


@case
def no_sync_forgotten_at_the_end(pair: Pair) -> None:
    """Gradients of a no_sync pass that nobody reduced are dropped by zero_grad, and then all is as before."""
    with osdp.no_sync(pair.sharded):
        pair.backward(pair.data(9))
    for _, optimizer in pair.both:
        optimizer.zero_grad()
    pair.train(steps=2)


@case
def gradients_zeroed_in_place_after_no_sync(pair: Pair) -> None:
    with osdp.no_sync(pair.sharded):
        pair.backward(pair.data(9))
    for _, optimizer in pair.both:
        optimizer.zero_grad(set_to_none=False)
    pair.backward(pair.data(0))
    pair.same_gradients()
    pair.update()


@case
def gradients_changed_between_no_sync_and_the_reduction(pair: Pair) -> None:
    """What a rank keeps unreduced cannot be changed with them: refused where any is kept; usable after zero_grad."""
    with osdp.no_sync(pair.sharded):
        pair.backward(pair.data(9))
    kept = any(not runtime_of(pair.sharded).is_whole(name) for name in runtime_of(pair.sharded).names())
    for parameter in pair.sharded.parameters():
        if parameter.grad is not None:
            parameter.grad.add_(1.0)
    if kept and pair.me.world > 1:
        with pytest.raises(RuntimeError, match="between a backward under no_sync"):
            pair.forward(pair.data(0))
    for _, optimizer in pair.both:
        optimizer.zero_grad()
    pair.train(steps=2)


@case
def no_sync_around_forward_and_backward_with_evaluation(pair: Pair) -> None:
    for step in steps(pair, 2):
        with osdp.no_sync(pair.sharded):
            pair.backward(pair.data(step, 0))
            pair.evaluate()
            pair.backward(pair.data(step, 1))
        pair.backward(pair.data(step, 2))
        pair.same_gradients()
        pair.update()


@case
def calling_a_submodule_directly(pair: Pair) -> None:
    """Without the root: values, then gradients of only what it used, then whole steps again."""
    for step in steps(pair, 2):
        x = pair.workload.data(step, 2 * pair.me.world, pair.dtype)[0][0]
        x = F.one_hot(x % (blocks.HIDDEN + 1), blocks.HIDDEN + 1)[..., :-1].to(pair.dtype)
        whole = pair.whole.blocks[1](x)
        mine = pair.sharded.blocks[1](pair.me.part(x))
        close(mine, pair.me.part(whole), pair.tolerance, "the block's output")
        whole.square().mean().backward()
        mine.square().mean().backward()
        pair.same_gradients()
        pair.update()
        up = pair.sharded.blocks[0].up
        close(
            up(pair.me.part(x)),
            pair.me.part(pair.whole.blocks[0].up(x)),
            pair.tolerance,
            "the layer's output",
        )
        pair.train(steps=1)


@case
def changing_the_batch_and_the_length(pair: Pair) -> None:
    for step in steps(pair, 3):
        pair.samples = 1 + 2 * step
        pair.backward(pair.data(step))
        pair.same_gradients()
        pair.update()


@case
def anomaly_detection_and_another_thread(pair: Pair) -> None:
    """Anomaly detection, and a backward from another thread."""
    errors: list[BaseException] = []

    def step() -> None:
        try:
            pair.train(steps=1)
        except BaseException as error:
            errors.append(error)

    with torch.autograd.set_detect_anomaly(True):
        pair.train(steps=1)
    thread = threading.Thread(target=step)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def run(me: Member, name: str) -> None:
    chosen = {
        **{mode: mode for mode in plans.MODES},
        "slices": lambda d: plans.in_slices(d, "in"),
        "recomputed": lambda d: plans.recomputed(plans.mixture(d, 6), "regather", 2),
    }
    for what, plan in chosen.items():
        with naming(what):
            pair = Pair(me, blocks.workload(), plan)
            CASES[name](pair)
            pair.same_parameters()
            pair.train(steps=1)


@pytest.mark.parametrize("name", CASES)
def test_phases(ranks, name):
    ranks(run, name, world=2)


@pytest.mark.extras  # the phases are those of two ranks; uneven rows: test_equivalence.py
@pytest.mark.parametrize("name", ["two_forwards_before_one_backward", "calling_a_submodule_directly"])
def test_phases_on_three_ranks(ranks, name):
    ranks(run, name, world=3)
