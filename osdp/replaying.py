"""Which of the best plans of a search is the fastest when its step is played event by event."""

from __future__ import annotations

import time
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osdp.assembling import Assembly


def best_by_replay(assembly: Assembly, found: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
    """`found`, or the one of its runners-up whose played step takes the least time per sample.

    Looked at are those whose objective, per sample, is worse by at most `searched.replay` than the best; of equally
    fast ones the one with the better objective is taken. After `seconds` no further one is looked at. With the
    paper's cost model nothing is played: it has no overlap.
    """
    # Note [What a replay may decide]
    # The objective is additive so that its optimum can be proven; the step's critical path is not additive. Plans
    # that the objective holds to be nearly equal may differ on the critical path, and there the replay is the better
    # judge. It never goes farther from the proven optimum than the tolerance.
    if assembly.cost != "osdp" or not found["runners_up"]:
        return found
    limit = _per_sample(found, found["step_ps"]) * Fraction(1 + assembly.searched.replay)
    near = [found]
    for other in found["runners_up"]:
        if _per_sample(other, other["step_ps"]) <= limit:
            near.append({**found, **other, "optimal": False, "proven": found["optimal"]})
    if len(near) == 1:
        return found
    near[1:] = sorted(near[1:], key=lambda plan: _per_sample(plan, plan["step_ps"]))
    end = time.monotonic() + seconds
    best, least = found, _played(assembly, found)
    for plan in near[1:]:
        if time.monotonic() >= end:
            break
        if (played := _played(assembly, plan)) < least:
            best, least = plan, played
    return best


def _played(assembly: Assembly, plan: Mapping[str, Any]) -> Fraction:
    return _per_sample(plan, assembly.played(plan)["step_ps"])


def _per_sample(plan: Mapping[str, Any], step_ps: int) -> Fraction:
    return Fraction(step_ps, plan["batch_size"] * plan["accumulation"])
