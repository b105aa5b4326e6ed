"""Shows a parallel plan: degrees, a line for each stage, what fewer means give, and what was ruled out."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from osdp.base.byte_sizes import format_bytes
from osdp.base.numbers import format_rate, format_seconds

if TYPE_CHECKING:
    from osdp.plan.parallel_plan import ParallelPlan, StagePlan

_MOST_RULED_OUT = 8


def render(plan: ParallelPlan) -> RenderableType:
    """The whole answer, as `print(plan)` shows it."""
    found, missing = _alternatives(plan)
    parts: list[RenderableType] = [Text(_head(plan)), _stages(plan), Text()]
    parts += [found] if found.row_count else []
    parts += [Text(line) for line in missing]
    return Group(*parts, Text(_ruled_out(plan)))


def _head(plan: ParallelPlan) -> str:
    t, p, d = plan.tensor_parallel, plan.pipeline_parallel, plan.data_parallel
    step = format_seconds(plan.step_time_s)
    return (
        f"{plan.description.name} on {plan.world_size} ranks ({plan.hosts} hosts, {plan.hardware.label}): "
        f"tensor {t} x pipeline {p} x data {d}\n"
        f"a step of {plan.global_batch_size} samples: {plan.micro_batches} micro-batches of {plan.micro_batch_size} on each "
        f"replica, schedule {plan.schedule}; {step}, {format_rate(plan.throughput)} samples/s, {plan.idle_share:.1%} idle; "
        f"{format_bytes(plan.peak_memory_bytes)} of {format_bytes(plan.memory_limit_bytes)}"
    )


def _stages(plan: ParallelPlan) -> Table:
    table = Table(
        "stage", "modules", "in flight", "plan", "step alone", "memory", "gap", box=None, padding=(0, 1)
    )
    for i, s in enumerate(plan.stages):
        predicted, certificate = s.plan.predicted, s.plan.certificate
        stage = s.plan.searched.stage if s.plan.searched is not None else None
        table.add_row(
            str(i),
            s.modules[0] if len(s.modules) == 1 else f"{s.modules[0]} .. {s.modules[-1]} ({len(s.modules)})",
            str(stage.in_flight) if stage is not None else "",
            _choices(s),
            format_seconds(predicted.step_time_s) if predicted is not None else "",
            format_bytes(predicted.peak_memory_bytes) if predicted is not None else "",
            f"{certificate.gap:.1%}" if certificate is not None else "",
        )
    return table


def _choices(stage: StagePlan) -> str:
    modes = Counter(
        choice.mode + (f" in {choice.granularity}" if choice.granularity > 1 else "")
        for choice in stage.plan.choices.values()
    )
    parts = [f"{n} {mode}" if len(modes) > 1 else f"all {mode}" for mode, n in modes.most_common()]
    if stage.plan.recompute:
        parts.append(f"{len(stage.plan.recompute)} recomputed")
    return ", ".join(parts)


def _alternatives(plan: ParallelPlan) -> tuple[Table, list[str]]:
    """Those with degrees, and a line for each reason why others have none."""
    table = Table(
        "alone", "tensor x pipeline x data", "micro-batch", "step", "memory", "how", box=None, padding=(0, 1)
    )
    missing: dict[str, list[str]] = {}
    for a in plan.alternatives:
        if a.tensor_parallel is None:
            missing.setdefault(a.why, []).append(a.name)
            continue
        degrees = f"{a.tensor_parallel} x {a.pipeline_parallel} x {a.data_parallel}"
        degrees += f", {a.schedule}" if a.pipeline_parallel != 1 else ""
        step = (
            "-"
            if a.step_time_s is None
            else f"{format_seconds(a.step_time_s)} ({a.step_time_s / plan.step_time_s:.2f}x)"
        )
        memory = "-" if a.peak_memory_bytes is None else format_bytes(a.peak_memory_bytes)
        table.add_row(a.name, degrees, str(a.micro_batch_size or "-"), step, memory, a.why)
    return table, [f" {', '.join(names)} alone: {why}" for why, names in missing.items()]


def _ruled_out(plan: ParallelPlan) -> str:
    lines = [
        f"{len(plan.ruled_out)} other degrees and micro-batches were ruled out"
        + (":" if plan.ruled_out else "")
    ]
    # The last ones were nearest.
    for r in list(reversed(plan.ruled_out))[:_MOST_RULED_OUT]:
        size = "" if r.micro_batch_size is None else f", micro-batch {r.micro_batch_size}"
        lines.append(f"  {r.tensor_parallel} x {r.pipeline_parallel} x {r.data_parallel}{size}: {r.why}")
    if len(plan.ruled_out) > _MOST_RULED_OUT:
        lines.append(f"  ... (plan.ruled_out has {len(plan.ruled_out) - _MOST_RULED_OUT} more)")
    return "\n".join(lines)
