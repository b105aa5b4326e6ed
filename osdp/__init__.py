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

# The same names as in _PUBLIC, for type checkers, which do not see __getattr__: a misspelt name is an error to them.
if TYPE_CHECKING:
    from osdp.checkpoint.checkpoints import Checkpoints as Checkpoints
    from osdp.checkpoint.save_load import load as load
    from osdp.checkpoint.save_load import save as save
    from osdp.description.describe import describe as describe
    from osdp.description.model_description import ModelDescription as ModelDescription
    from osdp.fsdp.composable import fully_shard as fully_shard
    from osdp.fsdp.drop_in import FullyShardedDataParallel as FullyShardedDataParallel
    from osdp.fsdp.fsdp_module import FSDPModule as FSDPModule
    from osdp.hardware.hardware import Hardware as Hardware
    from osdp.parallel.parallelize import parallelize as parallelize
    from osdp.plan.choice import Choice as Choice
    from osdp.plan.mixed_precision import MixedPrecision as MixedPrecision
    from osdp.plan.parallel_plan import ParallelPlan as ParallelPlan
    from osdp.plan.plan import Plan as Plan
    from osdp.planning.frontier import frontier as frontier
    from osdp.planning.search import search as search
    from osdp.planning.solve import solve as solve
    from osdp.planning.verify import verify as verify
    from osdp.profiling.bare_step import bare_step_s as bare_step_s
    from osdp.profiling.profile import profile as profile
    from osdp.sharding.forward_methods import register_forward_method as register_forward_method
    from osdp.sharding.grad_scaler import ShardedGradScaler as ShardedGradScaler
    from osdp.sharding.report import report as report
    from osdp.sharding.step_scopes import clip_grad_norm_ as clip_grad_norm_
    from osdp.sharding.step_scopes import no_sync as no_sync
    from osdp.sharding.step_scopes import summon_full_params as summon_full_params

check_torch()
logging.getLogger("osdp").addHandler(logging.NullHandler())  # the application configures where log records go

# Public name -> the module that holds it. Loaded on first use: a notebook that only searches never loads the runtime.
_PUBLIC = {
    "ModelDescription": "description.model_description",
    "Hardware": "hardware.hardware",
    "Plan": "plan.plan",
    "ParallelPlan": "plan.parallel_plan",
    "Choice": "plan.choice",
    "describe": "description.describe",
    "profile": "profiling.profile",
    "search": "planning.search",
    "solve": "planning.solve",
    "verify": "planning.verify",
    "frontier": "planning.frontier",
    "fully_shard": "fsdp.composable",
    "parallelize": "parallel.parallelize",
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

__all__ = [
    "BuildError",
    "Checkpoints",
    "Choice",
    "DescribeError",
    "DisagreementError",
    "FSDPModule",
    "FormatError",
    "FullyShardedDataParallel",
    "GradientError",
    "Hardware",
    "InfeasibleError",
    "InvalidProblemError",
    "MachineMismatchWarning",
    "MixedPrecision",
    "ModelDescription",
    "OSDPError",
    "OrderError",
    "OutOfMemoryError",
    "ParallelPlan",
    "Plan",
    "PlanMismatchError",
    "ProcessGroupError",
    "ProfileError",
    "RankError",
    "ReplicaError",
    "ShardedGradScaler",
    "ShardingError",
    "bare_step_s",
    "clip_grad_norm_",
    "describe",
    "frontier",
    "fully_shard",
    "load",
    "no_sync",
    "parallelize",
    "profile",
    "register_forward_method",
    "report",
    "save",
    "search",
    "solve",
    "summon_full_params",
    "verify",
]


later_methods.implement(
    {
        "describe": "osdp.planning.low_precision.described",
        "Plan.units_of": "osdp.planning.plan_builder.units_of",
        "Plan.simulate": "osdp.planning.simulate.simulate",
        "ParallelPlan.simulate": "osdp.planning.degrees.replay.simulate",
        "ParallelPlan.__rich__": "osdp.show.parallel_plan.render",
        "PipelineStage": "osdp.fsdp.fsdp_module.as_stage",
        "Plan.frontier": "osdp.planning.frontier.frontier",
        "Plan.explain": "osdp.show.explain.explain",
        "Plan.diff": "osdp.show.diff.diff",
        "Plan.__rich__": "osdp.show.terminal.render",
        "Plan._repr_html_": "osdp.show.notebook.html",
        "Timeline.of_trace": "osdp.plan.profiler_trace.read_trace",
        "Timeline.plot": "osdp.show.timeline_plot.plot",
        "Timeline.__rich_console__": "osdp.show.timeline_plot.in_terminal",
        "Frontier.plot": "osdp.show.frontier_plot.plot",
        "Frontier.__rich__": "osdp.show.frontier_plot.table",
        "ModelDescription.__rich__": "osdp.show.description_table.table",
        "Hardware.this": "osdp.profiling.profile.profile",
        "Hardware.__rich__": "osdp.show.hardware_table.table",
    }
)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _PUBLIC:
            raise AttributeError(f"module 'osdp' has no attribute {name!r}")
        return getattr(import_module(f"osdp.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
