"""diff: the decisions in which another plan differs, a line for each row of operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from osdp.base.byte_sizes import format_bytes
from osdp.base.numbers import format_rate, format_seconds
from osdp.plan.plan import Plan
from osdp.show.table_rows import NUMBER, ranged, runs

_SETTINGS = (
    "world_size", "batch_size", "accumulation", "prefetch", "separate_reductions", "optimizer", "precision", "cost",
    "memory_limit_bytes",
)  # fmt: skip


def diff(plan: Plan, other: Plan) -> str:
    """The decisions in which `other` differs; "" if there are none.

    blocks.0-11.mlp.fc (12 operators): FULL_SHARD -> NO_SHARD
    """
    lines = []
    for name in _SETTINGS:
        before, after = getattr(plan, name), getattr(other, name)
        if before != after:
            lines.append(f"{name}: {_setting(name, before)} -> {_setting(name, after)}")
    machines = [p.hardware.name if p.hardware else "none" for p in (plan, other)]
    if machines[0] != machines[1]:
        lines.append(f"hardware: {machines[0]} -> {machines[1]}")
    lines += _changes("operators", plan.choices, other.choices, "absent", "")
    lines += _changes("blocks", plan.recompute, other.recompute, "keep", "activations ")
    if not lines and plan.units != other.units:
        lines.append(f"units: {len(plan.units)} -> {len(other.units)}, grouped differently")
    if plan.predicted and other.predicted and lines:
        a, b = plan.predicted, other.predicted
        lines += [
            f"step time: {format_seconds(a.step_time_s)} -> {format_seconds(b.step_time_s)}",
            f"throughput: {format_rate(a.throughput)} -> {format_rate(b.throughput)} samples/s"
            f"{_percent(a.throughput, b.throughput)}",
            f"peak memory: {format_bytes(a.peak_memory_bytes)} -> {format_bytes(b.peak_memory_bytes)}",
        ]
    return "".join(line + "\n" for line in lines)


def _changes(
    what: str, before: Mapping[str, object], after: Mapping[str, object], without: str, of: str
) -> Iterator[str]:
    """A line for each row of names with the same change. `without`: what a name has that is not in the mapping."""
    changes: dict[tuple[str, str, str], list[str]] = {}
    for name in dict.fromkeys([*before, *after]):
        was, now = (str(values.get(name, without)) for values in (before, after))
        if was != now:
            changes.setdefault((NUMBER.sub("*", name), was, now), []).append(name)
    for (_, was, now), names in changes.items():
        for run in runs(names):
            count = f" ({len(run)} {what})" if len(run) > 1 else ""
            yield f"{ranged(run) or '(model)'}{count}: {of}{was} -> {now}"


def _percent(before: float, after: float) -> str:
    return f" ({after / before - 1:+.1%})" if before > 0 else ""


def _setting(name: str, value: object) -> str:
    if value is None:
        return "any" if name == "world_size" else "none"
    return format_bytes(value) if name.endswith("_bytes") and isinstance(value, int) else str(value)
