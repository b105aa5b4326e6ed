"""What the cases train: a small GPT whose parameters travel packed, by themselves and padded; data alike on any device."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import osdp

VOCABULARY, HIDDEN, INNER, HEADS, LENGTH = 50, 64, 300, 4, 6
SAMPLES = 4  # of all ranks together, per micro-batch


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, INNER), nn.Linear(INNER, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) / 4).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, HIDDEN))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """`checkpointing`: how the user recomputes every block: None, "reentrant" or "non-reentrant"."""

    def __init__(self, blocks: int = 3, checkpointing: str | None = None, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        self.checkpointing = checkpointing

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            if self.checkpointing is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.checkpointing == "reentrant")
        return self.head(self.norm(x))

    def score(self, tokens: torch.Tensor) -> torch.Tensor:
        return self(tokens).logsumexp(-1).mean()


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        self.first = nn.Conv1d(HIDDEN, INNER, 3, padding=1)
        self.second = nn.Conv1d(INNER, HIDDEN, 3, padding=1)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens).transpose(1, 2)
        x = x + self.second(nn.functional.gelu(self.first(x)))
        return self.head(x.transpose(1, 2))


@dataclass
class Setting:
    """Where a case runs. `losses`: what it has to show, in order; alike on every device."""

    rank: int
    world: int
    device: torch.device
    losses: list[float] = field(default_factory=list)
    counts: dict[str, Any] = field(default_factory=dict)  # of a step; empty where nothing counts
    _told: list[torch.Tensor] = field(default_factory=list)

    def model(self, **options: Any) -> nn.Module:
        torch.default_generator.manual_seed(7)
        return GPT(**options)

    def tokens(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """This rank's inputs and targets."""
        generator = torch.Generator().manual_seed(1000 + step)
        drawn = torch.randint(VOCABULARY, (SAMPLES, LENGTH + 1), generator=generator)
        mine = drawn.chunk(self.world)[self.rank].to(self.device)
        return mine[:, :-1], mine[:, 1:]

    def loss(self, model: nn.Module, step: int) -> torch.Tensor:
        tokens, targets = self.tokens(step)
        return nn.functional.cross_entropy(model(tokens).float().flatten(0, 1), targets.flatten())

    def tell(self, value: torch.Tensor) -> None:
        """Read at the end of the case, so that nothing waits for the device in its middle."""
        self._told.append(value.detach().clone())

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Of what runs inside, on the ordered device: operators, collectives, events that are made, host synchronisations
        by cause, and how far live bytes rise above what they were: of all pools together, and of each."""
        if self.device.type != "ordered":
            yield
            return
        import ordered_device

        ordered_device.reset_peaks()
        before = ordered_device.stats()
        yield
        after = ordered_device.stats()
        for key in ("operators", "collectives", "events"):
            self.counts[key] = after[key] - before[key]
        self.counts["peak_bytes"] = after["peak_bytes"] - before["live_bytes"]
        for name, pool in after["pools"].items():
            live = before["pools"].get(name, {"live": 0})["live"]
            self.counts.setdefault("pools", {})[name] = pool["peak"] - live
        self.counts["streams"] = streams = {}
        for name, stream in after["streams"].items():
            earlier = before["streams"].get(name, {"operators": {}})["operators"]
            done = {each: n - earlier.get(each, 0) for each, n in stream["operators"].items()}
            if any(done.values()):
                streams[name] = {
                    "operators": {k: n for k, n in done.items() if n},
                    "urgent": stream["urgent"],
                }
        causes = {key: n - before["host_syncs"].get(key, 0) for key, n in after["host_syncs"].items()}
        self.counts["host_syncs"] = {key: n for key, n in causes.items() if n}

    def close(self) -> None:
        self.losses += [float(v.float().cpu()) for v in self._told]
        self._told.clear()


def sgd(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def steps(
    s: Setting, model: nn.Module, optimizer: torch.optim.Optimizer, count: int = 3, first: int = 0
) -> Iterator[int]:
    """Trains; after each backward the caller goes on, before the optimizer's step."""
    for step in range(first, first + count):
        loss = s.loss(model, step)
        s.tell(loss)
        loss.backward()
        yield step
        optimizer.step()
        optimizer.zero_grad()


def train(s: Setting, model: nn.Module, count: int = 3, first: int = 0) -> None:
    for _ in steps(s, model, sgd(model.parameters()), count, first):
        pass


_descriptions: dict[Any, osdp.ModelDescription] = {}


def described(
    model: nn.Module, sample: torch.Tensor | None = None, precision: str = "fp32"
) -> osdp.ModelDescription:
    """Once per kind of model and sample, for all processes: it takes longer than a case."""
    if sample is None:
        sample = torch.zeros(2, LENGTH, dtype=torch.long)
    kind = tuple((name, p.shape, p.requires_grad) for name, p in model.named_parameters())
    key = (kind, getattr(model, "checkpointing", None), sample.shape, sample.dtype, precision)
    if key not in _descriptions:
        file = Path(os.environ["CASES_DESCRIPTIONS"], hashlib.sha256(repr(key).encode()).hexdigest())
        with open(f"{file}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the others wait for the first
            if not file.exists():
                file.write_bytes(pickle.dumps(osdp.describe(model, sample, precision=precision)))
        _descriptions[key] = pickle.loads(file.read_bytes())
    return _descriptions[key]
