"""The protocol between the split product and whoever holds its slices; SplitCall in a module."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import osdp
from osdp._C import register_source, unregister_source
from osdp.ranks import extension_lifetime  # noqa: F401  gives the extension's errors their types
from osdp.sharding.split_linear import SplitCall
from tests.unit.sharding.split_helpers import TensorSource
from tests.unit.sharding.split_operators import split_linear

OUT, IN, G = 12, 8, 4


@pytest.fixture(params=("out", "in"))
def source(request: pytest.FixtureRequest) -> Iterator[TensorSource]:
    torch.manual_seed(0)
    made = TensorSource(torch.randn(OUT, IN, dtype=torch.float64), G, request.param)
    yield made
    assert made.balanced()
    made.close()


def shard() -> Tensor:
    """What a rank may hold of the weight: of any shape, and poison if it were read."""
    return torch.full((1, IN), float("nan"), dtype=torch.float64, requires_grad=True)


def call(source: TensorSource, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return split_linear(
        x, weight, bias, granularity=G, split=source.split, out_features=OUT, in_features=IN, source=source.id
    )


def sample() -> Tensor:
    return torch.randn(3, IN, dtype=torch.float64, requires_grad=True)


def test_order_of_calls(source: TensorSource) -> None:
    weight = shard()
    y = call(source, sample(), weight)
    forward = []
    for i in range(G):
        forward += [("acquire", i, i + 1 if i + 1 < G else -1), ("release", i)]
    assert source.events == forward
    source.events.clear()
    y.sum().backward()
    backward = []
    for i in reversed(range(G)):
        backward += [("acquire", i, i - 1), ("release", i), ("put_grad", i)]
    assert source.events == backward
    assert source.most_held == 1
    assert weight.grad is None


def test_the_weights_accumulate_grad_node_runs_after_the_last_put_grad(source: TensorSource) -> None:
    weight = shard()
    node = weight.expand_as(weight).grad_fn.next_functions[0][0]
    node.register_hook(lambda *_: source.events.append(("accumulated",)))
    y = call(source, sample(), weight) + call(source, sample(), weight)
    source.events.clear()
    y.sum().backward()
    assert [e for e in source.events if e[0] == "accumulated"] == [("accumulated",)]
    assert source.events[-1] == ("accumulated",)
    assert sum(e[0] == "put_grad" for e in source.events) == 2 * G


def test_only_what_is_asked_for_is_computed(source: TensorSource) -> None:
    x, weight = sample(), shard()
    y = call(source, x, weight)
    source.events.clear()
    torch.autograd.grad(y.sum(), x)
    assert {e[0] for e in source.events} == {"acquire", "release"}
    y = call(source, x.detach(), weight)
    source.events.clear()
    y.sum().backward()
    assert source.events == [("put_grad", i) for i in reversed(range(G))]


@pytest.mark.parametrize("phase", ("forward", "backward"))
@pytest.mark.parametrize("where", ("acquire", "put_grad"))
@pytest.mark.parametrize("index", (0, 2, G - 1))
def test_an_exception_passes_unchanged_and_leaves_nothing_acquired(
    source: TensorSource, phase: str, where: str, index: int
) -> None:
    x, weight = sample(), shard()
    if phase == "forward":
        source.fail_at = (where, index)
        if where == "put_grad":
            call(source, x, weight)
            return
        with pytest.raises(KeyError, match=f"{where} {index} failed"):
            call(source, x, weight)
    else:
        y = call(source, x, weight)
        source.fail_at = (where, index)
        with pytest.raises(KeyError, match=f"{where} {index} failed"):
            y.sum().backward()
    assert source.balanced()
    source.fail_at = None
    source.grads.clear()
    call(source, x, weight).sum().backward()  # and it works again
    assert len(source.grads) == G


@pytest.mark.parametrize("wrong", ("shape", "dtype"))
def test_a_slice_that_does_not_fit_is_refused_and_released(source: TensorSource, wrong: str) -> None:
    good = source.slices[1]
    source.slices[1] = good[:, :1].clone() if wrong == "shape" else good.bfloat16()
    with pytest.raises(RuntimeError, match="slice 1 has shape" if wrong == "shape" else "Double"):
        call(source, sample(), shard())
    assert source.balanced()


def test_unregistered_between_forward_and_backward_is_an_error_that_says_so(source: TensorSource) -> None:
    y = call(source, sample(), shard())
    source.close()
    with pytest.raises(RuntimeError, match="not registered"):
        y.sum().backward()


def test_ids_are_never_reused_and_an_unregistered_source_is_let_go() -> None:
    first = TensorSource(torch.zeros(2, 2), 1, "out")
    watched, first_id = weakref.ref(first), first.id
    first.close()
    del first
    gc.collect()
    assert watched() is None
    second = register_source(object())
    assert second > first_id > 0
    unregister_source(second)
    unregister_source(second)  # harmless


@pytest.mark.parametrize("reentrant", (True, False))
def test_recomputation(source: TensorSource, reentrant: bool) -> None:
    x, weight = sample(), shard()
    full = torch.cat(source.slices, 0 if source.split == "out" else 1).requires_grad_()
    F.linear(x, full).square().sum().backward()
    expected, x.grad = x.grad, None
    y = checkpoint(lambda t: call(source, t, weight).square(), x, use_reentrant=reentrant)
    y.sum().backward()
    torch.testing.assert_close(x.grad, expected)
    torch.testing.assert_close(source.full_grad(), full.grad)


def test_no_graph_is_kept_under_no_grad_and_inference_mode(source: TensorSource) -> None:
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            y = call(source, sample(), shard())
        assert not y.requires_grad and y.isfinite().all()


def make_linear(source: TensorSource) -> nn.Linear:
    linear = nn.Linear(IN, OUT, dtype=torch.float64)
    with torch.no_grad():
        linear.weight.copy_(torch.cat(source.slices, 0 if source.split == "out" else 1))
    return linear


def test_split_call_replaces_the_call_of_a_linear_and_nothing_else(source: TensorSource) -> None:
    linear = make_linear(source)
    x = sample()
    expected = linear(x)
    weight, bias = linear.weight, linear.bias
    seen: list[str] = []
    linear.register_forward_pre_hook(lambda *_: seen.append("before"))
    linear.register_forward_hook(lambda *_: seen.append("after"))
    linear.forward = SplitCall(weight, bias, OUT, IN, G, source.split, source.id)  # type: ignore[method-assign]
    weight.data = weight.data[:2].clone()  # the shard
    torch.testing.assert_close(linear(x), expected)
    torch.testing.assert_close(linear(input=x), expected)
    assert seen == ["before", "after"] * 2
    assert (
        type(linear) is nn.Linear
        and linear.weight is weight
        and dict(linear.named_parameters()).keys()
        == {
            "weight",
            "bias",
        }
    )
    linear(x).sum().backward()
    assert weight.grad is None and bias.grad is not None and len(source.grads) == G


def test_split_call_sees_what_is_put_into_the_parameters() -> None:
    weight, bias = nn.Parameter(torch.zeros(OUT, IN)), nn.Parameter(torch.zeros(OUT))
    split_call = SplitCall(weight, bias, OUT, IN, 2, "out")
    x = torch.ones(IN)
    assert not split_call(x).any()
    weight.data = torch.ones(OUT, IN)
    with torch.no_grad():
        bias.add_(1)
    assert torch.equal(split_call(x), torch.full((OUT,), IN + 1.0))
    split_call(x).sum().backward()
    assert weight.grad is not None and bias.grad is not None


@pytest.mark.parametrize("transposed", (False, True))
def test_split_call_computes_with_what_a_functional_call_gives(
    source: TensorSource, transposed: bool
) -> None:
    """Not with the slices, which are another weight's."""
    linear, x = make_linear(source), sample()
    whole = nn.Linear(OUT, IN) if transposed else linear
    sizes = (IN, OUT) if transposed else (OUT, IN)
    given = {k: torch.randn_like(p).double().requires_grad_() for k, p in linear.named_parameters()}
    expected = torch.func.functional_call(linear, given, (x,))
    weight, bias = linear.weight, linear.bias
    if transposed:
        whole.weight, whole.bias, given["weight"] = weight, bias, given["weight"].t()
    whole.forward = SplitCall(  # type: ignore[method-assign]
        weight, bias, OUT, IN, G, source.split, source.id, transposed, whole._parameters
    )
    called = torch.func.functional_call(whole, given, (x,))
    torch.testing.assert_close(called, expected)
    assert all(g.any() for g in torch.autograd.grad(called.sum(), list(given.values()))) and not source.grads
    with pytest.raises(RuntimeError, match=rf"\[2, .*\[{sizes[0]}, "):
        torch.func.functional_call(whole, {"weight": given["weight"][:2]}, (x,))
    if not transposed:
        other = torch.func.functional_call(whole, {"bias": given["bias"]}, (x,))
        torch.testing.assert_close(other - whole(x), (given["bias"] - bias).expand_as(other))


def test_split_call_refuses_at_once_what_cannot_be() -> None:
    weight = nn.Parameter(torch.zeros(OUT, IN))
    with pytest.raises(ValueError, match="does not divide"):
        SplitCall(weight, None, OUT, IN, 5, "in")
    with pytest.raises(ValueError, match="'up'"):
        SplitCall(weight, None, OUT, IN, 2, "up")
    sparse, jagged = torch.ones(2, IN).to_sparse(), torch.nested.as_nested_tensor(torch.ones(2, 3, IN))
    for given in (sparse, jagged):
        with pytest.raises(osdp.ShardingError, match="granularity 1"):
            SplitCall(weight, None, OUT, IN, 2, "out")(given)
    assert repr(SplitCall(weight, None, OUT, IN, 2, "in", 7)) == (
        f"SplitCall(in_features={IN}, out_features={OUT}, bias=False, granularity=2, split='in', source=7)"
    )
