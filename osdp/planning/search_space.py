"""The search space: modes, numbers of slices, recomputations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from osdp import _search
from osdp.errors import InvalidProblemError
from osdp.hardware.hardware import Hardware
from osdp.plan.choice import MODES, RECOMPUTE
from osdp.planning.arguments import integer

GRANULARITIES = (2, 4, 8, 16)
PREFETCHES = (1, 2, 4, 8)
MOST_PREFETCH = 64


@dataclass(frozen=True)
class Space:
    """The search space."""

    modes: tuple[str, ...]
    granularities: tuple[int, ...]
    checkpoint: tuple[str, ...]  # of _search.RECOMPUTES


def check_host_memory(hardware: Hardware, modes: Iterable[str]) -> None:
    """Raise InvalidProblemError if one of the modes needs figures of the host's memory that `hardware` lacks."""
    offloaded = sorted({mode for mode in modes if _search.traits(mode).on_host})
    if offloaded and hardware.host_memory is None:
        raise InvalidProblemError(
            f"{offloaded[0]} cannot be priced on {hardware.name!r}: its host_memory is null (on a CPU, or not measured). "
            "Measure it with osdp.profile on an accelerator, or leave the mode out"
        )


def prefetch_asked(prefetch: int | str) -> int | None:
    """None: one of PREFETCHES. Raises InvalidProblemError."""
    if prefetch == "auto":
        return None
    if isinstance(prefetch, str) or not 0 <= integer(prefetch, "prefetch") <= MOST_PREFETCH:
        raise InvalidProblemError(
            f"prefetch must be 'auto' or a number of units between 0 and {MOST_PREFETCH}, got {prefetch!r}"
        )
    return prefetch


def _is_tried(mode: _search.ModeTraits, hosts: int) -> bool:
    """By modes="auto": not FULL_SHARD_HIERARCHICAL, beside which FULL_SHARD_HPZ is faster for little memory."""
    if mode.on_host or (mode.by_hosts and not mode.second):
        return False
    return hosts > 1 or not mode.reduced_between


def choose_space(
    modes: str | Sequence[str],
    granularity: str | int | Sequence[int],
    checkpoint: str | bool | Sequence[str],
    cost: str,
    hosts: int = 1,
) -> Space:
    """The search space given by the arguments of `search`. Raises InvalidProblemError naming the argument."""
    chosen: tuple[str, ...]
    if modes == "auto":
        chosen = ("NO_SHARD", "FULL_SHARD")
        if cost == "osdp":
            chosen = tuple(m for m in MODES if _is_tried(_search.traits(m), hosts))
    else:
        chosen = (modes,) if isinstance(modes, str) else tuple(modes)
        for mode in chosen:
            if mode not in MODES:
                raise InvalidProblemError(f"modes: {mode!r} is not one of {', '.join(MODES)}")
            if chosen.count(mode) > 1:
                raise InvalidProblemError(f"modes: {mode!r} appears twice")
        if not chosen:
            raise InvalidProblemError("modes is empty: at least one mode must be allowed")
        for mode in chosen:
            traits = _search.traits(mode)
            if traits.reduced_between and hosts == 1:
                raise InvalidProblemError(f"modes: {mode} needs several hosts: set hosts=")
            if traits.on_host and cost == "paper":
                raise InvalidProblemError(f"cost='paper' knows no host memory: leave {mode} out of modes")
    if granularity == "auto":
        slices: tuple[int, ...] = GRANULARITIES
    elif isinstance(granularity, str):
        raise InvalidProblemError(
            f"granularity must be 'auto', a number or a tuple of numbers, got {granularity!r}"
        )
    else:
        slices = (granularity,) if isinstance(granularity, int) else tuple(granularity)
        for g in slices:
            if isinstance(g, bool) or not isinstance(g, int) or not 1 <= g <= 4096:
                raise InvalidProblemError(
                    f"granularity: the number of slices must be between 1 and 4096, got {g!r}"
                )
    ways: dict[object, tuple[str, ...]] = {
        "auto": _search.RECOMPUTES,
        False: ("none",),
        True: RECOMPUTE,
        **{way: (way,) for way in _search.RECOMPUTES},
    }
    asked = checkpoint if isinstance(checkpoint, (str, bool)) else tuple(checkpoint)
    if not isinstance(asked, tuple) and asked not in ways:
        raise InvalidProblemError(
            "checkpoint must be 'auto', True, False, 'none', 'hold', 'regather' or a tuple of these "
            f"names, got {checkpoint!r}"
        )
    recompute = asked if isinstance(asked, tuple) else ways[asked]
    if not recompute or any(r not in _search.RECOMPUTES for r in recompute):
        raise InvalidProblemError(
            f"checkpoint: {asked!r} must contain only 'none', 'hold' and 'regather', and at least one of them"
        )
    if len(set(recompute)) < len(recompute):
        raise InvalidProblemError(f"checkpoint: {asked!r} contains a name twice")
    if cost == "paper":
        if asked != "auto" and recompute != ("none",):
            raise InvalidProblemError(
                "cost='paper' does not model recomputation: use checkpoint=False or cost='osdp'"
            )
        recompute = ("none",)
    return Space(chosen, tuple(sorted({g for g in slices if g > 1})), recompute)
