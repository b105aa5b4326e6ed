"""ParallelPlan: degrees of tensor, pipeline and data parallelism, the stages, and a plan for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from osdp import _search
from osdp.base.byte_sizes import MOST_BYTES
from osdp.base.json_files import InFile
from osdp.base.later_methods import function_of
from osdp.base.schema import AtLeast, OneOf
from osdp.description.model_description import ModelDescription, Operator
from osdp.hardware.hardware import Hardware
from osdp.plan.plan import Plan
from osdp.plan.validation import problems

if TYPE_CHECKING:
    from osdp.plan.pipeline_timeline import PipelineTimeline

SCHEDULES: tuple[str, ...] = _search.SCHEDULES


@dataclass(frozen=True)
class StagePlan:
    """A stage: the modules that it runs, in order (blocks, and what is outside of them), and its plan over the ranks of
    its data-parallel groups. The plan's description has the shapes that one rank of a tensor-parallel group holds; its
    prediction is of the stage alone, as if it never waited for another."""

    modules: tuple[str, ...]
    plan: Plan


@dataclass(frozen=True)
class Alternative:
    """The best that was found with fewer means: "DP", "FSDP", "OSDP", "TP", "PP", "3D". Without a step's time nothing of it
    fits or exists, and `why` says so."""

    name: str
    tensor_parallel: int | None
    pipeline_parallel: int | None
    data_parallel: int | None
    schedule: Annotated[str, OneOf(SCHEDULES)] | None
    micro_batch_size: int | None
    step_time_s: float | None
    peak_memory_bytes: int | None
    why: str


@dataclass(frozen=True)
class RuledOut:
    """Degrees (and a micro-batch, where it depends on that) that were not tried further, and why."""

    tensor_parallel: int
    pipeline_parallel: int
    data_parallel: int
    micro_batch_size: int | None
    why: str


@dataclass(frozen=True, repr=False)
class ParallelPlan(InFile):
    """What `osdp.search` finds where it also decides degrees: of ranks that share an operator (tensor), of stages
    (pipeline), and of replicas of both (data), over which each stage has a plan.

    Proven is each stage's plan, for its operators and its memory (`stages[i].plan.certificate`); degrees, micro-batches and
    cuts are enumerated, with bounds, and the step is played.

    >>> plan = osdp.search(model, (tokens,), memory="80GB", world_size=64, hosts=8, global_batch_size=512,
    ...                    tensor_parallel="auto", pipeline_parallel="auto", tp_plan=styles)
    >>> plan.save("plan.json")
    """

    KIND = "parallel-plan"

    description: ModelDescription  # of the whole model, on one rank
    hardware: Hardware
    world_size: Annotated[int, AtLeast(1)]
    hosts: Annotated[int, AtLeast(1)]
    tensor_parallel: Annotated[int, AtLeast(1)]
    pipeline_parallel: Annotated[int, AtLeast(1)]
    data_parallel: Annotated[int, AtLeast(1)]
    tp_plan: Mapping[str, str]  # pattern of module names -> style (osdp/planning/degrees/styles.py)
    schedule: Annotated[str, OneOf(SCHEDULES)]
    global_batch_size: Annotated[int, AtLeast(1)]
    micro_batch_size: Annotated[int, AtLeast(1)]  # samples of a replica
    micro_batches: Annotated[int, AtLeast(1)]
    memory_limit_bytes: int
    stages: tuple[StagePlan, ...]
    step_time_s: float  # played: schedule, transfers, and every stage's own step
    idle_share: float  # of all ranks' time, waiting for other stages
    alternatives: tuple[Alternative, ...]
    ruled_out: tuple[RuledOut, ...]

    @property
    def throughput(self) -> float:
        """Samples per second over all ranks."""
        return self.global_batch_size / self.step_time_s

    @property
    def peak_memory_bytes(self) -> int:
        """Of the rank that holds most."""
        return max(s.plan.predicted.peak_memory_bytes for s in self.stages if s.plan.predicted is not None)

    def simulate(self) -> PipelineTimeline:
        """Play one step: every pass of every micro-batch through every stage."""
        played: PipelineTimeline = function_of("ParallelPlan.simulate")(self)
        return played

    def _problems(self) -> Iterable[tuple[str, str]]:
        return parallel_problems(self)


def degree_problems(plan: ParallelPlan) -> Iterable[tuple[str, str]]:
    """(field, error) of each violation by its numbers alone."""
    t, p, d = plan.tensor_parallel, plan.pipeline_parallel, plan.data_parallel
    if t * p * d != plan.world_size:
        yield "data_parallel", f"{t} x {p} x {d} ranks are not the world size {plan.world_size}"
    if len(plan.stages) != p:
        yield "stages", f"{len(plan.stages)} stages for pipeline_parallel {p}"
    if plan.micro_batch_size * plan.micro_batches * d != plan.global_batch_size:
        yield (
            "global_batch_size",
            f"{plan.micro_batches} micro-batches of {plan.micro_batch_size} on {d} replicas are not it",
        )
    if plan.schedule not in SCHEDULES:
        yield "schedule", f"{plan.schedule!r} is none of {', '.join(map(repr, SCHEDULES))}"


def parallel_problems(plan: ParallelPlan) -> Iterable[tuple[str, str]]:
    """(field, error) of each violation."""
    yield from degree_problems(plan)
    t, p, d = plan.tensor_parallel, plan.pipeline_parallel, plan.data_parallel
    if not 0 <= plan.memory_limit_bytes <= MOST_BYTES:
        yield "memory_limit_bytes", f"must be between 0 and 2**58, got {plan.memory_limit_bytes}"
    if not plan.step_time_s > 0:
        yield "step_time_s", f"is {plan.step_time_s}"
    # Parameters of a module that is cut may be in several stages, and what it computes is in one of them.
    found = [o for s in plan.stages for o in s.plan.description.operators]
    computing = [o.name for o in found if o.calls]
    if len(set(computing)) < len(computing) or _has(found) != _has(plan.description.operators):
        yield "stages", "do not have each operator of the description once"
    for i, s in enumerate(plan.stages):
        for field, why in problems(s.plan):
            yield f"stages[{i}].plan.{field}", why
        stage = s.plan.searched.stage if s.plan.searched is not None else None
        if stage is None:
            yield f"stages[{i}].plan.searched.stage", "is missing"
            continue
        said = (stage.index, stage.stages, stage.micro_batches, stage.tensor_parallel, s.plan.world_size)
        if said != (i, p, plan.micro_batches, t, d):
            yield f"stages[{i}].plan.searched.stage", "is of another pipeline"


def _has(operators: Iterable[Operator]) -> tuple[set[str], list[str]]:
    """Names of operators and of parameters."""
    operators = list(operators)
    return {o.name for o in operators}, sorted(p.name for o in operators for p in o.parameters)
