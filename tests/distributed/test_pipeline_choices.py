"""What osdp.search offers, osdp.parallelize trains: forwards that pass more between modules than one tensor."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from harness import Member
from support.pair import close, naming
from test_parallelize import LAYERS, LENGTH, SAMPLES, WIDTH, WORDS, Block, Net, batch, loss_of, plan_for
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import osdp


class Between(Net):
    """What is between the embeddings and the norm."""

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.between(self.embedded(tokens), tokens)))

    def between(self, x: Tensor, tokens: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class EncoderDecoder(Between):
    """A list of blocks per side; the encoder's output goes into each block of the decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.target = nn.Embedding(WORDS, WIDTH)
        self.decoder = nn.ModuleList(Block() for _ in range(2))

    def between(self, x: Tensor, tokens: Tensor) -> Tensor:
        x, y = super().between(x, tokens), self.target(tokens.flip(1))
        for block in self.decoder:
            y = block(y, x)
        return y


class Skips(Between):
    def between(self, x: Tensor, tokens: Tensor) -> Tensor:
        kept = []
        for block in self.blocks[:2]:
            x = block(x)
            kept.append(x)
        for block in self.blocks[2:]:
            x = block(x) + kept.pop()
        return x


class Table(nn.Module):
    """Rotary: made of the inputs; of the other tensor it asks for the dtype. It counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rates", torch.rand(WIDTH))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        self.calls += 1
        return torch.sin(tokens.unsqueeze(-1).to(x.dtype) @ x.new_ones(1, 1) * self.rates)


class Rotated(Between):
    def __init__(self) -> None:
        super().__init__()
        self.table = Table()

    def between(self, x: Tensor, tokens: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, self.table(x, tokens))
        return x


class Normed(Between):
    """One batch norm without parameters behind each block, or in each."""

    def __init__(self, inside: bool = False) -> None:
        super().__init__()
        self.bn = None if inside else nn.BatchNorm1d(LENGTH, affine=False)
        for block, norm in zip(self.blocks, [nn.BatchNorm1d(LENGTH, affine=False)] * LAYERS, strict=True):
            block.norm = norm if inside else block.norm

    def between(self, x: Tensor, tokens: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x) if self.bn is None else self.bn(block(x))
        return x


class Mean(Block):
    """With a mean beside its output: larger than what passes, both together."""

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Any:
        y = super().forward(x)
        return y, y.mean()


class Auxiliary(Between):
    def __init__(self, used: bool = False) -> None:
        super().__init__()
        self.blocks, self.used = nn.ModuleList(Mean() for _ in range(LAYERS)), used

    def between(self, x: Tensor, tokens: Tensor) -> Tensor:
        whole: Any = 0
        for block in self.blocks:
            x, mean = block(x)
            whole = whole + mean
        return x + whole if self.used else x


class Recomputed(Between):
    """Each block is recomputed in backward, by the script, with what is computed before it."""

    def between(self, x: Tensor, tokens: Tensor) -> Tensor:
        for i, block in enumerate(self.blocks):
            x = checkpoint(lambda x, b=block, f=1 + i / 8: b(x * f), x, use_reentrant=False)
        return x


class InDictionary(Between):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleDict({f"layer{i}": block for i, block in enumerate(self.blocks)})

    def between(self, x: Tensor, tokens: Tensor) -> Tensor:
        for block in self.blocks.values():
            x = block(x)
        return x


# Where the second stage may begin.
KINDS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "encoder and decoder": (EncoderDecoder, ("blocks.", "norm", "head")),
    "skips": (Skips, ("blocks.0", "norm", "head")),
    "rotary": (Rotated, ("blocks.",)),
    "a batch norm of all": (Normed, ("blocks.0", "norm", "head")),
    "a batch norm in all": (lambda: Normed(inside=True), ("blocks.0", "norm", "head")),
    "tuples": (Auxiliary, ("blocks.",)),
    "sums": (lambda: Auxiliary(used=True), ("blocks.0", "norm", "head")),
    "recomputed": (Recomputed, ("blocks.",)),
    "a dictionary": (InDictionary, ("blocks.", "norm")),
}


def trains(me: Member) -> None:
    for name, (kind, begins) in KINDS.items():
        with naming(name):
            torch.manual_seed(0)
            whole = kind().double()
            model = copy.deepcopy(whole)
            plan = me.once(lambda m=model: plan_for(m, 1, 2, me.world))
            assert plan.stages[1].modules[0].startswith(begins)
            pipe = osdp.parallelize(model, plan, loss_of)
            optimizers = [torch.optim.SGD(p, lr=0.5) for p in (pipe.parameters(), whole.parameters())]
            for step in range(2):
                tokens, targets = batch(step)
                half = (
                    slice(0, SAMPLES // 2)
                    if pipe.mesh["dp"].get_local_rank() == 0
                    else slice(SAMPLES // 2, None)
                )
                found = pipe.step(tokens[half], target=targets[half])
                wanted = torch.zeros((), dtype=torch.float64)
                for some, of_some in zip(
                    tokens.split(1), targets.split(1), strict=True
                ):  # as statistics have them
                    loss = loss_of(whole(some), of_some) / SAMPLES
                    loss.backward()
                    wanted += loss.detach()
                torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=0)
                for optimizer in optimizers:
                    optimizer.step(), optimizer.zero_grad()
            all_of_it = whole.state_dict()
            for key, value in pipe.module.state_dict().items():
                if not key.endswith(("calls", "tracked", "mean", "var")):  # each replica has its own
                    close(value, all_of_it[key], 1e-9, key)


def test_what_is_offered_trains_as_one_process(ranks):
    ranks(trains, world=4)


class Everywhere(Between):
    """Residuals around all modules."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedded(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x + self.norm(x)) + x.mean()


def test_what_cannot_be_built_is_not_offered():
    model = Everywhere().double()
    with pytest.raises(
        osdp.InvalidProblemError, match=r"cut into 1 parts, since no stage can begin at 'blocks.0'"
    ):
        plan_for(model, 1, 2, 2)
    assert plan_for(model, 1, "auto", 2).pipeline_parallel == 1
