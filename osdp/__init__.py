"""OSDP: Optimal Sharded Data Parallel for PyTorch. See README.md."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from osdp.base.built_with import check_torch
from osdp.errors import (
    BuildError,
    DescribeError,
    DisagreementError,
    FormatError,
    GradientError,
    InfeasibleError,
    InvalidProblemError,
    MachineMismatchWarning,
    OrderError,
    OSDPError,
    OutOfMemoryError,
    PlanMismatchError,
    ProcessGroupError,
    ProfileError,
    RankError,
    ReplicaError,
    ShardingError,
)

if TYPE_CHECKING:
    from osdp.description.model_description import ModelDescription as ModelDescription

__version__ = "0.1.0"

check_torch()

# Public name -> the module that holds it. Loaded on first use: a notebook that only searches never loads the runtime.
_PUBLIC = {
    "ModelDescription": "description.model_description",
    "Hardware": "hardware.hardware",
    "Plan": "plan.plan",
    "Choice": "plan.plan",
    "describe": "description.describe",
    "profile": "profiling.profile",
    "search": "planning.search",
    "solve": "planning.search",
    "verify": "planning.search",
    "frontier": "planning.frontier",
    "fully_shard": "sharding.fully_shard",
    "MixedPrecision": "sharding.mixed_precision",
    "ShardedGradScaler": "sharding.grad_scaler",
    "no_sync": "sharding.fully_shard",
    "clip_grad_norm_": "sharding.fully_shard",
    "summon_full_params": "sharding.fully_shard",
    "register_forward_method": "sharding.forward_methods",
    "FullyShardedDataParallel": "fsdp.drop_in",
    "report": "sharding.report",
    "bare_step_s": "profiling.bare_step",
    "save": "checkpoint.save_load",
    "load": "checkpoint.save_load",
}

__all__ = [
    "BuildError",
    "DescribeError",
    "DisagreementError",
    "FormatError",
    "GradientError",
    "InfeasibleError",
    "InvalidProblemError",
    "MachineMismatchWarning",
    "OSDPError",
    "OrderError",
    "OutOfMemoryError",
    "PlanMismatchError",
    "ProcessGroupError",
    "ProfileError",
    "RankError",
    "ReplicaError",
    "ShardingError",
    *_PUBLIC,
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'osdp' has no attribute {name!r}")
    return getattr(import_module(f"osdp.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
