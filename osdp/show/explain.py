"""explain: the reasons for a plan, in words and figures that can be checked by searching again."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from osdp.base.byte_sizes import format_bytes
from osdp.base.numbers import divisors, format_rate
from osdp.base.printed import plain
from osdp.errors import InfeasibleError
from osdp.plan.plan import Plan
from osdp.planning.search import search_again
from osdp.show.alternatives import Alternatives, alternatives
from osdp.show.plan_figures import device_terms
from osdp.show.table_rows import Section, ranged, sections
from osdp.show.terminal import MODE_STYLES, RECOMPUTED, render, row_name

GIB = 2**30
_REASON = 32  # the fewest columns of a reason that can be read


def explain(plan: Plan, width: int | None = None, search: bool = True) -> str:
    """The plan's table and its reasons, as text: `Plan.explain`."""
    return plain(explained(plan, search), width)


def explained(plan: Plan, search: bool = True) -> RenderableType:
    """The plan's table and its reasons, for a rich console."""
    parts: list[RenderableType] = [render(plan)]
    if plan.predicted is not None:
        others = alternatives(plan)
        parts += [
            Text("\nWhy each choice: the simulated step if that line alone were otherwise", style="bold"),
            _Choices(list(_choices(plan, others))),
        ]
        parts += _paragraphs(plan, search, others)
    return Group(*parts)


def _paragraphs(plan: Plan, search: bool, others: Alternatives | None) -> list[RenderableType]:
    paragraphs: list[tuple[str, list[str]]] = []
    if others is not None:
        blocks = ", the same blocks recomputed" if plan.recompute else ""
        paragraphs.append((f"Plans of one mode{blocks}", list(others.of_one_mode())))
    if lines := device_lines(plan):
        paragraphs.insert(
            0, ("Memory of the device that no tensor has, which counts against the limit", lines)
        )
    if search and plan.searched is not None and plan.memory_limit_bytes is not None:
        if plan.searched.objective == "memory":
            least = f"The least memory that gives {format_rate(plan.searched.at_least or 0.0)} samples/s was requested."
            paragraphs.append(("Why so little memory", [least]))
        else:
            paragraphs.append((f"The next {format_bytes(GIB)}", [next_gib(plan, others)]))
        paragraphs.append((f"Why a batch of {plan.batch_size}", batch_reasons(plan)))
    found: list[RenderableType] = []
    for title, lines in paragraphs:
        found += [Text(f"\n{title}", style="bold"), *(Padding(Text(line), (0, 0, 0, 2)) for line in lines)]
    return found


class _Choices:
    """A row of each choice and its reason; where names leave too little room for reasons, these are below them."""

    def __init__(self, found: list[tuple[str, str, Text, str]]) -> None:
        self.found = found

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        found = self.found
        taken = [max(cell_len(str(row[i])) for row in found) + 2 for i in range(3)] if found else []
        if options.max_width - sum(taken) >= _REASON:
            table = Table.grid(padding=(0, 2, 0, 0))
            table.add_column(no_wrap=True)
            table.add_column(justify="right", no_wrap=True)
            table.add_column(no_wrap=True)
            table.add_column(overflow="fold")
            for row in found:
                table.add_row(*row)
            yield table
            return
        for name, count, mode, reason in found:
            yield Text(f"{name} {count}".rstrip(), overflow="fold")
            if reason:
                yield Padding(Text.assemble(mode, ": ", reason, overflow="fold"), (0, 0, 0, 4))


def _choices(plan: Plan, others: Alternatives | None) -> Iterator[tuple[str, str, Text, str]]:
    """(operator, how many, mode, reason), named and indented as in the plan's table."""
    for section in sections(plan):
        inside = "  " if section.blocks else ""
        if section.blocks:
            reason = recompute_reason(plan, section, others) if section.recompute else ""
            count = f"{len(section.blocks)} equal" if len(section.blocks) > 1 else "block"
            yield (
                f"  {ranged(section.blocks)}",
                count,
                Text("recomputed" if section.recompute else ""),
                reason,
            )
        for row in section.rows:
            if row.choice is None or row.predicted is None:
                continue
            yield (
                f"  {inside}{row_name(section, row)}",
                f"{len(row.names)} x" if len(row.names) > 1 else "",
                Text(row.choice.mode, style=MODE_STYLES.get(row.choice.mode, "")),
                others.of_operators(row.names) if others is not None else row.predicted.reason,
            )


def recompute_reason(plan: Plan, section: Section, others: Alternatives | None) -> str:
    """The memory that recomputing one block of the section saves, and the step without it."""
    block = next(b for b in plan.description.blocks if b.name == section.blocks[0])
    inside = [o for o in plan.description.operators if o.block == block.name]
    saved = sum(plan.batch_size * o.saved_bytes_per_sample + o.saved_bytes_fixed for o in inside)
    saved -= plan.batch_size * block.input_bytes_per_sample
    how = RECOMPUTED[section.recompute or "hold"].partition(", ")[2]
    text = f"saves {format_bytes(saved)} of activations each; {how}"
    return f"{text}; {others.without_recomputation(section.blocks)}" if others is not None else text


def device_lines(plan: Plan) -> list[str]:
    """The device's memory besides tensors, a line for each part; none on a CPU."""
    return [f"{term.name}: {format_bytes(term.bytes)} ({term.why})" for term in device_terms(plan)]


def next_gib(plan: Plan, others: Alternatives | None) -> str:
    """The result of the same search with 1 GiB more, or of the fastest line of `others` that then fits."""
    assert plan.memory_limit_bytes is not None and plan.predicted is not None
    richer = search_again(plan, plan.memory_limit_bytes + GIB)
    assert richer.predicted is not None
    before, after = plan.predicted.throughput, richer.predicted.throughput
    changed = sum(richer.choices[name] != choice for name, choice in plan.choices.items())
    if plan.searched is not None and plan.searched.objective == "batch":
        return f"fits a batch of {richer.batch_size} in place of {plan.batch_size}."
    ways = []
    if richer.batch_size != plan.batch_size:
        ways.append(f"batch {richer.batch_size} in place of {plan.batch_size}")
    if changed:
        ways.append(f"{changed} of {len(plan.choices)} operators chosen otherwise")
    if richer.recompute != plan.recompute:
        ways.append(f"{len(richer.recompute)} blocks recomputed in place of {len(plan.recompute)}")
    line = others.fastest(plan.memory_limit_bytes + GIB) if others is not None else before
    if line > max(before, after) * (1 + 1e-9):
        rates = f"{format_rate(line)} samples/s in place of {format_rate(before)}"
        return f"buys at least {line / before - 1:.2%}: {rates} (one line above)."
    if after <= before * (1 + 1e-9):
        return "buys nothing: the search finds no faster plan with it."
    how = ", ".join(ways) or "other units"
    return f"buys {after / before - 1:.2%}: {format_rate(after)} samples/s in place of {format_rate(before)} ({how})."


def batch_reasons(plan: Plan) -> list[str]:
    """Compares the plan's batch size with its neighbours, with a search for each."""
    searched = plan.searched
    assert searched is not None and plan.memory_limit_bytes is not None
    if searched.batch_size is not None:
        return ["It was requested."]
    if searched.objective == "batch":
        return [
            f"The largest batch was requested. With {plan.batch_size + 1}: "
            f"{_with_batch(plan, plan.batch_size + 1)}"
        ]
    smaller, larger = _neighbours(plan)
    lines = [f"With {plan.batch_size}: {_throughput(plan)}."]
    if smaller is not None:
        lines.append(f"With {smaller}: {_with_batch(plan, smaller)}")
    if larger is not None:
        lines.append(f"With {larger}: {_with_batch(plan, larger)}")
    else:
        lines.append("It is all of each rank's share of the global batch.")
    return lines


def _with_batch(plan: Plan, size: int) -> str:
    assert plan.memory_limit_bytes is not None and plan.predicted is not None
    try:
        other = search_again(
            plan, plan.memory_limit_bytes, batch_size=size, objective="throughput", at_least=None
        )
    except InfeasibleError as error:
        needs = f"; it needs {format_bytes(error.smallest_limit)}" if error.smallest_limit else ""
        return f"nothing fits{needs}."
    assert other.predicted is not None
    change = other.predicted.throughput / plan.predicted.throughput - 1
    percent = f"{change:+.2%}" if abs(change) >= 5e-5 else "the same"
    return f"{_throughput(other)} ({percent}){_more_sharded(plan, other)}."


def _more_sharded(plan: Plan, other: Plan) -> str:
    def held(p: Plan) -> int:
        return sum(x.state_bytes for x in p.predicted.operators.values()) if p.predicted else 0

    if len(other.recompute) != len(plan.recompute):
        return f", with {len(other.recompute)} blocks recomputed in place of {len(plan.recompute)}"
    less = held(plan) - held(other)
    if less == 0:
        return ""
    return f", with {format_bytes(abs(less))} {'less' if less > 0 else 'more'} of parameters and state on each rank"


def _throughput(plan: Plan) -> str:
    assert plan.predicted is not None
    return f"{format_rate(plan.predicted.throughput)} samples/s"


def _neighbours(plan: Plan) -> tuple[int | None, int | None]:
    """The next smaller and larger batch size that the search could have chosen."""
    b = plan.batch_size
    if plan.searched is None or plan.searched.global_batch_size is None or plan.world_size is None:
        return (b - 1 if b > 1 else None), b + 1
    sizes = divisors(plan.searched.global_batch_size // plan.world_size)
    return max((d for d in sizes if d < b), default=None), min((d for d in sizes if d > b), default=None)
