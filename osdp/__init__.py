"""OSDP: Optimal Sharded Data Parallel for PyTorch. See README.md."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from osdp.base import later_methods
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
from osdp.version import __version__ as __version__

if TYPE_CHECKING:
    from osdp.description.model_description import ModelDescription as ModelDescription

check_torch()
logging.getLogger("osdp").addHandler(logging.NullHandler())  # the application configures where log records go

# Public name -> the module that holds it. Loaded on first use: a notebook that only searches never loads the runtime.
_PUBLIC = {
    "ModelDescription": "description.model_description",
    "Hardware": "hardware.hardware",
    "Plan": "plan.plan",
    "Choice": "plan.choice",
    "describe": "description.describe",
    "profile": "profiling.profile",
    "search": "planning.search",
    "solve": "planning.solve",
    "verify": "planning.verify",
    "frontier": "planning.frontier",
    "fully_shard": "fsdp.composable",
    "MixedPrecision": "plan.mixed_precision",
    "ShardedGradScaler": "sharding.grad_scaler",
    "no_sync": "sharding.step_scopes",
    "clip_grad_norm_": "sharding.step_scopes",
    "summon_full_params": "sharding.step_scopes",
    "register_forward_method": "sharding.forward_methods",
    "FullyShardedDataParallel": "fsdp.drop_in",
    "FSDPModule": "fsdp.fsdp_module",
    "report": "sharding.report",
    "bare_step_s": "profiling.bare_step",
    "save": "checkpoint.save_load",
    "load": "checkpoint.save_load",
    "Checkpoints": "checkpoint.checkpoints",
}

# Modules under the names that were documented before there were packages.
_FORMER = {
    "ops": "sharding.split_linear",
    "reporting": "sharding.report",
    "searching": "planning.solve",
    "timeline": "plan.timeline",
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


later_methods.implement(
    {
        "Plan.simulate": "osdp.planning.simulate.simulate",
        "Plan.frontier": "osdp.planning.frontier.frontier",
        "Plan.explain": "osdp.show.explain.explain",
        "Plan.diff": "osdp.show.diff.diff",
        "Plan.__str__": "osdp.show.terminal.show",
        "Plan.__rich__": "osdp.show.terminal.render",
        "Plan._repr_html_": "osdp.show.notebook.html",
        "Timeline.of_trace": "osdp.plan.profiler_trace.read_trace",
        "Timeline.plot": "osdp.show.timeline_plot.plot",
        "Timeline.__rich_console__": "osdp.show.timeline_plot.in_terminal",
        "Frontier.plot": "osdp.show.frontier_plot.plot",
        "Frontier.__str__": "osdp.show.frontier_plot.in_words",
    }
)


def __getattr__(name: str) -> Any:
    if name in _FORMER:
        return import_module(f"osdp.{_FORMER[name]}")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'osdp' has no attribute {name!r}")
    return getattr(import_module(f"osdp.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
