"""A GPT whose layers torch's parallelize_module can divide: by default 8 layers x 512, 25.8 million parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional as F

VOCABULARY, WIDTH, LAYERS, HEAD, TOKENS, BATCH = 512, 512, 8, 64, 64, 2


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (p(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for p in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


# Between the products whole tensors pass: what osdp.search knows of styles without layouts of their own.
STYLES = {f"blocks.*.attention.{p}": "colwise" for p in "qkv"} | {
    "blocks.*.attention.out": "rowwise",
    "blocks.*.up": "colwise",
    "blocks.*.down": "rowwise",
}


class GPT(nn.Module):
    def __init__(self, layers: int = LAYERS, vocabulary: int = VOCABULARY) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """The loss; without targets the logits."""
        x = self.token(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits if targets is None else loss_of(logits, targets)


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def parallel_gpt(mesh: DeviceMesh) -> GPT:
    """Divided over `mesh`, sequence-parallel between the products; equal weights on every call."""
    torch.manual_seed(0)
    model = GPT()
    along: Any = Shard(1)  # the sequence
    plan: dict[str, Any] = {
        "token": RowwiseParallel(input_layouts=Replicate(), output_layouts=along),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=along, output_layouts=Replicate()),
    }
    for i in range(LAYERS):
        at = f"blocks.{i}"
        whole = PrepareModuleInput(input_layouts=(along,), desired_input_layouts=(Replicate(),))
        plan |= {
            f"{at}.norm1": SequenceParallel(),
            f"{at}.norm2": SequenceParallel(),
            f"{at}.attention": whole,
        }
        plan |= {f"{at}.attention.{p}": ColwiseParallel() for p in "qkv"}
        plan |= {f"{at}.attention.out": RowwiseParallel(output_layouts=along)}
        plan |= {f"{at}.up": ColwiseParallel(input_layouts=along)}
        plan |= {f"{at}.down": RowwiseParallel(output_layouts=along)}
    parallelize_module(model, mesh, plan)
    return model


def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(0, VOCABULARY, (BATCH, TOKENS + 1), generator=generator)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
