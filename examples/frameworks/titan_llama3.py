"""torchtitan's Llama 3 with OSDP in place of FSDP2: its own ModelSpec, of which one function is replaced.

    cd examples/frameworks
    torchrun --nproc-per-node 8 -m torchtitan.train --module titan_llama3 --config llama3_debugmodel --hf_assets_path ...

Every configuration of torchtitan's registry is here by its own name; degrees, schedules, checkpoints, compilation and all
else is torchtitan's and given on its command line. Needs torchtitan (tried: 0.3.0).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import nn
from torchtitan.distributed import fsdp
from torchtitan.models.llama3 import config_registry
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer

import osdp


def with_osdp(spec: ModelSpec) -> ModelSpec:
    """The same model, which OSDP shards; its pipelining calls the same function for each stage."""

    def parallelize(model: nn.Module, **how: Any) -> nn.Module:
        fsdp.fully_shard = osdp.fully_shard  # what parallelize_fn calls: the one import that changes
        return spec.parallelize_fn(model, **how)

    return dataclasses.replace(spec, parallelize_fn=parallelize)


def __getattr__(name: str) -> Callable[[], Trainer.Config]:
    """torchtitan asks for a configuration by its name."""
    of_torchtitan = getattr(config_registry, name)

    def config() -> Trainer.Config:
        made = of_torchtitan()
        return dataclasses.replace(made, model_spec=with_osdp(made.model_spec))

    return config
