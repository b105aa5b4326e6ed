"""Blocks found by a policy, the options that scripts most often set, bfloat16, a schedule and clipping.

torchrun --nproc-per-node 2 examples/drop_in/auto_wrap_policy.py
"""

from __future__ import annotations

import functools

import torch
from small_gpt import GPT, Block, batch, device_of_rank, loss_of, show
from torch import distributed as dist
from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy


def main() -> None:
    device = device_of_rank()
    torch.manual_seed(1)
    model = FSDP(
        GPT(),
        auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
        sharding_strategy=ShardingStrategy.FULL_SHARD,
        mixed_precision=MixedPrecision(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, buffer_dtype=torch.bfloat16
        ),
        backward_prefetch=BackwardPrefetch.BACKWARD_PRE,
        forward_prefetch=True,
        cpu_offload=CPUOffload(offload_params=False),
        device_id=device,
        sync_module_states=device.type == "cuda",  # torch's class has no CPU here
        limit_all_gathers=True,
        use_orig_params=True,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    for step in range(10):
        tokens, targets = batch(step, device)
        loss = loss_of(model(tokens), targets)
        loss.backward()
        norm = model.clip_grad_norm_(1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        show(step, loss)
        assert torch.isfinite(norm)

    with FSDP.summon_full_params(model, writeback=False):
        if dist.get_rank() == 0:
            print(f"weights: {sum(p.float().abs().sum().item() for p in model.parameters()):.1f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
