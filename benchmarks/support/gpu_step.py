"""One training step of a GPT in bf16 on GPUs: osdp beside FSDP2. Seconds, and the caching allocator's peaks.

    torchrun --nproc-per-node 1 benchmarks/support/gpu_step.py osdp [--layers 24] [--width 2048] [--batch 4]

One rank with OSDP_SHARD_ALONE=1 shards and calls its backend as several would, which FSDP2 does by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = width // 128

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, layers: int, width: int, vocabulary: int = 50304) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def with_osdp(model: nn.Module, a: argparse.Namespace) -> nn.Module:
    import osdp

    with torch.device("meta"):
        shape = GPT(a.layers, a.width)
    plan = osdp.Plan.uniform(
        osdp.describe(shape, torch.zeros(a.batch, a.length, dtype=torch.long)), "FULL_SHARD"
    )
    precision = osdp.MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return osdp.fully_shard(model, plan, mixed_precision=precision)


def with_fsdp2(model: nn.Module, a: argparse.Namespace) -> nn.Module:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("engine", choices=("osdp", "fsdp2"))
    for name, default in (("layers", 24), ("width", 2048), ("batch", 4), ("length", 1024), ("steps", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    a = parser.parse_args()
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    dist.init_process_group("cpu:gloo,cuda:nccl")
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = GPT(a.layers, a.width)
    count = sum(p.numel() for p in model.parameters())
    model = (with_osdp if a.engine == "osdp" else with_fsdp2)(model, a)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(50304, (a.batch, a.length + 1), device="cuda")

    def step() -> torch.Tensor:
        output = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(output.float().flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    losses = [step() for _ in range(3)]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(a.steps):
        begin = time.perf_counter()
        losses.append(step())
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    begin = time.perf_counter()
    for _ in range(a.steps):  # without waiting for each
        losses.append(step())
    torch.cuda.synchronize()
    row = {
        "engine": a.engine,
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "world": dist.get_world_size(),
        "parameters": count,
        "tokens": a.batch * a.length,
        "step_s": statistics.median(seconds),
        "back_to_back_s": (time.perf_counter() - begin) / a.steps,
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "losses": [float(losses[0]), float(losses[-1])],
    }
    if dist.get_rank() == 0:
        print(json.dumps(row), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
