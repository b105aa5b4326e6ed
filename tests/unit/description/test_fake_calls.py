"""ATen calls on fake tensors: the same results as those of the fake mode, call by call and in the description."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import osdp
from osdp.base.tensor_trees import tensors_in
from osdp.description import live_bytes
from osdp.description.fake_calls import call_fake
from tests.unit.description.nasty_models import GPT, Block, ConvNet, Scaled, Structured, Wrapped
from tests.unit.description.test_describe_families import MinGPT

TOKENS = torch.zeros(2, 16, dtype=torch.long)


def traits(tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.layout is not torch.strided:
        return tensor.layout, tensor.shape, tensor.dtype, tensor.device
    keys = torch._C._dispatch_keys(tensor)
    storage = tensor.untyped_storage().nbytes()
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device, keys, storage


class Strange(Block):
    """A block with one hidden difference, which no parameter, child or public attribute shows."""

    def __init__(self, width: int, change: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        super().__init__(width)
        self._change = [change]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self._change[0](x) if self._change[0] else x)


def strange(change: Callable[[torch.Tensor], torch.Tensor] | None, width: int = 32) -> nn.Module:
    """Five blocks that look alike; the third changes what it is given."""
    model = GPT(width, layers=0)
    model.blocks = nn.ModuleList(Strange(width, change if i == 2 else None) for i in range(5))
    return model


def hooked() -> nn.Module:
    model = GPT(layers=5)
    model.blocks[2].register_forward_hook(lambda m, given, out: out.sigmoid())
    return model


def dropped() -> nn.Module:
    model = GPT(layers=5)
    model.blocks[2].dropout.p = 0.5
    return model


def shared() -> nn.Module:
    model = GPT(layers=5)
    model.blocks[2].up.weight = model.blocks[0].up.weight
    return model


def frozen() -> nn.Module:
    model = GPT(layers=5)
    model.blocks[2].requires_grad_(False)
    return model


def half() -> nn.Module:
    model = GPT(layers=5)
    model.blocks[2].down = nn.Sequential(model.blocks[2].down.double(), nn.Identity())
    model.blocks[2].down[0].register_forward_pre_hook(lambda m, given: (given[0].double(),))
    model.blocks[2].down[0].register_forward_hook(lambda m, given, out: out.float())
    return model


def patched() -> nn.Module:
    model = GPT(layers=5)
    model.blocks[2].forward = lambda x: x + model.blocks[2].proj(x).tanh()
    return model


STRANGERS: dict[str, Callable[[], nn.Module]] = {
    "a strided copy": lambda: strange(lambda x: x.transpose(0, 1).contiguous().transpose(0, 1) * 1),
    "an integer and a fraction": lambda: strange(lambda x: (x.long() * 1 + x.long() * 1.0).float() * x),
    "an activation more": lambda: strange(F.silu),
    "complex numbers": lambda: strange(lambda x: torch.view_as_real(torch.complex(x, x).conj() * 2).sum(-1)),
    "negative bits": lambda: strange(lambda x: torch.complex(x, x).conj().imag.exp() * x),
    "another default": lambda: strange(with_doubles),
    "hooked": hooked,
    "dropped": dropped,
    "shared": shared,
    "frozen": frozen,
    "half": half,
    "patched": patched,
}


def with_doubles(x: torch.Tensor) -> torch.Tensor:
    torch.set_default_dtype(torch.float64)
    try:
        return (x.long() + 0.5).sum().to(x) * x
    finally:
        torch.set_default_dtype(torch.float32)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...]]] = {
    **{name: (make, (TOKENS,)) for name, make in STRANGERS.items()},
    "MinGPT": (lambda: MinGPT([32, 32, 48, 48, 32]), (TOKENS, TOKENS)),
    "ConvNet": (ConvNet, (torch.randn(2, 3, 8, 8),)),
    "Scaled": (Scaled, (torch.randn(2, 4),)),
    "Structured": (lambda: CallsStructured(), (torch.randn(2, 4),)),
    "Wrapped": (Wrapped, (torch.randn(3, 4),)),
    "sparse gradients": (lambda: nn.Sequential(nn.Embedding(9, 8, sparse=True), nn.Linear(8, 8)), (TOKENS,)),
    "LSTM": (lambda: nn.LSTM(8, 16, 2, batch_first=True), (torch.randn(2, 5, 8),)),
    "encoder": (lambda: nn.TransformerEncoderLayer(16, 2, batch_first=True), (torch.randn(2, 5, 16),)),
}


class CallsStructured(Structured):
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward({"x": [x]}, bias=x)


# These call what GPTs call: what differs in their blocks is below, in what the description says of it.
SEEN_IN_THEIR_BLOCKS = ("hooked", "dropped", "shared", "frozen", "patched")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.extras] * (n in SEEN_IN_THEIR_BLOCKS)) for n in MODELS]
)
def test_every_result_and_the_description_are_those_of_the_fake_mode(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, sample = MODELS[name]
    model = make()
    differing = []

    def compared(func: Any, args: Any, kwargs: Any) -> Any:
        out = call_fake(func, args, kwargs)
        if not func._schema.is_mutable:
            again = func(*args, **kwargs)
            if [traits(t) for t in tensors_in(out)] != [traits(t) for t in tensors_in(again)]:
                differing.append((func, args, out, again))
        return out

    with monkeypatch.context() as patch:
        patch.setattr(live_bytes, "call_fake", compared)
        described = osdp.describe(model, *sample)
    assert not differing
    monkeypatch.setattr(live_bytes, "call_fake", lambda func, args, kwargs: func(*args, **kwargs))
    assert osdp.describe(model, *sample) == described


def test_a_description_does_not_depend_on_pythons_collector() -> None:
    model, thresholds = patched(), gc.get_threshold()
    seldom = osdp.describe(model, TOKENS)
    try:
        gc.set_threshold(1)
        assert osdp.describe(model, TOKENS) == seldom
    finally:
        gc.set_threshold(*thresholds)
    gc.disable()
    try:
        assert osdp.describe(model, TOKENS) == seldom and not gc.isenabled()
    finally:
        gc.enable()


# What the third block saves and computes more than others, per sample.
@pytest.mark.parametrize(
    ("name", "saved", "flops"),
    [
        ("an activation more", 16 * 32 * 4, 0),
        ("hooked", 16 * 32 * 4, 0),
        ("dropped", 16 * 32 * 4, 0),
        ("half", 16 * 128 * 4, 0),
        ("frozen", -12288, 0),
        ("patched", -29184, -393216),
    ],
)
def test_a_block_that_only_looks_alike_is_described_as_it_is(name: str, saved: int, flops: int) -> None:
    description = osdp.describe(STRANGERS[name](), TOKENS)

    def of(block: int) -> tuple[int, int]:
        inside = [o for o in description.operators if o.name.startswith(f"blocks.{block}")]
        return sum(o.saved_bytes_per_sample for o in inside), sum(o.flops_per_sample for o in inside)

    assert of(1) == of(4)
    assert (of(2)[0] - of(1)[0], of(2)[1] - of(1)[1]) == (saved, flops)
