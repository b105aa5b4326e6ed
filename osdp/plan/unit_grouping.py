"""Groups operators into units, which are gathered and reduced together."""

from __future__ import annotations

from collections.abc import Mapping

from osdp import _search
from osdp.description.model_description import ModelDescription, Operator
from osdp.hardware.hardware import Hardware
from osdp.plan.choice import Choice

BUCKET_BYTES = 4 * 2**20  # of NO_SHARD gradients that are all-reduced together
SMALL_BYTES = 256 * 2**10  # a smaller gather is mostly latency, on any machine
MOST_SMALL_BYTES = 32 * 2**20
MERGED_BYTES = 2**20  # merged units are at most this large, or as large as the model's largest operator


def small_unit_bytes(hardware: Hardware, ranks: int, hosts: int = 1) -> int:
    """The size below which a gather is mostly latency on this machine: a ring step's transfer, S/N beta,
    takes less than alpha.

    Near 8 MiB over NVLink; 256 KiB at least, 32 MiB at most.
    """
    alpha, beta = hardware.all_gather.alpha_s, hardware.all_gather.beta_s_per_byte
    if hosts > 1 and (between := hardware.between_hosts) is not None:
        alpha, beta = max(alpha, between.alpha_s), max(beta, between.beta_s_per_byte)
    knee = ranks * alpha / beta if beta > 0 else float("inf")
    return int(min(max(SMALL_BYTES, knee), MOST_SMALL_BYTES))


def group_units(
    description: ModelDescription,
    choices: Mapping[str, Choice],
    small: int = SMALL_BYTES,
    most: int | None = None,
    sizes: Mapping[str, int] | None = None,
) -> tuple[tuple[str, ...], ...]:
    """The units of a plan: every operator that has parameters once, in the order of each unit's first
    operator.

    csrc/search/simulate/unit_grouping.hpp states the rule: neighbours of the same mode, dtype and block are
    merged if one of them is below `small` bytes (see `small_unit_bytes`) and they have at most `most` bytes
    together: by default 1 MiB or the largest operator, which bounds the transient memory anyway. `sizes`:
    gathered bytes of each operator; by default its parameters'.
    """
    operators = description.operators
    if most is None:
        most = max([MERGED_BYTES, *(o.parameter_bytes for o in operators)])
    shardings = [
        _search.Choice(choices[o.name].mode, choices[o.name].granularity)
        if o.parameters
        else _search.Choice()
        for o in operators
    ]
    units = _search.group_units(places_of(description, sizes), shardings, BUCKET_BYTES, small, most)
    return tuple(tuple(operators[i].name for i in unit) for unit in units)


def places_of(
    description: ModelDescription,
    sizes: Mapping[str, int] | None = None,
    calls: Mapping[str, tuple[list[tuple[int, int]], int]] | None = None,
) -> list[_search.Place]:
    """The properties of each operator that determine its unit. `calls`: when it is gathered
    (`osdp.planning.core_inputs`)."""
    codes: dict[object, int] = {}

    def code(what: object) -> int:
        return codes.setdefault(what, len(codes))

    places = []
    for o in description.operators:
        if not o.parameters:
            places.append(_search.Place())
            continue
        dtypes = operator_dtypes(o)
        spans, repeats = calls[o.name] if calls is not None else ([], 1)
        places.append(
            _search.Place(
                bytes=o.parameter_bytes,
                gathered_bytes=o.parameter_bytes if sizes is None else sizes[o.name],
                dtype=code(dtypes),
                mixed=len(dtypes) > 1,
                block=code(o.block),
                gathered_at=code(o.gather_at),
                modules=len(o.gather_at),
                traced=o.traced,
                calls=spans,
                repeats=repeats,
            )
        )
    return places


def operator_dtypes(operator: Operator) -> tuple[str, ...]:
    """The distinct dtypes of an operator's parameters, sorted."""
    return tuple(sorted({p.dtype for p in operator.parameters}))
