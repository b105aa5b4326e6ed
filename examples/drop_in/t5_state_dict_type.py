"""A T5 of transformers': blocks by a policy, checkpointed activations, and full state dicts saved by rank 0.

torchrun --nproc-per-node 2 examples/drop_in/t5_state_dict_type.py --out build/t5
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path

import torch
from small_gpt import batch, device_of_rank, show
from torch import distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from transformers import T5Config, T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5Block

CONFIG = T5Config(
    vocab_size=128,
    d_model=32,
    d_kv=8,
    d_ff=64,
    num_layers=2,
    num_heads=4,
    dropout_rate=0.0,
    decoder_start_token_id=0,
    use_cache=False,
)


def wrapped(model: T5ForConditionalGeneration, device: torch.device) -> FSDP:
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={T5Block})
    sharded = FSDP(
        model, auto_wrap_policy=policy, sharding_strategy=ShardingStrategy.FULL_SHARD, device_id=device
    )
    apply_activation_checkpointing(
        sharded,
        checkpoint_wrapper_fn=functools.partial(
            checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT
        ),
        check_fn=lambda module: isinstance(module, T5Block),
    )
    return sharded


def train(model: FSDP, optimizer: torch.optim.Optimizer, steps: range, device: torch.device) -> None:
    model.train()
    for step in steps:
        source, target = batch(step, device)
        optimizer.zero_grad()
        loss = model(input_ids=source, attention_mask=torch.ones_like(source), labels=target).loss
        loss.backward()
        optimizer.step()
        show(step, loss)


def save(model: FSDP, optimizer: torch.optim.Optimizer, path: Path) -> None:
    on_rank_0 = FullStateDictConfig(offload_to_cpu=torch.cuda.is_available(), rank0_only=True)
    with FSDP.state_dict_type(
        model, StateDictType.FULL_STATE_DICT, on_rank_0, FullOptimStateDictConfig(rank0_only=True)
    ):
        weights, state = model.state_dict(), FSDP.optim_state_dict(model, optimizer)
    if dist.get_rank() == 0:
        torch.save({"model": weights, "optimizer": state}, path)
    dist.barrier()


def main(out: Path) -> None:
    device = device_of_rank()
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    model = wrapped(T5ForConditionalGeneration(CONFIG), device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    train(model, optimizer, range(5), device)
    save(model, optimizer, out / "t5.pt")

    saved = torch.load(out / "t5.pt")
    model = T5ForConditionalGeneration(CONFIG)
    model.load_state_dict(saved["model"])
    model = wrapped(model, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, saved["optimizer"]))
    train(model, optimizer, range(5, 10), device)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("build/t5"))
    main(parser.parse_args().out)
