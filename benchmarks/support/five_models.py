"""Five models of different shapes, each with a batch: what predictions are measured on. A step takes 0.1 to 0.3 s."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from support.gpt import GPT, batch


class MixedSizes(nn.Module):
    """Layers of widths from 128 to 2048, in no order, around an embedding that is larger than all of them."""

    WIDTHS = (256, 2048, 384, 1536, 128, 1024, 640, 2048, 192, 768)

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(20000, self.WIDTHS[0])
        pairs = zip(self.WIDTHS, self.WIDTHS[1:], strict=False)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairs)
        self.head = nn.Linear(self.WIDTHS[-1], 100)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.token(tokens)
        for layer in self.layers:
            x = F.gelu(layer(x))
        return F.cross_entropy(self.head(x.mean(1)), targets)


class Residual(nn.Module):
    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride=out // channels, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(8, out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(8, out)
        self.skip = nn.Conv2d(channels, out, 1, stride=2, bias=False) if out != channels else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(self.skip(x) + h)


class ConvNet(nn.Module):
    """Activations larger than parameters at the front, parameters larger than activations at the back."""

    CHANNELS = (32, 32, 64, 64, 128, 128, 256, 256, 512)

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, self.CHANNELS[0], 3, padding=1)
        pairs = zip(self.CHANNELS, self.CHANNELS[1:], strict=False)
        self.blocks = nn.ModuleList(Residual(a, b) for a, b in pairs)
        self.head = nn.Linear(self.CHANNELS[-1], 100)

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x.mean((2, 3))), targets)


class EncoderDecoder(nn.Module):
    """Every decoder block reads the encoder's result."""

    def __init__(self, width: int = 256, layers: int = 4) -> None:
        super().__init__()
        self.token = nn.Embedding(2000, width)
        options: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": True}
        self.encoder = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, **options) for _ in range(layers)
        )
        self.decoder = nn.ModuleList(
            nn.TransformerDecoderLayer(width, 4, 4 * width, **options) for _ in range(layers)
        )
        self.head = nn.Linear(width, 2000, bias=False)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, x = self.token(source), self.token(target[:, :-1])
        for encoder in self.encoder:
            memory = encoder(memory)
        for decoder in self.decoder:
            x = decoder(x, memory)
        return F.cross_entropy(self.head(x).flatten(0, 1), target[:, 1:].flatten())


Batch = Callable[[torch.Generator], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Subject:
    model: Callable[[], nn.Module]  # called on (*batch); returns the loss
    batch: Batch

    def make(self) -> nn.Module:
        """Equal weights on every call."""
        torch.manual_seed(0)
        return self.model()


def integers(below: int, *sizes: int) -> Callable[[torch.Generator], Tensor]:
    return lambda generator: torch.randint(below, sizes, generator=generator)


def together(*parts: Callable[[torch.Generator], Tensor]) -> Batch:
    return lambda generator: tuple(part(generator) for part in parts)


def images(generator: torch.Generator) -> Tensor:
    return torch.randn(4, 3, 32, 32, generator=generator)


SUBJECTS = {
    "deep GPT": Subject(lambda: GPT(256, 20), batch),
    "wide GPT": Subject(lambda: GPT(1024, 2), batch),
    "mixed sizes": Subject(MixedSizes, together(integers(20000, 4, 16), integers(100, 4))),
    "conv net": Subject(ConvNet, together(images, integers(100, 4))),
    "encoder-decoder": Subject(EncoderDecoder, together(integers(2000, 2, 48), integers(2000, 2, 33))),
}
