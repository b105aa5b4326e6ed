"""The chain of a model: where it may be cut into stages, and what each stage is as a description of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from osdp.base.names import is_in, modules_around
from osdp.description.model_description import ModelDescription, Operator
from osdp.errors import InvalidProblemError
from osdp.planning.degrees.divided_operators import (
    block_of,
    blocks_of,
    divided,
    holds_several,
    is_end,
    is_part,
    is_read_around,
    is_unread,
    merged,
    place_finder,
)
from osdp.planning.degrees.linear_shapes import rows_of
from osdp.planning.degrees.local_operators import WORK, WORK_FIXED
from osdp.planning.degrees.stage_buffers import StageBuffers, with_buffers_apart


@dataclass(frozen=True)
class Link:
    """Neighbouring operators that stay together: a block, or an operator with parameters outside blocks, with those without
    around it. `boundary_bytes_per_sample`: activations that pass into it, if a stage begins here.
    """

    name: str
    operators: tuple[int, ...]  # positions in the description
    boundary_bytes_per_sample: int


# Note [The chain]
# A stage is a range of links. A block is a link, also one that is not recomputed since it changes its inputs; so is each
# operator with parameters outside of blocks, but what comes before the first block is one link (embeddings, positions),
# since a cut between embeddings separates what is added up.
# What a module around several blocks computes itself, without parameters, is the end of forward: logits and loss. It
# belongs to the last link. What passes a cut is the next block's input; behind the last block it is as large as that of the
# last; without blocks, the inputs of the next linear, or what the next operator saves. Links that read the same parameter
# are one: each stage holds its own. Parameters of a module that is cut: Note [Parameters of modules that are cut]. A link at
# which no stage can begin is one with the link before (Note [Where a stage may begin] in osdp/description/passages.py).
class Chain:
    """The links of a description that `for_stages` made; it may be the local one of a rank."""

    def __init__(self, description: ModelDescription) -> None:
        self.description = description
        self.divided = {o.name for o in description.operators if is_part(o)}
        links, self._tied = _joined(description, _links(description))
        self.links, self._bound = _with_beginnings(description, links)
        operators, names = [link.operators for link in self.links], [link.name for link in self.links]
        self.kept_buffers = StageBuffers(description, operators, names).of

    @property
    def most_stages(self) -> int:
        return len(self.links)

    def check_stages(self, stages: int) -> None:
        """Raise InvalidProblemError for more stages than links, with the parameter that joins some if one does."""
        if stages <= len(self.links):
            return
        parts = f"pipeline_parallel={stages}: {self.description.name} can be cut into {len(self.links)} parts"
        if self._tied:
            raise InvalidProblemError(
                f"{parts}, since {self._tied} is read in several: a tied weight, or one that forward reads at several "
                "places. Untie it (tie_word_embeddings=False), or read it at one place"
            )
        if self._bound:
            raise InvalidProblemError(f"{parts}, since {self._bound}. {ONE_TENSOR}")
        raise InvalidProblemError(f"{parts}: blocks, and what has parameters around them")

    def stage(self, first: int, end: int) -> ModelDescription:
        """Links [first, end) as a description: what is left out passes in and out as activations."""
        d = self.description
        chosen = sorted(i for link in self.links[first:end] for i in link.operators)
        operators = merged([d.operators[i] for i in chosen])
        blocks = {block_of(d, o) for o in operators}
        return dataclasses.replace(
            d,
            operators=operators,
            buffers=self.kept_buffers(first, end),
            blocks=tuple(b for b in d.blocks if b.name in blocks),
            input_bytes_per_sample=(
                d.input_bytes_per_sample if first == 0 else self.links[first].boundary_bytes_per_sample
            ),
            output_bytes_per_sample=(
                d.output_bytes_per_sample
                if end == len(self.links)
                else self.links[end].boundary_bytes_per_sample
            ),
            blocks_changing_inputs=tuple(n for n in d.blocks_changing_inputs if n in blocks),
            begins=(),
        )


ONE_TENSOR = (
    "A stage gets its first module's first tensor from the one before, and computes the rest from the model's inputs: let "
    "forward pass everything through that tensor, or do what it does around modules in one module (a residual "
    "x + layer(norm(x)))"
)


def why_no_beginning(d: ModelDescription, module: str) -> str:
    """Why no stage can begin at the module, with its name; "" if one can, or if nothing is known."""
    return _why({b.module: b.why_not for b in d.begins}, module) if d.begins else ""


def _why(known: Mapping[str, str], module: str) -> str:
    why = known.get(module, "forward does not call it by itself")
    return f"no stage can begin at {module!r}: {why}" if why else ""


def _with_beginnings(d: ModelDescription, links: Sequence[Link]) -> tuple[tuple[Link, ...], str]:
    """The links, those where no stage can begin joined to the one before; and why, of the first."""
    joined, first = list(links[:1]), ""
    known = {b.module: b.why_not for b in d.begins}
    for link in links[1:] if known else ():
        if why := _why(known, link.name):
            first = first or why
            before = joined.pop()
            members = tuple(sorted((*before.operators, *link.operators)))
            joined.append(dataclasses.replace(before, operators=members))
        else:
            joined.append(link)
    return (tuple(joined) if known else tuple(links)), first


def for_stages(d: ModelDescription) -> ModelDescription:
    """The description with operators of modules that are cut in parts, and with what a module around several blocks computes
    itself behind them, where its forward ends."""
    d = _gathered_around(divided(with_buffers_apart(d)))
    ends = [o.name for o in d.operators if is_end(d, o)] if blocks_of(d) else []
    for name in sorted(ends, key=lambda n: -len(list(modules_around(n)))):
        d = _with_end_last(d, name)
    return d


def _gathered_around(d: ModelDescription) -> ModelDescription:
    """With parameters that a module around several blocks reads gathered for the model's call: what a stage passes on leaves
    such a module in the middle, so its backward does not begin at the module's end."""

    def place(module: str) -> str:
        return "" if holds_several(d, module) else module

    operators = (
        dataclasses.replace(o, gather_at=tuple(dict.fromkeys(map(place, o.gather_at))))
        if is_read_around(o)
        else o
        for o in d.operators
    )
    return dataclasses.replace(d, operators=tuple(operators))


def _with_end_last(d: ModelDescription, name: str) -> ModelDescription:
    """With what the module computes behind all inside it. Where it stood before them, its work counts what they save, which
    it does not hold itself, and theirs is beside what it saves."""
    at = next(i for i, o in enumerate(d.operators) if o.name == name and is_end(d, o))
    last = max(i for i, o in enumerate(d.operators) if is_in(o.name, name))
    end, passed = d.operators[at], d.operators[at + 1 : last + 1]
    held = [end.saved_bytes_per_sample, end.saved_bytes_fixed]
    theirs = [sum(o.saved_bytes_per_sample for o in passed), sum(o.saved_bytes_fixed for o in passed)]
    moved = _with_work(end, [-n for n in theirs])
    passed = tuple(o if is_part(o) else _with_work(o, held) for o in passed)
    return dataclasses.replace(d, operators=(*d.operators[:at], *passed, moved, *d.operators[last + 1 :]))


def _with_work(o: Operator, more: Sequence[int]) -> Operator:
    """`more`: of each sample, and always."""
    changes = {
        name: max(0, getattr(o, name) + n)
        for names, n in zip((WORK, WORK_FIXED), more, strict=True)
        for name in names
    }
    return dataclasses.replace(o, **changes)


def _joined(d: ModelDescription, links: tuple[Link, ...]) -> tuple[tuple[Link, ...], str]:
    """The links, those between which a parameter is read in several places joined; and the first such parameter. Those of
    one module that reads its own begin where it does: a residual is inside of it."""
    link_of = {i: at for at, link in enumerate(links) for i in link.operators}
    spans: dict[str, tuple[int, int]] = {}  # of each module's operators
    for i, o in enumerate(d.operators):
        at = link_of[i]
        for name in modules_around(o.name):
            first, last = spans.get(name, (at, at))
            spans[name] = (min(first, at), max(last, at))
    last_of = list(range(len(links)))  # by link, the last one that must be in its stage
    tied = ""
    begins: dict[int, str] = {}  # by link, the module that begins there
    place = place_finder(d)
    for i, o in enumerate(d.operators):
        here = link_of[i]
        read: dict[str, list[int]] = {}  # parameter -> links
        if is_read_around(o):
            for r in o.reads:
                at = link_of[max(0, place(r))]
                places = read.setdefault(r.parameter, [here])
                places.append(at)
                if not holds_several(d, r.module):
                    at, _ = spans.get(r.module, (at, at))
                    begin = links[at].name
                    # A stage that begins with a module that is given the parameter would get it from the one before.
                    places.append(max(0, at - 1) if is_in(r.module, begin) or is_in(begin, r.module) else at)
        elif o.parameters and not is_unread(d, o):
            modules = {module: spans.get(module, (here, here)) for module in o.gather_at}
            read[o.parameters[0].name] = [here, *(at for both in modules.values() for at in both)]
            read[o.parameters[0].name] += (link_of[max(0, place(r))] for r in o.reads)
            for module, (at, last) in modules.items():
                if last > at and is_in(links[at].name, module) and not holds_several(d, module):
                    begins[at] = min(module, begins.get(at, module), key=len)
        for name, places in read.items():
            first, last = min(places), max(places)
            if last > first:
                tied = tied or name
                last_of[first] = max(last_of[first], last)
    joined: list[Link] = []
    until = -1
    for at, link in enumerate(links):
        if at <= until:
            before = joined.pop()
            members = tuple(sorted((*before.operators, *link.operators)))
            joined.append(dataclasses.replace(before, operators=members))
        else:
            joined.append(dataclasses.replace(link, name=begins.get(at, link.name) if at else link.name))
        until = max(until, last_of[at])
    return tuple(joined), tied


def _links(d: ModelDescription) -> tuple[Link, ...]:
    groups: list[tuple[str, list[int]]] = []
    ends: list[int] = []  # of the last link
    waiting: list[int] = []  # operators without parameters before their link
    has_blocks, seen_block, previous = bool(blocks_of(d)), False, None
    for i, o in enumerate(d.operators):
        block = block_of(d, o) or (_block_around(d, o.name) if o.parameters else None)
        if is_end(d, o):
            ends.append(i)
        elif is_unread(d, o) and groups:
            _where_around(d, groups, o.name).append(i)
        elif block is not None:
            if previous != block:
                groups.append((block, waiting))
                waiting = []
            groups[-1][1].append(i)
            seen_block = True
        elif not o.parameters or is_read_around(o) or is_unread(d, o):
            (groups[-1][1] if groups else waiting).append(i)
        elif has_blocks and not seen_block and groups:
            groups[-1][1].append(i)
        else:
            groups.append((o.name, [*waiting, i]))
            waiting = []
        if not is_end(d, o) and not is_read_around(o) and not is_unread(d, o):
            previous = block
    if not groups:
        groups.append((d.name, []))
    groups[-1][1].extend([*ends, *waiting])
    inputs = {b.name: b.input_bytes_per_sample for b in d.blocks}
    links, last = [], 0
    for name, members in groups:
        first = next((d.operators[i] for i in members if d.operators[i].parameters), None)
        last = inputs.get(name, last or _reads(first))
        links.append(Link(name, tuple(sorted(members)), last))
    return tuple(links)


def _block_around(d: ModelDescription, name: str) -> str | None:
    """Of an operator that is in no block, since several read it: the one that it is in by name."""
    return next((b for b in blocks_of(d) if is_in(name, b)), None)


def _where_around(d: ModelDescription, groups: Sequence[tuple[str, list[int]]], name: str) -> list[int]:
    """The link of what computes last in the innermost module around `name`, a layer that forward does not call: a stage with
    one layer of a block has to have the block."""
    for around in modules_around(name):
        for _, members in reversed(groups):
            if any(is_in(d.operators[i].name, around) for i in members):
                return members
    return groups[-1][1]


def _reads(o: Operator | None) -> int:
    if o is None:
        return 0
    if o.split_shape is not None and o.multiplies and o.parameters:
        elements = max(1, sum(p.elements for p in o.parameters))
        return rows_of(o) * o.split_shape[1] * (o.parameter_bytes // elements)
    return o.saved_bytes_per_sample
