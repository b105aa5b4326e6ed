"""Operators of modules that a cut divides: their parameters by the place where forward reads them, and what they compute.

Note [Parameters of modules that are cut]
A module around several blocks, as the model itself, runs in every stage that has some of them, and each stage computes what
is between its own (Note [A model cut to one stage] in osdp/parallel/stage_module.py). So a parameter of its own (class
tokens, positions, a scale) belongs to the stage in which it is read: that of the module whose call ended last before, or of
the block or operator whose call reads it. It becomes an operator at this place, of the same name and without calls. One that
is read at several places keeps these in one stage, as a tied weight does. What the module computes itself stays one
operator. In a stage the parts of one module are one operator again. Parameters of a module that is never called itself,
since one around it reads them, are where that does, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from osdp.base.names import is_in, joined, modules_around
from osdp.description.model_description import SAVED_BYTES, WORK_BYTES, ModelDescription, Operator, Read
from osdp.planning.core_inputs import itemsize

_COMPUTES = (*SAVED_BYTES, *WORK_BYTES, "waiting_gradient_bytes", "flops_per_sample", "buffer_bytes", "calls")


def blocks_of(d: ModelDescription) -> tuple[str, ...]:
    return (*(b.name for b in d.blocks), *d.blocks_changing_inputs)


def block_of(d: ModelDescription, o: Operator) -> str | None:
    """The block that the operator is in, also one that changes its inputs, which is no block to recompute."""
    return o.block or next((b for b in d.blocks_changing_inputs if is_in(o.name, b)), None)


def holds_several(d: ModelDescription, module: str) -> bool:
    """Whether a module holds more than one block, or, in a model without blocks, everything."""
    return sum(is_in(b, module) and b != module for b in blocks_of(d)) > 1 or module == ""


def is_end(d: ModelDescription, o: Operator) -> bool:
    """Whether it is what a module around several blocks computes itself, which stands where its forward ends."""
    return not o.parameters and block_of(d, o) is None and holds_several(d, o.name)


def _spans(d: ModelDescription) -> dict[str, tuple[int, int]]:
    """By module: the first and the last of its operators that were called."""
    spans: dict[str, tuple[int, int]] = {}
    for i, o in enumerate(d.operators):
        for name in modules_around(o.name) if o.traced and not is_end(d, o) else ():
            spans[name] = (spans.get(name, (i, i))[0], i)
    return spans


def place_finder(d: ModelDescription) -> Callable[[Read], int]:
    """The position of the operator behind which a read is; -1: before all."""
    spans = _spans(d)
    owners = {o.name: i for i, o in enumerate(d.operators) if o.parameters and not holds_several(d, o.name)}

    def place(read: Read) -> int:
        inside = next((b for b in blocks_of(d) if is_in(read.module, b)), "")
        after = spans[read.after][1] if read.after in spans and read.after else -1
        block = spans[inside][0] if inside in spans and inside else -1
        return max([after, block, *(owners.get(m, -1) for m in modules_around(read.module))])

    return place


def is_part(o: Operator) -> bool:
    """Whether it is the parameters of a divided operator."""
    return bool(o.reads) and not o.calls


def is_read_around(o: Operator) -> bool:
    """Whether its parameters are where modules around others read them: such a part, or what only these read (a table's
    weight that forward adds without calling the table)."""
    return is_part(o) or (bool(o.reads) and all(r.module != o.name for r in o.reads))


def is_unread(d: ModelDescription, o: Operator) -> bool:
    """Whether forward reads none of its parameters: any stage may have them."""
    return bool(o.parameters) and not o.traced and d.sample_batch > 0


def divided(d: ModelDescription) -> ModelDescription:
    """The description with such operators in parts: Note [Parameters of modules that are cut]."""
    place = place_finder(d)
    computing: dict[int, tuple[Operator, ...]] = {}
    behind: dict[int, list[Operator]] = {}
    for i, o in enumerate(d.operators):
        if not o.parameters or not o.reads or block_of(d, o) is not None or not holds_several(d, o.name):
            continue
        first = min(map(place, o.reads))  # also of what is not read
        places: dict[int, list[str]] = {}
        for p in o.parameters:
            at = min((place(r) for r in o.reads if r.parameter == p.name), default=first)
            places.setdefault(at, []).append(p.name)
        for at, names in places.items():
            behind.setdefault(at, []).append(_parameters_of(o, names))
        rest = dataclasses.replace(
            _part_of(o, ()), reads=(), **{name: getattr(o, name) for name in _COMPUTES}
        )
        rest = dataclasses.replace(
            rest, forward_kernels=o.forward_kernels, backward_kernels=o.backward_kernels
        )
        keeps = rest.flops_per_sample or rest.buffer_bytes or any(getattr(rest, n) for n in SAVED_BYTES)
        computing[i] = (rest,) if keeps else ()
    if not behind:
        return d
    operators = list(behind.get(-1, ()))
    for i, o in enumerate(d.operators):
        operators += [*computing.get(i, (o,)), *behind.get(i, ())]
    return dataclasses.replace(d, operators=tuple(operators))


def with_own_names(d: ModelDescription) -> ModelDescription:
    """With another name for each part, inside of its module: when it is gathered and how large it is, is kept by name."""
    operators = (
        dataclasses.replace(o, name=joined(o.name, f"part {i}")) if is_part(o) else o
        for i, o in enumerate(d.operators)
    )
    return dataclasses.replace(d, operators=tuple(operators))


def _parameters_of(o: Operator, names: Sequence[str]) -> Operator:
    """Without what the module computes."""
    reads = tuple(r for r in o.reads if r.parameter in names)
    # Where an outer module reads the operator's parameters, it is gathered there.
    around = [next((g for g in o.gather_at if is_in(r.module, g)), "?") for r in reads]
    found = tuple(g for g in o.gather_at if g in around)
    gather_at = o.gather_at if "?" in around or not found else found
    return dataclasses.replace(_part_of(o, names), gather_at=gather_at, reads=reads)


def _part_of(o: Operator, names: Sequence[str]) -> Operator:
    parameters = tuple(p for p in o.parameters if p.name in names)
    return dataclasses.replace(
        o,
        parameters=parameters,
        gather_at=o.gather_at if parameters else (),
        parameter_bytes=sum(p.elements * itemsize(p.dtype) for p in parameters),
        split_shape=None,
        look_ups=(),
        transposed=False,
        kernel_places=0,
        forward_kernels=-1,
        backward_kernels=-1,
        **dict.fromkeys(_COMPUTES, 0),  # type: ignore[arg-type]
    )


def merged(operators: Sequence[Operator]) -> tuple[Operator, ...]:
    """The operators of a stage, with the parts of each module as one: where it computes, else at the first of them."""
    parts: dict[str, list[int]] = {}
    for i, o in enumerate(operators):
        parts.setdefault(o.name, []).append(i)
    found: dict[int, Operator] = {}
    for own in parts.values():
        at = next((i for i in own if operators[i].calls), own[0])
        found[at] = _merged([operators[at], *(operators[i] for i in own if i != at)])
    return tuple(found[i] for i in sorted(found))


def _merged(parts: Sequence[Operator]) -> Operator:
    first = parts[0]
    if len(parts) == 1:
        return first
    changes: Mapping[str, tuple[object, ...]] = {
        "parameters": tuple(p for o in parts for p in o.parameters),
        "gather_at": tuple(dict.fromkeys(g for o in parts for g in o.gather_at)),
        "reads": tuple(r for o in parts for r in o.reads),
    }
    return dataclasses.replace(first, parameter_bytes=sum(o.parameter_bytes for o in parts), **changes)  # type: ignore[arg-type]
