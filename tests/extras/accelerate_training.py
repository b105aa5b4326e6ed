"""A small model trained by Accelerate's own FSDP2 path: `accelerate_training.py osdp|torch [tied] [efficient]`, by torchrun.

With "osdp" the one import is changed: what Accelerate takes from torch.distributed.fsdp is osdp.fully_shard. "efficient":
parameters are sharded on the meta device, and rank 0's values sent (`cpu_ram_efficient_loading`).
"""

from __future__ import annotations

import sys

import torch
import torch.distributed.fsdp
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.utils import DistributedType, set_seed
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


def main(library: str, *how: str) -> None:
    if library == "osdp":
        import osdp

        torch.distributed.fsdp.fully_shard = osdp.fully_shard
    set_seed(0)
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
        cpu_ram_efficient_loading="efficient" in how,
        reshard_after_forward=True,
        state_dict_type="FULL_STATE_DICT",
    )
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    # Accelerate takes plugins on accelerators only.
    accelerator.state.distributed_type, accelerator.state.fsdp_plugin = DistributedType.FSDP, plugin
    config = LlamaConfig(**SIZES, num_key_value_heads=2, vocab_size=64, tie_word_embeddings="tied" in how)
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = torch.randint(64, (24, 8), generator=torch.Generator().manual_seed(1))
    loader = torch.utils.data.DataLoader([{"input_ids": t, "labels": t} for t in tokens], batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, batch in enumerate(loader):
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            norm = torch.zeros(())
            if accelerator.sync_gradients:
                norm = accelerator.clip_grad_norm_(model.parameters(), 0.5)
                norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
            optimizer.step()
            optimizer.zero_grad()
        mean = accelerator.reduce(loss.detach(), "mean")
        accelerator.print(f"step {step}: loss {float(mean):.7f}, norm {float(norm):.7f}", flush=True)
    total = sum(float(v.double().abs().sum()) for v in accelerator.get_state_dict(model).values())
    accelerator.print(
        f"state {total:.5f} of {type(model).__name__}, {type(model).__mro__[1].__module__}", flush=True
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
