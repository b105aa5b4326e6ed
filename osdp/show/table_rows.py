"""Groups a plan's operators into few rows: equal blocks form a section, equal operators with the same choice
a row."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from osdp.description.model_description import Operator
from osdp.plan.choice import Choice
from osdp.plan.plan import Plan
from osdp.plan.plan_fields import OperatorPrediction

NUMBER = re.compile(r"(?<![0-9A-Za-z_])[0-9]+(?![0-9A-Za-z_])")


@dataclass(frozen=True)
class Row:
    """Similar operators: in the same places of the same blocks, with the same choice."""

    blocks: tuple[str, ...]  # which blocks; empty: none
    places: tuple[str, ...]  # the operators' names inside a block, or their full names
    operators: tuple[Operator, ...]  # all of them
    choice: Choice | None  # None: no parameters
    # The sum over all of them; transient: the largest; reason: of the first.
    predicted: OperatorPrediction | None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(o.name for o in self.operators)

    @property
    def operator(self) -> Operator:
        """The first one."""
        return self.operators[0]

    @property
    def place(self) -> str:
        """ "mlp.fc", "experts.0-7.fc"; "(model)" for the root's own, "(block)" for a block's own."""
        return ranged(self.places) or ("(block)" if self.blocks else "(model)")

    @property
    def label(self) -> str:
        """ "blocks.0-5.mlp.fc" for six of them."""
        if not self.blocks:
            return self.place
        inner = ranged(self.places)
        return f"{ranged(self.blocks)}.{inner}" if inner else ranged(self.blocks)

    @property
    def elements(self) -> int:
        """The number of parameter elements of one of them."""
        return sum(p.elements for p in self.operator.parameters)


@dataclass(frozen=True)
class Section:
    """Blocks that are built and recomputed alike, or (no blocks) operators between them."""

    blocks: tuple[str, ...]
    rows: tuple[Row, ...]
    recompute: str | None  # "hold", "regather", None

    def part(self, row: Row) -> str:
        """The section's blocks that `row` contains, "0-5,7"; "" for all of them."""
        return spans(row.blocks, like=self.blocks) if set(row.blocks) != set(self.blocks) else ""


def sections(plan: Plan) -> list[Section]:
    """The sections to show, in execution order: every operator with parameters, and those without that take
    time or memory.
    """
    predictions = plan.predicted.operators if plan.predicted else {}
    shown = [
        o for o in plan.description.operators if o.name in plan.choices or _costs(predictions.get(o.name))
    ]
    known = {block.name for block in plan.description.blocks}
    order = {o.name: i for i, o in enumerate(plan.description.operators)}
    inside: dict[str, list[Operator]] = {}
    outside: list[Operator] = []
    for operator in shown:
        if operator.block in known and operator.block:
            inside.setdefault(operator.block, []).append(operator)
        else:
            outside.append(operator)

    parts: list[tuple[int, Section]] = []
    alike: dict[tuple[object, ...], list[str]] = {}
    for block, operators in inside.items():
        structure = tuple((_place(o.name, block), *_kind(o)) for o in operators)
        alike.setdefault((structure, plan.recompute.get(block), NUMBER.sub("*", block)), []).append(block)
    for blocks in alike.values():
        for run in runs(blocks):
            rows = _block_rows(plan, {block: inside[block] for block in run}, predictions)
            first = min(order[name] for row in rows for name in row.names)
            parts.append((first, Section(tuple(run), tuple(rows), plan.recompute.get(run[0]))))
    for row in _loose_rows(plan, outside, predictions):
        parts.append((order[row.operator.name], Section((), (row,), None)))

    merged: list[Section] = []
    for _, section in sorted(parts, key=lambda part: part[0]):
        if merged and not section.blocks and not merged[-1].blocks:
            merged[-1] = Section((), merged[-1].rows + section.rows, None)
        else:
            merged.append(section)
    return merged


def rows(plan: Plan) -> list[Row]:
    """The rows of all sections."""
    return [row for section in sections(plan) for row in section.rows]


def _block_rows(
    plan: Plan, inside: Mapping[str, Sequence[Operator]], predictions: Mapping[str, OperatorPrediction]
) -> list[Row]:
    """Rows of equal blocks: for each place, blocks with the same choice there form a row."""
    by_place = list(zip(*inside.values(), strict=True))  # one column of equal operators for each place
    cells: dict[tuple[tuple[str, ...], tuple[object, ...]], dict[str, list[Operator]]] = {}
    for column in by_place:
        split: dict[Choice | None, list[tuple[str, Operator]]] = {}
        for block, operator in zip(inside, column, strict=True):
            split.setdefault(plan.choices.get(operator.name), []).append((block, operator))
        place = _place(column[0].name, next(iter(inside)))
        for choice, members in split.items():
            blocks = tuple(block for block, _ in members)
            key = (blocks, (NUMBER.sub("*", place), _kind(column[0]), choice))
            cells.setdefault(key, {})[place] = [operator for _, operator in members]
    result = []
    for (blocks, _), by_name in cells.items():
        for places in runs(list(by_name)):
            operators = [o for place in places for o in by_name[place]]
            choice = plan.choices.get(operators[0].name)
            result.append(Row(blocks, tuple(places), tuple(operators), choice, _sum(operators, predictions)))
    return result


def _loose_rows(
    plan: Plan, operators: Iterable[Operator], predictions: Mapping[str, OperatorPrediction]
) -> list[Row]:
    alike: dict[tuple[object, ...], dict[str, Operator]] = {}
    for o in operators:
        key = (NUMBER.sub("*", o.name), _kind(o), plan.choices.get(o.name))
        alike.setdefault(key, {})[o.name] = o
    return [
        Row(
            (),
            tuple(names),
            tuple(group[name] for name in names),
            plan.choices.get(names[0]),
            _sum([group[name] for name in names], predictions),
        )
        for group in alike.values()
        for names in runs(list(group))
    ]


def _place(name: str, block: str) -> str:
    return "" if name == block else name.removeprefix(f"{block}.")


def _kind(o: Operator) -> tuple[object, ...]:
    return o.kind, tuple((p.shape, p.dtype, p.trainable) for p in o.parameters)


def _costs(p: OperatorPrediction | None) -> bool:
    return p is not None and bool(p.state_bytes or p.saved_bytes or p.communication_s or p.compute_s)


def _sum(
    operators: Sequence[Operator], predictions: Mapping[str, OperatorPrediction]
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
        host_bytes=sum(p.host_bytes for p in found),
    )


def runs(names: Sequence[str]) -> list[list[str]]:
    """`names`, which differ in numbers only, in parts that can be written as one: the same single number differs."""
    parts: list[list[str]] = []
    for name in names:
        # Comparing the first, the last and the new one is enough: those between differ from the first in the
        # same place.
        if parts and differing([parts[-1][0], parts[-1][-1], name]) is not None:
            parts[-1].append(name)
        else:
            parts.append([name])
    return parts


def differing(names: Sequence[str]) -> int | None:
    """Which number of the names differs, if exactly one does."""
    numbers = [NUMBER.findall(name) for name in names]
    places = [i for i, column in enumerate(zip(*numbers, strict=True)) if len(set(column)) > 1]
    return places[0] if len(places) == 1 else None


def ranged(names: Sequence[str]) -> str:
    """One name for several: ("b.0.fc", "b.1.fc", "b.2.fc", "b.5.fc") -> "b.0-2,5.fc"."""
    if len(names) == 1:
        return names[0]
    place = differing(names)
    assert place is not None
    match = list(NUMBER.finditer(names[0]))[place]
    return names[0][: match.start()] + spans(names, like=names) + names[0][match.end() :]


def spans(names: Sequence[str], like: Sequence[str]) -> str:
    """The numbers of `names`, in the place in which those of `like` differ: "0-2,5"."""
    place = differing(like)
    if place is None:
        return ", ".join(names)
    found: list[list[int]] = []
    for value in sorted(int(NUMBER.findall(name)[place]) for name in names):
        if found and value == found[-1][1] + 1:
            found[-1][1] = value
        else:
            found.append([value, value])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in found)
