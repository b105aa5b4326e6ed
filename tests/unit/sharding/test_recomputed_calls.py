"""Recomputed blocks of one process: gradients of a block that is not recomputed, and nothing kept that it does not keep."""

from __future__ import annotations

import dataclasses
import functools
import gc
import threading
import weakref
from collections import UserDict
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts, set_checkpoint_early_stop

import osdp
from osdp import _C
from osdp.ranks import extension_lifetime  # noqa: F401  gives the extension's errors their types
from osdp.sharding.recomputation import RecomputedBlock

WIDTH = 5
Body = Callable[[nn.Module, Tensor], Tensor]


class Block(nn.Module):
    """`body`: its forward, between two layers."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("count", torch.zeros(()))
        self.body = body
        self.forwards = 0

    def forward(self, x: Tensor, scale: float = 1.0, shift: Tensor | None = None) -> Tensor:
        self.forwards += 1
        x = self.body(self, self.first(x).tanh() * scale)
        return self.last(x if shift is None else x + shift.exp())


def plain(block: nn.Module, x: Tensor) -> Tensor:
    return x.sin()


def made(body: Body, recomputed: bool) -> Block:
    torch.manual_seed(3)
    block = Block(body).double()
    if recomputed:
        block.forward = RecomputedBlock("the block", block)  # type: ignore[method-assign]
    return block


def x_of(seed: int = 0) -> Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(3, WIDTH, dtype=torch.float64, generator=made).requires_grad_()


def gradients(block: nn.Module, inputs: list[Tensor]) -> list[Tensor]:
    found = [t.grad for t in (*block.parameters(), *inputs)]
    return [g for g in found if g is not None]


def both(use: Callable[[Block], list[Any]], body: Body = plain) -> Block:
    """Compares what `use` returns of a block, and the generator after it, with and without recomputation."""
    results = []
    for recomputed in (False, True):
        block = made(body, recomputed)
        torch.manual_seed(7)
        results.append([*use(block), block.count, torch.get_rng_state()])
    assert len(results[0]) == len(results[1]) > 2
    for whole, again in zip(*results, strict=True):
        assert torch.equal(whole, again)
    return block


def dropped(block: Any, x: Tensor) -> Tensor:
    return block.drop(x.sin())


def counted(block: Any, x: Tensor) -> Tensor:
    block.count += 1
    return x.sin() * block.count.clone()


def checkpointed_inside(block: Any, x: Tensor) -> Tensor:
    x = checkpoint(lambda x: block.drop(x.sin()).cos(), x, use_reentrant=False)
    return checkpoint(lambda x: block.drop(x.sin()).cos(), x, use_reentrant=True)


def differentiated_inside(block: Any, x: Tensor) -> Tensor:
    (inner,) = torch.autograd.grad(x.sin().square().sum(), x, create_graph=True)
    (other,) = torch.autograd.grad(x.cos().square().sum(), x, retain_graph=True)
    return block.drop(x) * inner + other


def in_autocast(block: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return block.drop(block.first(x)).double()


class Twice(torch.autograd.Function):
    """Saves its input and output, and reads one of them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * ctx.saved_tensors[1]


def own_function(block: Any, x: Tensor) -> Tensor:
    return Twice.apply(x)


BODIES = (plain, counted, dropped, checkpointed_inside, differentiated_inside, in_autocast, own_function)


@pytest.mark.parametrize("body", BODIES)
def test_gradients_are_those_of_the_block(body: Body) -> None:
    def step(block: Block) -> list[Any]:
        x, shift = x_of(), x_of(1)
        loss = block(x, 0.5, shift=shift).square().sum()
        torch.rand(2)  # the generator has moved on
        loss.backward()
        return [loss, *gradients(block, [x, shift])]

    both(step, body)


@pytest.mark.parametrize("body", BODIES)
def test_a_checkpoint_around_the_block(body: Body) -> None:
    def step(block: Block) -> list[Any]:
        x = x_of()
        for early in (True, False):
            with set_checkpoint_early_stop(early):
                if body is not counted:  # the checkpoint would count twice
                    checkpoint(lambda x: block(block(x.sin()).cos()), x, use_reentrant=False).sum().backward()
                block(x).sum().backward()
        return gradients(block, [x])

    both(step, body)


@pytest.mark.parametrize("body", [plain, dropped])
def test_a_selective_checkpoint_around_the_block(body: Body) -> None:
    kept = functools.partial(
        create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default, torch.ops.aten.clone.default]
    )

    def step(block: Block) -> list[Any]:
        x = x_of()
        for _ in range(2):  # the first forward looks at more than later ones
            y = checkpoint(lambda x: block(block(x).cos()), x, use_reentrant=False, context_fn=kept)
            y.sum().backward()
        return gradients(block, [x])

    both(step, body)


def test_backwards_of_one_graph() -> None:
    def step(block: Block) -> list[Any]:
        x = x_of()
        out = block(x)
        found = list(torch.autograd.grad(out.sum(), [x], retain_graph=True))
        found += torch.autograd.grad(out.sum(), [block.last.weight], retain_graph=True)
        out.sum().backward(retain_graph=True)
        out.square().sum().backward()
        return [*found, *gradients(block, [x])]

    assert both(step, dropped).forwards == 5


def test_gradients_of_gradients() -> None:
    def step(block: Block) -> list[Any]:
        x = x_of()
        (inner,) = torch.autograd.grad(block(x).square().sum(), x, create_graph=True)
        inner.square().sum().backward()
        return [inner, *gradients(block, [x])]

    both(step, dropped)


def test_several_forwards_in_flight() -> None:
    def step(block: Block) -> list[Any]:
        xs = [x_of(i) for i in range(3)]
        outs = [block(x) for x in xs]
        for i in (1, 0, 2):
            outs[i].square().sum().backward()
        return gradients(block, xs)

    both(step, dropped)


def test_threads_that_run_backwards_of_one_graph() -> None:
    block = made(plain, True)
    x = x_of()
    out = block(x).square().sum()
    (expected,) = torch.autograd.grad(out, x, retain_graph=True)
    found: list[Tensor] = []

    def run() -> None:
        for _ in range(20):
            found.extend(torch.autograd.grad(out, x, retain_graph=True))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80 and all(torch.equal(each, expected) for each in found)


def test_settings_of_the_forward() -> None:
    """Backward is outside of the autocast that the forward was in."""

    def step(block: Block) -> list[Any]:
        block.float()
        x = x_of().detach().float().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.device("cpu"):
            out = block(x)
        out.float().sum().backward()
        return gradients(block, [x])

    both(step)


def test_a_saved_tensor_that_a_node_shows() -> None:
    out = made(plain, True)(x_of())
    node = out.grad_fn.next_functions[1][0]  # of the sine
    assert torch.equal(node._saved_self, node._saved_self)
    out.sum().backward()


def test_a_group_of_backwards_recomputes_once() -> None:
    group = getattr(torch.utils.checkpoint, "GraphExecGroup", None)
    if group is None:
        pytest.skip("this torch has no groups")
    block = made(plain, True)
    x = x_of()
    out = block(x)
    with group():
        torch.autograd.grad(out.sum(), block.last.weight, retain_graph=True)
        assert block.forwards == 2
        with pytest.raises(osdp.ShardingError, match=r"'the block'.*twice"):
            torch.autograd.grad(out.sum(), block.last.weight, retain_graph=True)
        assert block.forwards == 2


class Fails(Exception):
    pass


def test_an_exception_in_the_second_forward() -> None:
    """The next backward begins anew, with generators, hooks and buffers as they were."""
    fails: list[bool] = []

    def body(block: Any, x: Tensor) -> Tensor:
        if fails and fails.pop():
            raise Fails
        return block.drop(x).sin()

    def step(block: Block) -> list[Any]:
        x = x_of()
        out = block(x).sum()
        if isinstance(block.forward, RecomputedBlock):
            fails.append(True)
            before = torch.get_rng_state()
            with pytest.raises(Fails):
                out.backward(retain_graph=True)
            assert torch.equal(before, torch.get_rng_state())
            saved = torch.ones(1, requires_grad=True).exp()
            assert saved.grad_fn._saved_result is not None and torch.is_grad_enabled()
            block.zero_grad(), setattr(x, "grad", None)
        out.backward()
        return gradients(block, [x])

    both(step, body)


def test_an_exception_in_the_first_forward() -> None:
    fails = [True]

    def body(block: Any, x: Tensor) -> Tensor:
        if fails.pop():
            raise Fails
        return x.sin()

    block = made(body, True)
    with pytest.raises(Fails):
        block(x_of())

    kept = weakref.ref(x := x_of())
    x.exp()
    del x
    gc.collect()
    assert kept() is None


def changing(then: Callable[[Tensor], Tensor]) -> Body:
    def body(block: Any, x: Tensor) -> Tensor:
        return x.sin().cos() if block.forwards == 1 else then(x)

    return body


@pytest.mark.parametrize(
    ("then", "message"),
    [
        (lambda x: x + 1, "'the block' saved 7 tensors for backward, its recomputation 5"),
        (
            lambda x: x[:2].sin().cos(),
            r"tensor 3 .*'the block'.* is \[3, 5\] Double on cpu, .*\[2, 5\] Double on cpu",
        ),
        (
            lambda x: x.float().sin().cos(),
            r"tensor 3 .*'the block'.* is \[3, 5\] Double on cpu, .*\[3, 5\] Float on cpu",
        ),
    ],
)
def test_a_second_forward_that_saves_something_else(then: Any, message: str) -> None:
    x = x_of()
    block = made(changing(then), True)
    out = block(x)
    with pytest.raises(osdp.ShardingError, match=message):
        out.sum().backward()


class ReadTwice(Twice):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * ctx.saved_tensors[1] + 0 * ctx.saved_tensors[0]


def test_a_tensor_that_is_read_twice() -> None:
    x = x_of()
    out = made(lambda block, x: ReadTwice.apply(x), True)(x)
    with pytest.raises(osdp.ShardingError, match=r"'the block'.*read twice"):
        out.sum().backward()


def test_an_argument_that_is_written_to_before_backward() -> None:
    x = x_of().detach()
    out = made(plain, True)(x)
    x += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@dataclasses.dataclass(frozen=True)
class Held:
    parts: list[Any]


class Named(NamedTuple):
    parts: list[Any]


class Mapped(UserDict[str, Any]):
    pass


class Sums(nn.Module):
    """Adds up what is in a container."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, given: Any) -> Tensor:
        parts: list[Any] = getattr(given, "parts", given["parts"] if hasattr(given, "keys") else given)
        return self.linear(sum(parts)).sin()  # type: ignore[arg-type]


@pytest.mark.outcome(
    "a recomputed block that gets a list, mapping or dataclass which forward changes later", "equal"
)
@pytest.mark.parametrize(
    "container",
    [list, Held, Named, lambda p: {"parts": p}, lambda p: Mapped(parts=p), lambda p: Mapped(parts=tuple(p))],
)
@pytest.mark.parametrize("by_name", [False, True])
def test_a_container_that_the_caller_changes_before_backward(container: Any, by_name: bool) -> None:
    """As in features.append(block(features)), which also would hold its own graph for ever."""
    found = []
    for recomputed in (False, True):
        torch.manual_seed(3)
        block = Sums().double()
        if recomputed:
            block.forward = RecomputedBlock("the block", block)  # type: ignore[method-assign]
        x = x_of()
        kept = weakref.ref(x)
        parts = [x, 2.0]
        given = parts if container is list else container(parts)
        out = block(given=given) if by_name else block(given)
        parts += [out, 5.0]
        if isinstance(given, Mapped):
            given["parts"] = [x]
        out.sum().backward()
        found.append([x.grad, *(p.grad for p in block.parameters())])
        out = block(given)
        parts.append(out)
        del x, out, given, parts
        assert kept() is None
    for whole, again in zip(*found, strict=True):
        assert torch.equal(whole, again)


@pytest.mark.parametrize("by_name", [False, True])
def test_a_tensor_in_a_container_that_is_written_to_before_backward(by_name: bool) -> None:
    block = Sums().double()
    block.forward = RecomputedBlock("the block", block)  # type: ignore[method-assign]
    x = x_of().detach()
    out = block(given=[x]) if by_name else block([x])
    x += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


class Watched(torch.autograd.Function):
    """Saves a copy of its input, which it may read; counts the copies of all of them that are alive then."""

    alive: list[weakref.ref[Tensor]]
    seen: list[int]

    @staticmethod
    def forward(ctx: Any, x: Tensor, read: bool) -> Tensor:
        saved = x.detach().clone()
        Watched.alive.append(weakref.ref(saved))
        ctx.save_for_backward(saved)
        ctx.read = read
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        if ctx.read:
            len(ctx.saved_tensors)
        Watched.seen.append(count_alive())
        return grad, None


def count_alive() -> int:
    return sum(each() is not None for each in Watched.alive)


def test_tensors_live_until_they_are_used() -> None:
    """Or until their nodes are released, as with torch's checkpoint."""

    def body(block: Any, x: Tensor) -> Tensor:
        for read in (True, False, True):
            x = Watched.apply(x, read)
        return x

    seen = []
    for ours in (True, False):
        Watched.alive, Watched.seen = [], []
        block = made(body, ours)
        out = block(x_of()) if ours else checkpoint(block, x_of(), use_reentrant=False)
        assert count_alive() == 0
        out.sum().backward(retain_graph=True)
        out.sum().backward()
        assert count_alive() == 0
        seen.append(Watched.seen)
    # The third is gone once it is read. The second, which is not read, stays with its node: from the first backward, too.
    assert seen[0] == seen[1] == [2, 2, 1, 3, 3, 0]


def test_a_graph_that_is_dropped_keeps_nothing() -> None:
    block = made(dropped, True)
    gc.disable()
    try:
        x, shift = x_of(), x_of(1)
        kept = [weakref.ref(t) for t in (x, shift)]
        out = block(x, shift=shift)
        del x, shift
        assert all(each() is not None for each in kept)
        del out
        assert not any(each() is not None for each in kept)
    finally:
        gc.enable()


def test_what_a_call_looks_at() -> None:
    a, b = torch.ones(2), torch.ones(3)
    tree = {"a": [a, (b,)], "c": {b}}
    before = _C.versions_in(tree)
    assert before == _C.versions_in(tree)
    b.add_(1)
    changed = _C.versions_in(tree)
    assert changed != before
    tree["a"].append(torch.ones(1))
    assert _C.versions_in(tree) != changed
    assert _C.accelerators_in(tree) == []
    module = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    module.append(module[0])
    assert [name for _, name in _C.buffers_in(module)] == [
        "running_mean",
        "running_var",
        "num_batches_tracked",
    ]
