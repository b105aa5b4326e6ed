"""Trains torchtitan's Llama 3 debug model through torchtitan's own functions, with FSDP2 or, the one import changed, OSDP.

python -m torch.distributed.run --standalone --nproc-per-node 2 tests/extras/torchtitan_training.py osdp chunked float32

More arguments: compile (its blocks, with the backend aot_eager), hsdp (2 replicas of half of the ranks each), steps=N.
torchtitan_trainer.py runs its Trainer, with its other degrees.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import torchtitan.distributed.fsdp as titan
import torchtitan.distributed.parallel_dims as dims
import torchtitan.models.llama3 as llama3
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import SelectiveAC
from torchtitan.distributed.utils import clip_grad_norm_
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3.parallelize import parallelize_llama

import osdp

VOCABULARY, LENGTH, BATCH = 2048, 64, 2


def parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name.replace("_checkpoint_wrapped_module.", ""): p for name, p in model.named_parameters()}


def built(dtype: str, told: set[str]) -> nn.Module:
    """The model, sharded on the meta device, then filled by `init_weights` as one process fills it."""
    world, replicas = dist.get_world_size(), 1 + ("hsdp" in told)
    mesh = dims.ParallelDims(
        dp_replicate=replicas,
        dp_shard=world // replicas,
        cp=1,
        tp=1,
        pp=1,
        ep=1,
        world_size=world,
        spmd_backend="partial_dtensor",
    )
    mesh.build_mesh()
    config = llama3.model_registry("debugmodel", attn_backend="sdpa").model
    with torch.device("meta"):
        model = config.build()
    training = TrainingConfig(
        local_batch_size=BATCH, seq_len=LENGTH, mixed_precision_param=dtype, mixed_precision_reduce="float32"
    )
    parallelism = ParallelismConfig(spmd_backend="partial_dtensor")
    model = parallelize_llama(
        model,
        parallel_dims=mesh,
        training=training,
        parallelism=parallelism,
        compile_config=CompileConfig(enable="compile" in told, components=["model"], backend="aot_eager"),
        ac_config=SelectiveAC.Config(),
        dump_folder=".",
    )
    whole = config.build()
    for each in (model, whole):
        each.to_empty(device="cpu")
        torch.manual_seed(0)
        with torch.no_grad():
            each.init_weights(buffer_device=None)
    if isinstance(model, osdp.FSDPModule):
        with osdp.summon_full_params(model):
            for name, p in parameters(model).items():
                value = p.full_tensor() if isinstance(p.data, DTensor) else p
                assert torch.equal(value, parameters(whole)[name]), name
    else:  # on CPUs DTensor draws other numbers
        for name, p in parameters(model).items():
            everywhere = [Replicate()] * p.device_mesh.ndim
            value = distribute_tensor(parameters(whole)[name].detach(), p.device_mesh, everywhere)
            p.data.copy_(value.redistribute(placements=p.placements))
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo has no PREMUL_SUM
    return model.train()


def main(library: str, chunked: bool, dtype: str, told: set[str]) -> None:
    if library == "osdp":
        titan.fully_shard = osdp.fully_shard
    dims.device_type = "cpu"
    llama3.get_attention_config = lambda backend: ScaledDotProductAttention.Config()  # the others need a GPU
    dist.init_process_group("gloo")
    model = built(dtype, told)
    steps = next((int(t.removeprefix("steps=")) for t in told if t.startswith("steps=")), 5)
    loss_fn = CrossEntropyLoss.Config(global_vocab_size=VOCABULARY)
    if chunked:
        loss_fn = ChunkedLossWrapper.Config(loss_fn=loss_fn).build(compile_config=CompileConfig())
        loss_fn.set_lm_head(model.lm_head)
        model._skip_lm_head = True
    else:
        loss_fn = loss_fn.build(compile_config=CompileConfig())
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-4)
    for step in range(steps):
        optimizer.zero_grad()
        total = torch.zeros(())
        for micro in range(2 if step > 2 else 1):
            torch.manual_seed(100 * step + 10 * micro + dist.get_rank())
            tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1))
            loss, _ = loss_fn(
                model(tokens[:, :-1].contiguous()), tokens[:, 1:].contiguous(), torch.tensor(256.0)
            )
            loss.backward()
            total += loss.detach()
        norm = clip_grad_norm_(list(model.parameters()), 1.0, foreach=True)
        optimizer.step()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
            print(f"step {step}: loss {total.item():.9g}, norm {norm.item():.9g}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "chunked", sys.argv[3], set(sys.argv[4:]))
