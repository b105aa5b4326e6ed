"""What the scripts here train: a small GPT on made-up tokens, and the mean loss that rank 0 prints."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import distributed as dist

VOCABULARY, CONTEXT, WIDTH = 128, 32, 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            t.view(batch, length, 4, -1).transpose(1, 2) for t in self.attention(self.norm1(x)).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Tokens [batch, length] -> logits [batch, length, VOCABULARY]."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batch(step: int, device: torch.device, samples: int = 4) -> tuple[Tensor, Tensor]:
    """This rank's tokens of a step, and the next ones: each is three times the one before, and a little more."""
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    tokens = torch.randint(VOCABULARY, (samples, CONTEXT + 1), generator=generator)
    for i in range(CONTEXT):
        tokens[:, i + 1] = (3 * tokens[:, i] + tokens[:, i + 1] % 3) % VOCABULARY
    tokens = tokens.to(device)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


_shown: list[dist.Work] = []


def show(step: int, loss: Tensor) -> None:
    loss = loss.detach().clone()
    # A thread of the gloo group drops the work after it has woken this one. Were it the last to hold it, it would
    # need the interpreter to free the tensor; at the end of the script that is finalizing, and the process aborts.
    _shown[:] = [dist.all_reduce(loss, async_op=True)]
    _shown[0].wait()
    if dist.get_rank() == 0:
        print(f"step {step}: loss {loss.item() / dist.get_world_size():.6f}", flush=True)


def device_of_rank() -> torch.device:
    """Joins the ranks that torchrun started: on GPUs, or on the CPU where there is none."""
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    dist.init_process_group("nccl")
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device
