"""Alternatives: the best with fewer means, under uniform plans: DP, FSDP, OSDP, TP, PP and 3D alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from osdp.base.byte_sizes import format_bytes
from osdp.plan.parallel_plan import Alternative
from osdp.planning.degrees.cuts import CutPipeline
from osdp.planning.degrees.layout import Degrees
from osdp.planning.degrees.pipelines import EVERY_MODE, EVERY_WAY, CandidatePipelines
from osdp.planning.degrees.stage_search import QUICK, Effort

# Note [Alone]
# DP and FSDP have neither tensor nor pipeline parallelism: one plan for all ranks, NO_SHARD or FULL_SHARD. OSDP is the
# planner's own, quickly searched for the micro-batch that is best with one mode, and for those that no single mode fits but
# several, or slices, may: the nearest to the limit, at most MOST_TIGHT. TP and PP are over all ranks: one replica. 3D is any
# tensor x pipeline with plain data parallelism (NO_SHARD) around it, so all of TP, PP and DP are among it. Each has its own
# best micro-batch, schedule, recomputation of all blocks of a stage or none, and cuts.
_ALONE: dict[str, Callable[[Degrees], bool]] = {
    "DP": lambda d: d.tensor == d.pipeline == 1,
    "FSDP": lambda d: d.tensor == d.pipeline == 1,
    "OSDP": lambda d: d.tensor == d.pipeline == 1,
    "TP": lambda d: d.pipeline == d.data == 1,
    "PP": lambda d: d.tensor == d.data == 1,
    "3D": lambda d: True,
}
ROUNDS, MOST_TIGHT = 4, 3


class Alternatives:
    """Of a search, whose candidates are `known`, in the order of their bounds. `asked`: for some degrees only."""

    def __init__(self, known: Sequence[CandidatePipelines], asked: bool) -> None:
        self.known, self.asked = known, asked
        self._pipelines: dict[str, tuple[CandidatePipelines, CutPipeline] | None] = {}

    def all(self) -> tuple[Alternative, ...]:
        return tuple(self.best(name) for name in _ALONE)

    def fastest(self) -> list[tuple[CandidatePipelines, CutPipeline, Effort]]:
        """Of each of them, with what its stages' plans are found by; without those of modes that were not asked for."""
        efforts = {
            name: dataclasses.replace(QUICK, modes=self._modes(name)) for name in _ALONE if name != "OSDP"
        }
        asked = {mode for p in self.known for mode in p.whole.searched.modes}
        names = [n for n in _ALONE if n not in efforts or asked.issuperset(efforts[n].modes)]
        found = [(self.pipeline(name), efforts.get(name, QUICK)) for name in names]
        return [(*f, effort) for f, effort in found if f is not None]

    def best(self, name: str) -> Alternative:
        found = self.pipeline(name)
        if found is None:
            return Alternative(
                name, *(None,) * 7, "degrees that were not asked for" if self.asked else "no such degrees"
            )
        pipelines, cut = found
        d = pipelines.candidate.degrees
        words = ", ".join(dict.fromkeys(s.what for s in cut.stages))
        return Alternative(
            name,
            d.tensor,
            d.pipeline,
            d.data,
            cut.schedule,
            pipelines.candidate.batch,
            cut.step_ps * 1e-12 if cut.fits else None,
            cut.peak_bytes,
            words if cut.fits else f"nothing fits: a rank would hold {format_bytes(cut.peak_bytes)}",
        )

    def pipeline(self, name: str) -> tuple[CandidatePipelines, CutPipeline] | None:
        """The fastest that fits; if none does, the one that holds least; None without such degrees."""
        if name not in self._pipelines:
            self._pipelines[name] = self._fastest(name)
        return self._pipelines[name]

    def _fastest(self, name: str) -> tuple[CandidatePipelines, CutPipeline] | None:
        own = [p for p in self.known if _ALONE[name](p.candidate.degrees)]
        found: list[tuple[CandidatePipelines, CutPipeline]] = []
        best: int | None = None
        for pipelines in own:
            if best is not None and pipelines.candidate.bound_s * 1e12 >= best:
                break
            found.append((pipelines, self._found(name, pipelines)))
            if found[-1][1].fits:
                best = min(best or found[-1][1].step_ps, found[-1][1].step_ps)
        if name == "OSDP":
            fitting = sorted((f for f in found if f[1].fits), key=lambda f: f[1].step_ps)
            tight = sorted((f for f in found if not f[1].fits), key=lambda f: f[1].peak_bytes)
            found += [(p, p.searched(cut.cuts, QUICK, 0)) for p, cut in fitting[:1]]
            # What does not fit is shown only where nothing does.
            effort = dataclasses.replace(QUICK, find_smallest=not fitting)
            found += [(p, p.searched(cut.cuts, effort, 0)) for p, cut in tight[:MOST_TIGHT]]
        return min(found, key=lambda f: f[1].rank, default=None)

    def _found(self, name: str, pipelines: CandidatePipelines) -> CutPipeline:
        if name == "OSDP":
            return pipelines.uniform(EVERY_MODE, EVERY_WAY, 0)
        return pipelines.uniform(self._modes(name), EVERY_WAY, ROUNDS)

    @staticmethod
    def _modes(name: str) -> tuple[str, ...]:
        return ("FULL_SHARD",) if name == "FSDP" else ("NO_SHARD",)
