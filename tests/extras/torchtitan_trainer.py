"""torchtitan's own Trainer on CPUs, with its Llama 3 debug model: by FSDP2, or OSDP (examples/frameworks/titan_llama3.py).

torchrun --standalone --nproc-per-node 4 torchtitan_trainer.py osdp FOLDER pipeline=2 schedule=1F1B steps=5

More: tensor=, replicas=, compile=1, save=async or disabled (to the folder, in every second step), load=STEP that was saved
there, and nothing else is saved. Prints the losses and norms of torchtitan's log.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torchtitan.tools.utils as utils
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import Replicate, distribute_tensor

utils.device_type = "cpu"  # before the others import it
utils.device_module = SimpleNamespace(
    set_device=lambda _: None,
    device_count=lambda: 1,
    current_device=lambda: 0,
    get_device_name=lambda _: "CPU",
    get_device_properties=lambda _: SimpleNamespace(total_memory=2**34),
    reset_peak_memory_stats=lambda: None,
    empty_cache=lambda: None,
    memory_stats=lambda _: {},
    synchronize=lambda: None,
)

import torchtitan.models.llama3 as llama3  # noqa: E402
from torchtitan.components.checkpoint import CheckpointManager  # noqa: E402
from torchtitan.components.dataloader import BaseDataLoader  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.distributed import utils as dist_utils  # noqa: E402
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402
from torchtitan.models.llama3 import config_registry  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402

VOCABULARY, LENGTH, BATCH = 2048, 64, 4


class Tokens(BaseDataLoader):
    """The same random tokens for the same replica, batch after batch; goes on where a checkpoint was saved."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        pass

    def __init__(self, config: Config, *, dp_rank: int, local_batch_size: int, **_: Any) -> None:
        self.replica, self.batch, self.read = dp_rank, local_batch_size, 0

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        while True:
            drawn = torch.Generator().manual_seed(1000 * self.replica + self.read)
            tokens = torch.randint(0, VOCABULARY, (self.batch, LENGTH + 1), generator=drawn)
            self.read += 1
            yield {"input": tokens[:, :-1].contiguous()}, tokens[:, 1:].contiguous()

    def state_dict(self) -> dict[str, Any]:
        return {f"read of {self.replica}": self.read}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.read = state_dict[f"read of {self.replica}"]


class NoTokenizer(BaseTokenizer):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config: Config, **_: Any) -> None:
        super().__init__()

    def encode(self, *_: Any, **__: Any) -> list[int]:
        raise NotImplementedError

    decode = get_vocab_size = encode


def configured(library: str, folder: str, told: dict[str, str]) -> Trainer.Config:
    made = config_registry.llama3_debugmodel()
    spec = llama3.model_registry("debugmodel", attn_backend="sdpa")
    if library == "osdp":
        sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "frameworks"))
        from titan_llama3 import with_osdp

        spec = with_osdp(spec)
    made = dataclasses.replace(made, model_spec=spec, dump_folder=folder)
    made.training = dataclasses.replace(
        made.training,
        local_batch_size=BATCH,
        seq_len=LENGTH,
        steps=int(told.get("steps", 5)),
        mixed_precision_param="float32",
        disable_cuda_graphs=True,
    )
    made.parallelism = dataclasses.replace(
        made.parallelism,
        spmd_backend="partial_dtensor",
        tensor_parallel_degree=int(told.get("tensor", 1)),
        data_parallel_replicate_degree=int(told.get("replicas", 1)),
        pipeline_parallel_degree=int(told.get("pipeline", 1)),
        pipeline_parallel_schedule=told.get("schedule", "1F1B"),
    )
    made.checkpoint = CheckpointManager.Config(
        enable="save" in told or "load" in told,
        interval=2,
        load_step=int(told.get("load", -1)),
        load_only="load" in told,
        async_mode=told.get("save", "disabled"),
        last_save_model_only=False,
    )
    made.compile = dataclasses.replace(
        made.compile, enable="compile" in told, components=["model"], backend="aot_eager"
    )
    made.dataloader, made.tokenizer = Tokens.Config(), NoTokenizer.Config()
    made.validator.enable = False
    return made


def begin_alike(trainer: Trainer) -> None:
    """One process's initial values, with either library: FSDP2's ranks draw others on CPUs. And gloo has no PREMUL_SUM."""
    whole = trainer.model_config.build()
    whole.to_empty(device="cpu")
    torch.manual_seed(0)
    with torch.no_grad():
        whole.init_weights(buffer_device=None)
    values = dict(whole.named_parameters())
    for part in trainer.model_parts:
        for name, p in part.named_parameters():
            everywhere = [Replicate()] * p.device_mesh.ndim
            value = values[name.replace("_checkpoint_wrapped_module.", "").replace("_orig_mod.", "")].detach()
            with torch.no_grad():
                p.copy_(
                    distribute_tensor(value, p.device_mesh, everywhere).redistribute(placements=p.placements)
                )
        for module in part.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)


def whole_batches(step: Any) -> Any:
    """torch 2.13's schedules cut a batch themselves; torchtitan 0.3.0 passes the micro-batches that a later torch takes."""

    def called(arg_mbs: Any = None, kwarg_mbs: Any = None, target_mbs: Any = None, **how: Any) -> Any:
        args = [torch.cat(values) for values in zip(*arg_mbs or (), strict=True)]
        return step(*args, target=None if target_mbs is None else torch.cat(target_mbs), **how)

    return called


def log(step: int, loss: float, _: float, norm: float, **__: Any) -> None:
    if dist.get_rank() == dist.get_world_size() - 1:  # of the last stage
        print(f"step {step}: loss {loss:.9g}, norm {norm:.9g}", flush=True)


def main(library: str, folder: str, *options: str) -> None:
    told = dict(option.split("=", 1) for option in options)
    llama3.get_attention_config = lambda backend: ScaledDotProductAttention.Config()  # the others need a GPU
    dist_utils.set_pg_timeouts = lambda **_: None  # a barrier on a GPU
    trainer = configured(library, folder, told).build()
    begin_alike(trainer)
    trainer.metrics_processor.log = log
    if "pipeline" in told:
        trainer.pp_schedule.step = whole_batches(trainer.pp_schedule.step)
    trainer.train()
    trainer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
