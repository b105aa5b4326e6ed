"""PipelineTimeline: a played step of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from osdp.base.printed import Printed


@dataclass(frozen=True)
class Pass:
    """One micro-batch's forward or backward through a stage."""

    stage: int
    micro_batch: int
    forward: bool
    begin_s: float
    end_s: float


@dataclass(frozen=True, repr=False)
class PipelineTimeline(Printed):
    """Passes in the order of their begins. `busy_s`: of each stage, in its passes and its optimizer's step."""

    step_time_s: float
    busy_s: tuple[float, ...]
    passes: tuple[Pass, ...]

    @property
    def idle_share(self) -> float:
        """Of all stages' time, waiting for another."""
        return 1 - sum(self.busy_s) / (len(self.busy_s) * self.step_time_s)

    def __rich__(self) -> str:
        return picture(self)


WIDTH = 96


def picture(timeline: PipelineTimeline) -> str:
    """A line for each stage: forwards `>`, backwards `<`, and `.` where it waits or has its optimizer's step."""
    lines = []
    for stage in range(len(timeline.busy_s)):
        line = ["."] * WIDTH
        for one in timeline.passes:
            if one.stage != stage:
                continue
            begin, end = (round(t / timeline.step_time_s * WIDTH) for t in (one.begin_s, one.end_s))
            line[begin:end] = (">" if one.forward else "<") * (end - begin)
        lines.append(f"stage {stage:>3} {''.join(line[:WIDTH])}")
    head = f"{timeline.step_time_s:.4g} s, {timeline.idle_share:.1%} of it idle; > forward, < backward"
    return "\n".join([head, *lines])
