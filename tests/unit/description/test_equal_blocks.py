"""Blocks that are followed instead of traced: the description is that of a trace of all of them, byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

import osdp
from osdp.description import block_runs, equal_blocks

WIDTH = 8
COUNTED = {"calls": 0}


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.scale = scale
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        gradient = gradients[0]
        return (gradient * 2 if ctx.scale == 1 else gradient + (gradient * 1).exp() * 0), None


class Block(nn.Module):
    """`kind`: what every block does; `odd`: what this one does besides."""

    def __init__(self, index: int, kind: str, odd: str) -> None:
        super().__init__()
        self.index, self.kind, self.odd = index, kind, odd
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.5 if odd == "dropout" else 0.1)
        self.register_buffer("scale", torch.ones(3 if odd == "buffer" else 1))
        self.register_buffer("flag", torch.tensor(int(odd == "flag")))
        self.calls = 0

    def forward(self, x: torch.Tensor, shared: torch.Tensor) -> Any:
        self.calls += 1
        COUNTED["calls"] += 1
        y = self.norm(x)
        if self.kind == "low" or self.odd == "dtype":
            y = y.to(torch.bfloat16).to(x.dtype)
        if self.kind == "shared":
            y = y * shared
        y = self.up(y)
        y = torch.relu_(y) if self.kind == "in place" else torch.tanh(y) if self.kind == "view" else y.relu()
        with torch.set_grad_enabled(self.odd != "no grad"):
            y = self.down(self.drop(y))
        if self.odd == "index":
            y = y + self.index
        if self.odd == "calls" and self.calls == 1:
            y = y.exp()
        if self.odd == "global" and COUNTED["calls"] % 2:
            y = y.sigmoid()
        if self.flag.item():
            y = y.tanh()
        if self.odd == "random" and torch.rand(()) < 0.5:
            y = y.cos()
        if self.odd == "function":
            y = Doubled.apply(y, float(self.index % 2))
        if self.odd == "tensor hook":
            y.register_hook(lambda gradient: (gradient * 2).exp() * 0 + gradient)
        if self.odd == "node hook":
            y.grad_fn.register_prehook(lambda gradients: (gradients[0].exp() * 0 + gradients[0],))
        if self.odd == "detached":
            y = y.detach().requires_grad_()
        out = x + y
        if self.kind == "view":
            out = out.transpose(0, 1).contiguous().transpose(0, 1)
        if self.odd == "aliases":
            return x[:] if self.kind != "tuple" else (x[:], shared)
        return (out, shared) if self.kind == "tuple" else out


class Model(nn.Module):
    def __init__(self, kind: str, odd: str, at: int, length: int) -> None:
        super().__init__()
        self.kind, self.odd, self.at = kind, odd, at
        self.inward, self.outward = nn.Linear(4, WIDTH), nn.Linear(WIDTH, 4)
        self.bias = nn.Parameter(torch.ones(WIDTH))
        self.blocks = nn.ModuleList(Block(i, kind, odd if i == at else "") for i in range(length))
        block: Any = self.blocks[at]
        if odd == "tied":
            block.up.weight = self.blocks[at - 1].up.weight
        elif odd == "tied outside":
            self.again = nn.Linear(WIDTH, 2 * WIDTH)
            self.again.weight = block.up.weight
        elif odd == "shared module":
            block.down = self.blocks[at - 1].down
        elif odd == "frozen":
            block.up.weight.requires_grad_(False)
        elif odd == "frozen until":
            for before in self.blocks[: at + 1]:
                before.requires_grad_(False)
        elif odd == "parameter dtype":
            block.norm.to(torch.float64)
            block.norm.register_forward_pre_hook(lambda _, given: (given[0].double(),))
            block.norm.register_forward_hook(lambda _, given, result: result.float())
        elif odd == "hook":
            block.register_forward_hook(lambda _, given, result: result)
            block.down.register_forward_hook(lambda _, given, result: result * 1.5)
        elif odd == "backward hook":
            block.up.register_full_backward_hook(lambda _, to, of: (to[0].exp() * 0 + to[0],))
        elif odd == "evaluated":
            block.eval()
        elif odd == "shape":
            block.up, block.down = nn.Linear(WIDTH, 5), nn.Linear(5, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inward(x)
        shared = (x.mean(0, keepdim=True) if self.odd == "shared gradient" else x.detach()) * self.bias
        kept: list[torch.Tensor] = []
        for i, block in enumerate(self.blocks):
            odd = i == self.at
            if odd and self.odd == "recomputed":
                out = checkpoint(block, x, shared, use_reentrant=False)
            elif odd and self.odd == "twice":
                out = block(x, shared)
                out = block(out[0] if self.kind == "tuple" else out, shared)
            elif odd and self.odd == "skipped":
                continue
            elif odd and self.odd == "fewer":
                out = block(x[:, :1], shared[:, :1])
            elif odd and self.odd == "other input":
                out = block(x, shared.clone())
            else:
                out = block(x, shared)
            x = out[0] if self.kind == "tuple" else out
            if self.odd == "kept" or (odd and self.odd == "one kept"):
                kept.append(x)
            if odd and self.odd == "between":
                x = x * 2
            if odd and self.odd == "stashed":
                self.stash = x
        if self.odd == "read outside":
            x = x + self.blocks[self.at].up.weight.sum()  # type: ignore[operator, union-attr]
        if self.odd == "tied outside":
            x = x + self.again(x).mean()
        return self.outward(sum(kept, x)).sum()


KINDS = ("plain", "low", "shared", "in place", "view", "tuple")
ODD = (
    *("", "dropout", "buffer", "flag", "dtype", "no grad", "index", "calls", "global", "random", "function"),
    *("tensor hook", "node hook", "detached", "aliases", "tied", "tied outside", "shared module", "frozen"),
    *("frozen until", "parameter dtype", "hook", "backward hook", "evaluated", "shape", "shared gradient"),
    *("recomputed", "twice", "skipped", "fewer", "other input", "kept", "one kept", "between", "stashed"),
    "read outside",
)


@dataclass
class Followed:
    count: int = 0


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Followed]:
    """Counts the blocks that were followed in traces that succeeded."""
    found = Followed()
    returns = equal_blocks.EqualBlocks.returns

    def counting(self: equal_blocks.EqualBlocks, output: Any) -> None:
        returns(self, output)
        found.count += sum(len(run.followed) for run in self.runs)

    monkeypatch.setattr(equal_blocks.EqualBlocks, "returns", counting)
    yield found


def described(make: Callable[[], nn.Module], sample: torch.Tensor, least: int) -> str:
    """The description of a new model, or why there is none; blocks are followed in rows of at least `least`."""
    before, block_runs.LEAST = block_runs.LEAST, least
    COUNTED["calls"] = 0
    torch.manual_seed(0)
    try:
        return osdp.describe(make(), sample).dumps()
    except osdp.DescribeError as error:
        return str(error)
    finally:
        block_runs.LEAST = before


# Each kind and each oddity by itself are below; pairs of them are drawn.
@pytest.mark.extras
@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    st.sampled_from(KINDS),
    st.sampled_from(ODD),
    st.integers(1, 8),
    st.integers(9, 11),
    st.sampled_from([1, 2]),
)
def test_a_description_is_that_of_all_blocks(kind: str, odd: str, at: int, length: int, batch: int) -> None:
    sample = torch.randn(batch, 3, 4)
    few = described(lambda: Model(kind, odd, at, length), sample, block_runs.LEAST)
    assert few == described(lambda: Model(kind, odd, at, length), sample, 10**9)


@pytest.mark.parametrize("odd", ODD)
def test_each_oddity(odd: str) -> None:
    sample = torch.randn(2, 3, 4)
    few = described(lambda: Model("plain", odd, 4, 9), sample, block_runs.LEAST)
    assert few == described(lambda: Model("plain", odd, 4, 9), sample, 10**9)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_blocks_are_followed(kind: str, followed: Followed) -> None:
    described(lambda: Model(kind, "", 0, 12), torch.randn(2, 3, 4), block_runs.LEAST)
    assert followed.count >= 2 * 6, "in both traces, all but three or four at the begin and two at the end"
