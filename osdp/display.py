"""Plans for people: a table of operators, memory against the limit, the step's time, and why."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from osdp.description import Operator
from osdp.plan import Choice, OperatorPrediction, Plan
from osdp.sizes import format_bytes

_MODE_STYLES = {"NO_SHARD": "green", "SHARD_GRAD_OP": "yellow", "FULL_SHARD": "cyan"}
_BAR_CELLS = 40
_NUMBER = re.compile(r"(?<![0-9A-Za-z_])[0-9]+(?![0-9A-Za-z_])")


@dataclass(frozen=True)
class Row:
    """Operators that look alike: the same place in blocks that follow each other, the same choice."""

    names: tuple[str, ...]
    operator: Operator  # the first one
    choice: Choice | None  # None: no parameters
    predicted: OperatorPrediction | None  # the sum over all of them

    @property
    def label(self) -> str:
        """ "blocks.0-5.mlp.fc" for six of them; "(model)" for the root's own parameters."""
        return ranged(self.names) or "(model)"


def rows(plan: Plan) -> list[Row]:
    """The table's rows: every operator with parameters or a prediction, in execution order of each row's
    first one.

    Operators are put together when their names differ in one number only, and kind, sizes, choice and reason
    are equal.
    """
    groups: dict[tuple[object, ...], list[Operator]] = {}
    predictions = plan.predicted.operators if plan.predicted else {}
    for operator in plan.description.operators:
        choice = plan.choices.get(operator.name)
        prediction = predictions.get(operator.name)
        if choice is None and prediction is None:
            continue
        alike = (
            _NUMBER.sub("*", operator.name),
            operator.kind,
            tuple((p.shape, p.dtype, p.trainable) for p in operator.parameters),
            choice,
            plan.recompute.get(operator.block or ""),
            prediction.reason if prediction else None,
        )
        groups.setdefault(alike, []).append(operator)
    return [
        Row(tuple(o.name for o in part), part[0], plan.choices.get(part[0].name), _sum(part, predictions))
        for group in groups.values()
        for part in _runs(group)
    ]


def _runs(group: list[Operator]) -> list[list[Operator]]:
    """`group` in parts whose names can be written as one: those that differ in the same single number."""
    parts: list[list[Operator]] = []
    for operator in group:
        # The first, the last and the new one speak for all: the ones between differ from the first in that
        # place too.
        if parts and _differing([parts[-1][0].name, parts[-1][-1].name, operator.name]) is not None:
            parts[-1].append(operator)
        else:
            parts.append([operator])
    return parts


def _differing(names: list[str]) -> int | None:
    """Which number of the names differs, if exactly one does."""
    numbers = [_NUMBER.findall(name) for name in names]
    places = [i for i, column in enumerate(zip(*numbers, strict=True)) if len(set(column)) > 1]
    return places[0] if len(places) == 1 else None


def ranged(names: tuple[str, ...]) -> str:
    """One name for several: ("b.0.fc", "b.1.fc", "b.2.fc", "b.5.fc") -> "b.0-2,5.fc"."""
    if len(names) == 1:
        return names[0]
    place = _differing(list(names))
    assert place is not None
    values = sorted(int(_NUMBER.findall(name)[place]) for name in names)
    spans: list[list[int]] = []
    for value in values:
        if spans and value == spans[-1][1] + 1:
            spans[-1][1] = value
        else:
            spans.append([value, value])
    text = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
    match = list(_NUMBER.finditer(names[0]))[place]
    return names[0][: match.start()] + text + names[0][match.end() :]


def _sum(
    operators: list[Operator], predictions: Mapping[str, OperatorPrediction]
) -> OperatorPrediction | None:
    found = [predictions[o.name] for o in operators if o.name in predictions]
    if not found:
        return None
    return OperatorPrediction(
        state_bytes=sum(p.state_bytes for p in found),
        saved_bytes=sum(p.saved_bytes for p in found),
        transient_bytes=max(p.transient_bytes for p in found),
        communication_s=sum(p.communication_s for p in found),
        compute_s=sum(p.compute_s for p in found),
        reason=found[0].reason,
    )


def render(plan: Plan) -> RenderableType:
    """The plan for a rich console."""
    parts: list[RenderableType] = [_headline(plan), _table(plan)]
    for part in (_memory(plan), _time(plan), _proof(plan)):
        if part is not None:
            parts.append(part)
    return Group(*parts)


def explain(plan: Plan, width: int = 140) -> str:
    """The plan as plain text of at most `width` columns."""
    console = Console(
        width=width, color_system=None, force_terminal=False, record=False, legacy_windows=False
    )
    with console.capture() as capture:
        console.print(render(plan))
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def _headline(plan: Plan) -> Text:
    ranks = "any number of ranks" if plan.world_size is None else f"{plan.world_size} ranks"
    parameters = sum(p.elements for p in plan.description.parameters)
    machine = f", for {plan.hardware.name}" if plan.hardware else ""
    return Text(
        f"{plan.description.name}: {format_count(parameters)} parameters "
        f"({format_bytes(plan.description.parameter_bytes)}), {ranks}, batch {plan.batch_size} per rank, "
        f"{plan.optimizer}, {plan.precision}, {len(plan.units)} units{machine}",
        style="bold",
    )


def _table(plan: Plan) -> Table:
    predicted = plan.predicted is not None and bool(plan.predicted.operators)
    sliced = any(choice.granularity > 1 for choice in plan.choices.values())
    table = Table(show_edge=False, pad_edge=False, box=None, header_style="bold")
    table.add_column("operator", overflow="fold", max_width=44)
    table.add_column("parameters", justify="right")
    table.add_column("mode")
    if sliced:
        table.add_column("slices")
    if plan.recompute:
        table.add_column("recompute")
    if predicted:
        table.add_column("memory", justify="right")
        table.add_column("time", justify="right")
        table.add_column("why", overflow="fold")
    for row in rows(plan):
        count = f"{len(row.names)} x " if len(row.names) > 1 else ""
        elements = sum(p.elements for p in row.operator.parameters)
        choice = row.choice
        cells: list[str | Text] = [
            row.label,
            count + format_count(elements) if elements else "-",
            Text(choice.mode, style=_MODE_STYLES.get(choice.mode, "")) if choice else "-",
        ]
        if sliced:
            cells.append(_slices(choice))
        if plan.recompute:
            cells.append(plan.recompute.get(row.operator.block or "", ""))
        if predicted:
            p = row.predicted
            cells += ["-", "-", ""] if p is None else [
                format_bytes(p.state_bytes + p.saved_bytes),
                format_seconds(p.communication_s + p.compute_s),
                p.reason,
            ]  # fmt: skip
        table.add_row(*cells)
    return table


def _slices(choice: Choice | None) -> str:
    if choice is None or choice.granularity == 1:
        return ""
    return f"{choice.slices_sharded} of {choice.granularity} sharded, {choice.split}"


def _memory(plan: Plan) -> Text | None:
    if plan.predicted is None:
        return None
    peak, limit = plan.predicted.peak_memory_bytes, plan.memory_limit_bytes
    if not limit:
        return Text(f"peak memory {format_bytes(peak)} per rank, no limit")
    filled = min(_BAR_CELLS, round(_BAR_CELLS * peak / limit))
    bar = "█" * filled + "░" * (_BAR_CELLS - filled)
    return Text(
        f"peak memory {bar} {format_bytes(peak)} of {format_bytes(limit)} per rank ({peak / limit:.0%})"
    )


def _time(plan: Plan) -> Text | None:
    p = plan.predicted
    if p is None:
        return None
    hidden = p.communication_s + p.compute_s + p.optimizer_s - p.step_time_s
    overlap = (
        f", of which {format_seconds(hidden)} at the same time" if hidden > 0.005 * p.step_time_s else ""
    )
    return Text(
        f"step time   {format_seconds(p.step_time_s)}: computation {format_seconds(p.compute_s)}, "
        f"communication {format_seconds(p.communication_s)}, optimizer {format_seconds(p.optimizer_s)}"
        f"{overlap}; {p.throughput:.4g} samples/s"
    )


def _proof(plan: Plan) -> Text | None:
    c = plan.certificate
    if c is None:
        return None
    if c.optimal:
        return Text(
            "proof       no plan in this search space is faster under this limit (certificate attached)"
        )
    gap = c.gap
    return Text(
        f"proof       no plan in this search space is more than {gap:.2%} faster (certificate attached)"
    )


def diff(plan: Plan, other: Plan) -> str:
    """What `other` decides differently, a line for each row of operators; "" where they decide the same."""
    lines = []
    for name in ("world_size", "batch_size", "optimizer", "precision", "memory_limit_bytes"):
        before, after = getattr(plan, name), getattr(other, name)
        if before != after:
            lines.append(f"{name}: {_setting(name, before)} -> {_setting(name, after)}")
    changes: dict[tuple[str, str, str], list[str]] = {}
    for name in dict.fromkeys([*plan.choices, *other.choices]):
        before, after = plan.choices.get(name), other.choices.get(name)
        if before != after:
            key = (_NUMBER.sub("*", name), str(before or "absent"), str(after or "absent"))
            changes.setdefault(key, []).append(name)
    for (_, was, now), names in changes.items():
        label = ranged(tuple(names)) if len(names) == 1 or _differing(names) is not None else ", ".join(names)
        lines.append(f"{label or '(model)'}: {was} -> {now}")
    for name in dict.fromkeys([*plan.recompute, *other.recompute]):
        was, now = plan.recompute.get(name, "keep"), other.recompute.get(name, "keep")
        if was != now:
            lines.append(f"{name}: activations {was} -> {now}")
    if not lines and plan.units != other.units:
        lines.append(f"units: {len(plan.units)} -> {len(other.units)}, grouped differently")
    if plan.predicted and other.predicted and lines:
        a, b = plan.predicted, other.predicted
        lines.append(f"step time: {format_seconds(a.step_time_s)} -> {format_seconds(b.step_time_s)}")
        lines.append(
            f"peak memory: {format_bytes(a.peak_memory_bytes)} -> {format_bytes(b.peak_memory_bytes)}"
        )
    return "".join(line + "\n" for line in lines)


def _setting(name: str, value: object) -> str:
    if value is None:
        return "any" if name == "world_size" else "none"
    return format_bytes(value) if name.endswith("_bytes") and isinstance(value, int) else str(value)


def format_count(count: int) -> str:
    """1234567 -> "1.23 M"."""
    for size, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 999.5 * size else f"{count / size:.0f} {unit}"
    return str(count)


def format_seconds(seconds: float) -> str:
    """0.00123 -> "1.23 ms"."""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= 0.9995 * size:
            return (
                f"{seconds / size:.3g} {unit}" if seconds < 999.5 * size else f"{seconds / size:.0f} {unit}"
            )
    return f"{seconds * 1e9:.3g} ns" if seconds else "0 s"
