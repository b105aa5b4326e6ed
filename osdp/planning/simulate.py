"""simulate: one training step of a plan, played event by event by csrc/search/simulate."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from osdp import _search
from osdp.description.model_description import ModelDescription
from osdp.errors import InvalidProblemError, PlanMismatchError
from osdp.hardware.hardware import Hardware
from osdp.plan.choice import MODES, Choice
from osdp.plan.plan import Plan
from osdp.plan.timeline import Timeline, TimelineEvent
from osdp.planning.arguments import machine_of
from osdp.planning.core_inputs import (
    RECOMPUTE_CODES,
    SPLIT_CODES,
    beside_tensors,
    choose_space,
    make_model,
    make_request,
)
from osdp.planning.device_memory import total

PS = 1e-12

Unit = tuple[str, list[int], list[tuple[int, int]], int]  # csrc/bindings/simulate.cpp


def simulate(
    plan: Plan, hardware: Hardware | str | os.PathLike[str] | None = None, world_size: int | None = None
) -> Timeline:
    """The time line of one step: `Plan.simulate`."""
    machine = machine_of(hardware) if hardware is not None else plan.hardware
    ranks = world_size or plan.world_size
    if machine is None or ranks is None:
        raise PlanMismatchError(
            "the plan does not say for which hardware and how many ranks it is: "
            "pass hardware= and world_size= to simulate"
        )
    hosts = plan.searched.hosts if plan.searched is not None else 1
    request = make_request(
        machine,
        choose_space("auto", "auto", "auto", "osdp", hosts),
        world_size=ranks,
        limit_bytes=0,
        batches=(),
        optimizer=plan.optimizer,
        cost="osdp",
        method="exact",
        hosts=hosts,
    )
    beside = total(
        beside_tensors(plan.description, machine, ranks, hosts, plan.optimizer, plan.separate_reductions)
    )
    try:
        played = play(
            plan.description,
            machine,
            make_model(plan.description, machine, plan.precision, beside_tensors=beside),
            request,
            choices=plan.choices,
            units=plan.units,
            blocks=[RECOMPUTE_CODES.index(plan.recompute.get(b.name)) for b in plan.description.blocks],
            batch=(plan.batch_size, plan.accumulation),
            prefetch=plan.prefetch,
            separate_reductions=plan.separate_reductions,
            timeline=True,
        )
    except _search.InvalidProblem as e:
        raise InvalidProblemError(str(e)) from None
    both = played["both_ps"]
    return Timeline(
        step_time_s=played["step_ps"] * PS,
        compute_s=(played["only_computing_ps"] + both) * PS,
        communication_s=(played["only_communicating_ps"] + both) * PS,
        overlap_s=both * PS,
        optimizer_s=played["optimizer_ps"] * PS,
        peak_memory_bytes=played["peak_bytes"],
        events=tuple(
            TimelineEvent(resource, action, phase, name, begin * PS, end * PS)
            for resource, action, phase, name, begin, end in played["events"]
        ),
        memory=tuple((moment * PS, size) for moment, size in played["memory"]),
    )


def play(
    description: ModelDescription,
    hardware: Hardware,
    model: _search.Model,
    request: _search.Request,
    *,
    choices: Mapping[str, Choice],
    units: Sequence[Sequence[str]],
    blocks: Sequence[int],
    batch: tuple[int, int],
    prefetch: int,
    separate_reductions: bool,
    timeline: bool = False,
) -> dict[str, Any]:
    """A step in the core's figures: step_ps, only_computing_ps, both_ps, only_communicating_ps, optimizer_ps,
    peak_bytes; with `timeline` also events and memory. `blocks`: RECOMPUTE_CODES by block; `batch`: size per rank,
    micro-batches.
    """
    how = lanes_of(hardware, separate_reductions)

    def played(accumulation: int) -> dict[str, Any]:
        return dict(
            _search.simulate(
                model,
                request,
                (batch[0], accumulation),
                [plain_choice(choices.get(o.name)) for o in description.operators],
                list(blocks),
                planned_units(description, units),
                prefetch,
                timeline=timeline,
                **how,
            )
        )

    if timeline or batch[1] <= 2:
        return played(batch[1])
    # At a micro-batch's end all communication has been waited for, so each one takes as long as the next: one and two
    # are played, and the others are like the second.
    one, two = played(1), played(2)
    lasting = ("step_ps", "only_computing_ps", "both_ps", "only_communicating_ps")
    return {**two, **{part: two[part] + (batch[1] - 2) * (two[part] - one[part]) for part in lasting}}


def lanes_of(hardware: Hardware, separate_reductions: bool) -> dict[str, Any]:
    """What the core's player wants to know of the lanes: which there are, and what computing beside them costs."""
    delay = hardware.communication_delay
    enqueue = hardware.device != "cpu"  # its lanes are streams
    return {
        "lanes": (separate_reductions and enqueue, enqueue),
        "delay": (delay.alpha_s, delay.beta_s_per_byte),
        "stolen_permille": round(hardware.stolen_computation * 1000),
    }


def plain_choice(choice: Choice | None) -> tuple[int, int, int, int]:
    """(mode, granularity, sharded slices, split) in the core's codes; of no parameters, anything."""
    if choice is None:
        return (0, 1, 0, 0)
    split = SPLIT_CODES.index(choice.split) if choice.granularity > 1 else 0
    return (MODES.index(choice.mode), choice.granularity, choice.slices_sharded, split)


def planned_units(description: ModelDescription, units: Sequence[Sequence[str]]) -> list[Unit]:
    """The plan's units as the simulator takes them: when the modules' calls that gather them begin and end."""
    index = {o.name: i for i, o in enumerate(description.operators)}
    calls_of = gathering_calls(description)
    result: list[Unit] = []
    for unit in units:
        found = [calls_of[name] for name in unit]
        calls = sorted({span for spans, _ in found for span in spans})
        result.append((unit[0], sorted(index[name] for name in unit), calls, max(n for _, n in found)))
    return result


def gathering_calls(description: ModelDescription) -> dict[str, tuple[list[tuple[int, int]], int]]:
    """By operator: the first and the last operator of each call that gathers it, and how often each of these modules is
    called in one forward.
    """
    spans = _spans(description)
    return {
        o.name: (
            [spans.get(place, (i, i)) for place in o.gather_at] or [(i, i)],
            max(1, o.calls // max(1, len(o.gather_at))),
        )
        for i, o in enumerate(description.operators)
    }


def _spans(description: ModelDescription) -> dict[str, tuple[int, int]]:
    """By module: the first and the last operator, in execution order, that run in its call."""
    spans: dict[str, tuple[int, int]] = {}
    for i, o in enumerate(description.operators):
        name = o.name
        while True:
            first, _ = spans.get(name, (i, i))
            spans[name] = (first, i)
            if not name:
                break
            name = name.rpartition(".")[0]
    return spans
