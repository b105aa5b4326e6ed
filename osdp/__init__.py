"""OSDP: Optimal Sharded Data Parallel for PyTorch. See README.md."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from osdp.built_with import check_torch
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
    from osdp.description import ModelDescription as ModelDescription

__version__ = "0.1.0"

check_torch()

# Public name -> the module that holds it. Loaded on first use: a notebook that only searches never loads the runtime.
_PUBLIC = {
    "ModelDescription": "description",
    "Hardware": "hardware",
    "Plan": "plan",
    "Choice": "plan",
    "describe": "tracing",
    "profile": "profiling",
    "search": "searching",
    "solve": "searching",
    "verify": "searching",
    "frontier": "frontiers",
    "fully_shard": "sharding",
    "MixedPrecision": "precision",
    "ShardedGradScaler": "scaler",
    "no_sync": "sharding",
    "clip_grad_norm_": "sharding",
    "summon_full_params": "sharding",
    "register_forward_method": "methods",
    "FullyShardedDataParallel": "fsdp",
    "report": "reporting",
    "bare_step_s": "bare_step",
    "save": "checkpoint",
    "load": "checkpoint",
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
