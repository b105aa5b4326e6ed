"""A parallel plan played again, and checked, from its data alone."""

from __future__ import annotations

from collections.abc import Callable

from osdp import _search
from osdp.plan.parallel_plan import ParallelPlan, parallel_problems
from osdp.plan.pipeline_timeline import Pass, PipelineTimeline
from osdp.plan.plan import Plan
from osdp.planning.core_choices import core_plan
from osdp.planning.degrees.candidates import Sharing
from osdp.planning.degrees.cuts import with_sends
from osdp.planning.degrees.layout import Degrees, Layout
from osdp.planning.degrees.schedule_memory import schedule_bytes
from osdp.planning.degrees.stage_search import times_of
from osdp.planning.degrees.styles import styles_of
from osdp.planning.search_problem import SearchProblem

PS = 1e-12


def simulate(plan: ParallelPlan) -> PipelineTimeline:
    """The schedule with each stage's plan played again: see `ParallelPlan.simulate`."""
    played = _layout(plan).played(plan.hardware, plan.schedule, _times(plan), plan.micro_batches, True)
    return PipelineTimeline(
        step_time_s=played.step_ps * PS,
        busy_s=tuple(ps * PS for ps in played.busy_ps),
        passes=tuple(
            Pass(e.stage, e.micro_batch, e.forward, e.begin_ps * PS, e.end_ps * PS) for e in played.events
        ),
    )


def verify(plan: ParallelPlan, verify_plan: Callable[[Plan], str]) -> str:
    """ "" or what is false: of a stage's plan (what `verify_plan` says), of what it was made from, or of the played step."""
    for field, why in parallel_problems(plan):
        return f"{field}: {why}"
    for i, s in enumerate(plan.stages):
        if wrong := verify_plan(s.plan) or _wrong_stage(plan, i):
            return f"stages[{i}]: {wrong}"
    step = _layout(plan).played(plan.hardware, plan.schedule, _times(plan), plan.micro_batches).step_ps
    if step * PS != plan.step_time_s:
        return f"step_time_s is {plan.step_time_s}, but the stages' plans give {step * PS}"
    return ""


def _layout(plan: ParallelPlan) -> Layout:
    degrees = Degrees(plan.tensor_parallel, plan.pipeline_parallel, plan.data_parallel)
    return Layout(degrees, plan.world_size // plan.hosts)


def _sharing(plan: ParallelPlan) -> Sharing:
    styles = styles_of(plan.description, plan.tp_plan)
    machine = plan.hardware.inside_a_host(plan.hosts)
    return Sharing(plan.description, styles, machine, plan.stages[0].plan.precision, plan.tensor_parallel)


def _wrong_stage(plan: ParallelPlan, index: int) -> str:
    """What a stage's plan was made for, and should not have been."""
    own, sharing, layout = plan.stages[index], _sharing(plan), _layout(plan)
    if why := layout.problem():
        return why
    names = [link.name for link in sharing.chain.links]
    first = sum(len(s.modules) for s in plan.stages[:index])
    end = first + len(own.modules)
    if tuple(names[first:end]) != own.modules:
        return f"its modules {own.modules} are not those from {first} on of the model's parts"
    made = own.plan
    if made.description != sharing.chain.stage(first, end):
        return "its description is not that of its modules with the shapes of one rank"
    if made.hardware != layout.machine(plan.hardware):
        return "its hardware is not the plan's, as a data-parallel group has it"
    searched = made.searched
    assert searched is not None and searched.stage is not None
    flight = _search.most_in_flight(plan.schedule, plan.pipeline_parallel, index, plan.micro_batches)
    if searched.stage.in_flight != flight or searched.hosts != layout.data_hosts:
        return f"it counts {searched.stage.in_flight} micro-batches in flight on {searched.hosts} hosts"
    operators = {o.name for o in made.description.operators}
    waits = {n: c for n, c in sharing.collectives(plan.micro_batch_size).items() if n in operators}
    if dict(searched.stage.collectives) != waits:
        return "its collectives of tensor parallelism are not those of its operators"
    held = schedule_bytes(sharing.chain, first, end, plan.micro_batch_size, plan.micro_batches)
    if searched.stage.held_bytes != held:
        return f"it counts {searched.stage.held_bytes} bytes that the schedule holds, which are {held}"
    if made.memory_limit_bytes != plan.memory_limit_bytes:
        return f"its memory limit is {made.memory_limit_bytes}"
    return ""


def _times(plan: ParallelPlan) -> list[_search.StageTimes]:
    layout, batch = _layout(plan), plan.micro_batch_size
    sends = [
        round(layout.send_s(plan.hardware, i, s.plan.description.input_bytes_per_sample * batch) * 1e12)
        for i, s in enumerate(plan.stages[1:])
    ]
    played = (SearchProblem.of(s.plan).planner.play(core_plan(s.plan)) for s in plan.stages)
    return with_sends([times_of(each, plan.micro_batches) for each in played], sends)
