"""Real text that needs no download, as characters: training and validation batches, the same in every run."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import Tensor

VALIDATION_SHARE = 0.1  # of the text, its end


class Text:
    """A text as ASCII characters; `alphabet` are those that occur, and a character's number is its place there."""

    def __init__(self, file: str = "") -> None:
        files = [Path(file)] if file else sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        if not files:
            raise SystemExit("Python's standard library has no source files here: pass --text FILE")
        content = "\n".join(f.read_text(encoding="utf-8", errors="replace") for f in files)
        raw = bytearray(content.encode("ascii", errors="replace"))
        self.source = file or f"{len(files)} files of Python's standard library"
        self.alphabet = bytes(sorted(set(raw))).decode("ascii")
        places = torch.zeros(128, dtype=torch.int64)
        places[torch.tensor([ord(c) for c in self.alphabet])] = torch.arange(len(self.alphabet))
        characters = places[torch.frombuffer(raw, dtype=torch.uint8).long()]
        cut = int(len(characters) * (1 - VALIDATION_SHARE))
        self.training, self.validation = characters[:cut], characters[cut:]

    def encode(self, text: str) -> Tensor:
        return torch.tensor([[self.alphabet.index(c) for c in text]])

    def decode(self, characters: Tensor) -> str:
        return "".join(self.alphabet[i] for i in characters.flatten().tolist())

    def batch(
        self, step: int, rows: int, context: int, seed: int, rank: int = 0, world: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Inputs and targets [rows, context]: this rank's rows of a global batch drawn by seed and step alone."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        starts = torch.randint(len(self.training) - context - 1, (world * rows,), generator=generator)
        return windows(self.training, starts[rank * rows : (rank + 1) * rows], context)

    def validation_batch(self, index: int, rows: int, context: int) -> tuple[Tensor, Tensor]:
        """The same windows for every rank, world size and seed: batch `index` of them, evenly spread."""
        stride = (len(self.validation) - context - 1) // 1009
        starts = (torch.arange(index * rows, (index + 1) * rows) * 389 % 1009) * stride
        return windows(self.validation, starts, context)


def windows(characters: Tensor, starts: Tensor, context: int) -> tuple[Tensor, Tensor]:
    rows = torch.stack([characters[s : s + context + 1] for s in starts.tolist()])
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
