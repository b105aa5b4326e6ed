"""What a step would be under other choices: simulated as the plan itself was, so that no figure contradicts it."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from osdp.base.byte_sizes import format_bytes
from osdp.base.numbers import format_rate
from osdp.plan.choice import Choice
from osdp.plan.plan import Plan
from osdp.plan.timeline import Timeline
from osdp.plan.whole_operators import whole_operators

_THE_SAME = 5e-5  # of a step: what would be printed as 0.00%


def alternatives(plan: Plan) -> Alternatives | None:
    """None where steps cannot be simulated: the paper's cost model, and plans that name no machine or number of ranks."""
    known = plan.hardware is not None and plan.world_size is not None
    return Alternatives(plan) if known and plan.cost == "osdp" else None


class Alternatives:
    """The plan's step, and those of plans that differ from it in what one line of an explanation is about."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.modes = plan.searched.modes if plan.searched is not None else ("NO_SHARD", "FULL_SHARD")
        self.whole = whole_operators(plan.description, plan.searched.whole if plan.searched else ())
        self.shown: list[tuple[int, float]] = []  # of each step that a line gave: peak, time

    @functools.cached_property
    def step(self) -> Timeline:
        return self.plan.simulate()

    def of_operators(self, names: Sequence[str]) -> str:
        """The step if all of these had another mode, for each that was allowed."""
        if set(names) <= self.whole:
            return "whole, as was requested"
        own = self.plan.choices[names[0]]
        found = []
        for mode in self.modes:
            if mode != own.mode or own.granularity > 1:
                other = self.plan.replace({name: Choice(mode) for name in names})
                pieces = " in one piece" if mode == own.mode else ""
                found.append(f"{mode}{pieces}: {self._against(other)}")
        return "; ".join(found) or "no other mode was allowed"

    def without_recomputation(self, blocks: Sequence[str]) -> str:
        return f"kept: {self._against(self.plan.replace(recompute=dict.fromkeys(blocks)))}"

    def of_one_mode(self) -> Iterator[str]:
        """A line for each mode that every operator could have, with the plan's recomputation."""
        for mode in self.modes:
            choices = {name: Choice("NO_SHARD" if name in self.whole else mode) for name in self.plan.choices}
            other = self.plan.replace(choices)
            if other is self.plan:
                yield f"all {mode}: this plan"
                continue
            step = other.simulate()
            self.shown.append((_peak(step), step.step_time_s))
            yield (
                f"all {mode}: {self._throughput(step)} samples/s against {self._throughput(self.step)}, "
                f"{_memory(step, self.plan.memory_limit_bytes)}"
            )

    def fastest(self, limit: int) -> float:
        """Samples per second of the plan, or of a line's so far that fits into `limit` bytes and is faster."""
        times = [seconds for peak, seconds in self.shown if peak <= limit]
        return self._samples / min([self.step.step_time_s, *times])

    @property
    def _samples(self) -> int:
        return self.plan.batch_size * self.plan.accumulation * (self.plan.world_size or 1)

    def _throughput(self, step: Timeline) -> str:
        return format_rate(self._samples / step.step_time_s)

    def _against(self, other: Plan) -> str:
        """ "step +3.2%, peak -54.4 MiB"."""
        step = other.simulate()
        self.shown.append((_peak(step), step.step_time_s))
        change = step.step_time_s / self.step.step_time_s - 1
        time = f"step {change:+.2%}" if abs(change) >= _THE_SAME else "step as long"
        limit = self.plan.memory_limit_bytes
        if limit is not None and _peak(step) > limit:
            return f"{time}, but {_memory(step, limit)}"
        more = _peak(step) - _peak(self.step)
        sign = "+" if more > 0 else "-"
        peak = f"peak {sign}{format_bytes(abs(more))}" if more else "the same peak"
        tried = " (the search ended before it tried this)" if change <= -_THE_SAME else ""
        return f"{time}, {peak}{tried}"


def _peak(step: Timeline) -> int:
    return step.largest_peak_bytes or step.peak_memory_bytes


def _memory(step: Timeline, limit: int | None) -> str:
    size = format_bytes(_peak(step))
    if limit is None or _peak(step) <= limit:
        return f"peak {size}"
    return f"does not fit: {size} of {format_bytes(limit)}"
