"""Where a stage of a pipeline may begin: what a forward passes beside the first tensor of a module."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import osdp

WIDTH, WORDS, LENGTH = 4, 12, 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH)

    def forward(self, x: Tensor, *factors: Tensor) -> Tensor:
        y = self.down(torch.tanh(self.up(x)))
        for factor in factors:
            y = y * factor
        return x + y


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(6))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def between(self, x: Tensor, tokens: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.between(self.token(tokens), tokens)))


class Masked(Net):
    """Positions and masks are the inputs'; of an early tensor the shape alone is used."""

    def between(self, x: Tensor, tokens: Tensor) -> Tensor:
        first, mask = x, (tokens % 2 == 0).unsqueeze(-1).to(x.dtype)
        for i, block in enumerate(self.blocks):
            x = block(x * (1 + i), mask)
        return x * torch.ones_like(first) + first.new_zeros(first.shape)


class First(Net):
    """The first block's input goes into every block."""

    def between(self, x: Tensor, tokens: Tensor) -> Tensor:
        first = x
        for block in self.blocks:
            x = block(x, first)
        return x


class Skips(Net):
    def between(self, x: Tensor, tokens: Tensor) -> Tensor:
        kept = []
        for block in self.blocks[:3]:
            x = block(x)
            kept.append(x)
        for block in self.blocks[3:]:
            x = block(x + kept.pop())
        return x


class Encoded(Net):
    """Of an encoder and a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.target = nn.Embedding(WORDS, WIDTH)

    def between(self, x: Tensor, tokens: Tensor) -> Tensor:
        for block in self.blocks[:3]:
            x = block(x)
        y = self.target(tokens.flip(1))
        for block in self.blocks[3:]:
            y = block(y, x)
        return y


class Twice(Net):
    def between(self, x: Tensor, tokens: Tensor) -> Tensor:
        for block in (*self.blocks, self.blocks[2]):
            x = block(x)
        return x


class Around(Net):
    """Residuals that no module does."""

    def between(self, x: Tensor, tokens: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block.down(torch.tanh(block.up(x)))
        return x


class Auxiliary(Net):
    def between(self, x: Tensor, tokens: Tensor) -> Tensor:
        sums = []
        for block in self.blocks:
            x = block(x)
            sums.append(x.mean())
        return x + sums[1]


class Table(nn.Module):
    """Without parameters, called with what it needs of the inputs, and with another tensor for its dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rates", torch.rand(WIDTH))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        self.calls += 1
        return torch.sin(tokens.unsqueeze(-1).to(x.dtype) @ x.new_ones(1, 1) * self.rates)


class Rotated(Net):
    def __init__(self) -> None:
        super().__init__()
        self.table = Table()

    def between(self, x: Tensor, tokens: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, self.table(x, tokens))
        return x


class Normed(Net):
    """A batch norm without parameters behind each block."""

    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(LENGTH, affine=False)

    def between(self, x: Tensor, tokens: Tensor) -> Tensor:
        for block in self.blocks:
            x = self.bn(block(x))
        return x


class Shared(Net):
    """The same in each block."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.BatchNorm1d(LENGTH, affine=False)
        for block in self.blocks:
            block.norm = norm
            block.register_forward_hook(lambda module, args, output: module.norm(output))


class Averaged(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def between(self, x: Tensor, tokens: Tensor) -> Tensor:
        x = super().between(x, tokens)
        self.mean.lerp_(x.detach().mean(), 0.5)
        return x


class Counted(Averaged):
    def between(self, x: Tensor, tokens: Tensor) -> Tensor:
        self.mean += tokens.shape[1]
        return Net.between(self, x, tokens)


class Reentrant(Net):
    def between(self, x: Tensor, tokens: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True)
        return x


def blocks(*numbers: int) -> list[str]:
    return [f"blocks.{n}" for n in numbers]


ALL = ["blocks.0", "blocks.1", "blocks.2", "blocks.3", "blocks.4", "blocks.5", "norm", "head"]


@pytest.mark.parametrize(
    ("kind", "possible", "why"),
    [
        (Net, ALL, ""),
        (Masked, ALL, ""),
        (First, ["norm", "head"], "its argument 1 is computed before it"),
        (Skips, [*blocks(0, 5), "norm", "head"], "in another way than as its first tensor"),
        (Encoded, [*blocks(0, 1, 2), "norm", "head"], "argument 1"),
        (Twice, [*blocks(0, 1, 2), "norm", "head"], "in another way"),
        (Around, ["norm", "head"], "in another way"),
        (Auxiliary, [*blocks(0, 1), "norm", "head"], "in another way"),
        (Rotated, ALL, ""),
        (Normed, [*blocks(0), "norm", "head"], "in another way"),
        (Shared, [*blocks(0), "norm", "head"], "in another way"),
        (Averaged, [], "a buffer of 'the model'"),
        (Counted, ALL, ""),
        (Reentrant, ["norm", "head"], "use_reentrant=True"),
    ],
)
def test_where_a_stage_may_begin(kind: type[Net], possible: list[str], why: str) -> None:
    tokens = torch.randint(0, WORDS, (2, LENGTH))
    found = osdp.describe(kind(), tokens).begins
    names = [b.module for b in found if b.module in ALL or b.module.startswith("blocks")]
    assert [b.module for b in found if not b.why_not and b.module in names] == possible
    assert not why or any(why in b.why_not for b in found)


class OnValues(Net):
    def between(self, x: Tensor, tokens: Tensor) -> Tensor:
        return super().between(x, tokens) if x.abs().sum().item() > 0 else x


def test_a_forward_that_depends_on_values() -> None:
    """It is traced on real tensors, after an attempt without."""
    tokens = torch.randint(0, WORDS, (2, LENGTH))
    found, usual = osdp.describe(OnValues(), tokens), osdp.describe(Net(), tokens)
    assert found.begins == usual.begins
    assert found.output_bytes_per_sample == usual.output_bytes_per_sample > 0
