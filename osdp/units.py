"""Which operators are gathered and reduced together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from osdp.description import ModelDescription, Operator
from osdp.hardware import Hardware

if TYPE_CHECKING:
    from osdp.choice import Choice

BUCKET_BYTES = 4 * 2**20  # of NO_SHARD gradients that are all-reduced together
SMALL_BYTES = 256 * 2**10  # a gather of less is mostly latency, on any machine
MOST_SMALL_BYTES = 32 * 2**20
MERGED_BYTES = 2**20  # a unit may grow to this, or to the model's largest operator


def small_unit_bytes(hardware: Hardware, ranks: int, hosts: int = 1) -> int:
    """A gather of less is mostly latency on this machine: a ring step's transfer, S/N beta, takes less than its alpha.

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

    NO_SHARD operators of one dtype fill buckets of at most 4 MiB; nothing gathers them, so what stands between them
    and which block they are in does not matter. Sharded ones join their neighbour (NO_SHARD operators in between do
    not part them) when mode, dtype and block are equal, one of the two is below `small` bytes (see
    `small_unit_bytes`) and together they have at most `most`: by default 1 MiB or the largest operator, which bounds
    the transient memory anyway. `sizes`: of each operator gathered; by default its parameters'. Untraced operators
    that are gathered at the same module are one unit, since all of them are gathered there. Split operators, those
    with several gathering modules and those of mixed dtypes are units of their own.
    """
    # Note [Order of units]
    # A unit's operators keep execution order, and units are ordered by their first operator, so that the
    # order of collectives that a plan implies is the same on every rank without anyone having to sort.
    units: list[list[str]] = []
    buckets: dict[str, tuple[list[str], int]] = {}  # dtype -> the open NO_SHARD bucket
    untraced: dict[tuple[object, ...], list[str]] = {}
    open_key: tuple[object, ...] | None = None  # of the last sharded unit, while it may still grow
    open_bytes = 0
    last_sharded: list[str] = []
    if most is None:
        most = max([MERGED_BYTES, *(o.parameter_bytes for o in description.operators)])

    def begin(name: str) -> list[str]:
        units.append([name])
        return units[-1]

    for operator in description.operators:
        if not operator.parameters:
            continue
        choice = choices[operator.name]
        size = operator.parameter_bytes
        dtypes = {p.dtype for p in operator.parameters}
        alone = choice.granularity > 1 or len(dtypes) > 1
        key = (choice.mode, *sorted(dtypes), operator.block)
        if choice.mode == "NO_SHARD":
            dtype = next(iter(dtypes))
            bucket, filled = buckets.get(dtype, ([], BUCKET_BYTES))
            if alone:
                begin(operator.name)
            elif bucket and filled + size <= BUCKET_BYTES:
                bucket.append(operator.name)
                buckets[dtype] = (bucket, filled + size)
            else:
                buckets[dtype] = (begin(operator.name), size)
        elif alone or len(operator.gather_at) > 1:
            begin(operator.name)
            open_key = None
        elif not operator.traced:
            place = (*key, operator.gather_at)
            if place in untraced:
                untraced[place].append(operator.name)
            else:
                untraced[place] = begin(operator.name)
            open_key = None
        else:
            gathered = size if sizes is None else sizes[operator.name]
            if key == open_key and min(open_bytes, gathered) < small and open_bytes + gathered <= most:
                last_sharded.append(operator.name)
                open_bytes += gathered
            else:
                last_sharded = begin(operator.name)
                open_key, open_bytes = key, gathered
    return tuple(tuple(unit) for unit in units)


def operator_dtypes(operator: Operator) -> tuple[str, ...]:
    """The distinct dtypes of an operator's parameters, sorted."""
    return tuple(sorted({p.dtype for p in operator.parameters}))
