"""Which of a pipeline's stages have which buffers.

Note [Buffers of stages]
A stage keeps a module if an operator or a parameter in it is the stage's, or if none of any stage is, or if the next stage
begins inside it, or if it holds several blocks: all others are stand-ins (Note [A model cut to one stage] in
osdp/parallel/stage_module.py). So the buffers of a module around several blocks, as the model itself, are in all stages,
whether they compute with it or not, and a table that forward reads without calling its module is, too. Buffers that several
modules share are where one of them is. What computes from the model's inputs alone is in all stages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cache

from osdp.base.names import is_in, modules_around
from osdp.description.model_description import Buffers, ModelDescription
from osdp.planning.degrees.divided_operators import block_of, holds_several


def with_buffers_apart(d: ModelDescription) -> ModelDescription:
    """The description with the buffers of modules around several blocks beside their operators."""
    apart = [
        o
        for o in d.operators
        if o.buffer_bytes and (o.of_inputs or (block_of(d, o) is None and holds_several(d, o.name)))
    ]
    if not apart:
        return d
    return dataclasses.replace(
        d,
        operators=tuple(dataclasses.replace(o, buffer_bytes=0) if o in apart else o for o in d.operators),
        buffers=(*d.buffers, *(Buffers((o.name,), o.buffer_bytes) for o in apart)),
    )


class StageBuffers:
    """Buffers beside operators, in a chain whose links have the operators `links` and begin with the modules `names`."""

    def __init__(self, d: ModelDescription, links: Sequence[Sequence[int]], names: Sequence[str]) -> None:
        self._buffers, self._names = d.buffers, names
        self._runs = cache(lambda module: holds_several(d, module))
        self._links = _links_of_modules(d, links) if d.buffers else {}
        self.of = cache(self._of)

    def _of(self, first: int, end: int) -> tuple[Buffers, ...]:
        """Those of the stage that has the links [first, end)."""
        return tuple(b for b in self._buffers if any(self._kept(m, first, end) for m in b.modules))

    def _kept(self, module: str, first: int, end: int) -> bool:
        next_begins = self._names[end] if end < len(self._names) else ""
        return all(
            not (links := self._links.get(around))
            or any(first <= at < end for at in links)
            or self._runs(around)
            or (next_begins != around and is_in(next_begins, around))
            for around in modules_around(module)
            if around
        )


def _links_of_modules(d: ModelDescription, links: Sequence[Sequence[int]]) -> Mapping[str, set[int]]:
    """By module: where operators and parameters in it are."""
    found: dict[str, set[int]] = {}
    for at, members in enumerate(links):
        for o in (d.operators[i] for i in members):
            held = (n.rpartition(".")[0] for p in o.parameters for n in (p.name, *p.aliases))
            for module in {*([] if o.of_inputs else [o.name]), *held}:
                for around in modules_around(module):
                    found.setdefault(around, set()).add(at)
    return found
