"""Alternatives: the best with fewer means, under uniform plans: DP, FSDP, OSDP, TP, PP and 3D alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from osdp.base.byte_sizes import format_bytes
from osdp.plan.parallel_plan import Alternative
from osdp.planning.degrees.cuts import CutPipeline
from osdp.planning.degrees.layout import Degrees
from osdp.planning.degrees.pipelines import EVERY_MODE, EVERY_WAY, CandidatePipelines
from osdp.planning.degrees.stage_search import Effort

# Note [Alone]
# DP and FSDP have neither tensor nor pipeline parallelism: one plan for all ranks, NO_SHARD or FULL_SHARD. OSDP is the
# planner's own, quickly searched for the micro-batch that is best with one mode. TP and PP are over all ranks: one replica.
# 3D is any tensor x pipeline with plain data parallelism (NO_SHARD) around it, so all of TP, PP and DP are among it. Each
# has its own best micro-batch, recomputation of all blocks of a stage or none, and cuts.
_ALONE: dict[str, Callable[[Degrees], bool]] = {
    "DP": lambda d: d.tensor == d.pipeline == 1,
    "FSDP": lambda d: d.tensor == d.pipeline == 1,
    "OSDP": lambda d: d.tensor == d.pipeline == 1,
    "TP": lambda d: d.pipeline == d.data == 1,
    "PP": lambda d: d.tensor == d.data == 1,
    "3D": lambda d: True,
}
_MODES = {"FSDP": ("FULL_SHARD",)}
ROUNDS = 4
QUICK = Effort(gap=0.1, played_operators=4_000)


class Alternatives:
    """Of a search, whose candidates are `known`, in the order of their bounds. `asked`: for some degrees only."""

    def __init__(self, known: Sequence[CandidatePipelines], asked: bool) -> None:
        self.known, self.asked = known, asked

    def all(self) -> tuple[Alternative, ...]:
        return tuple(self.best(name) for name in _ALONE)

    def best(self, name: str) -> Alternative:
        own = [p for p in self.known if _ALONE[name](p.candidate.degrees)]
        if not own:
            return Alternative(
                name, *(None,) * 6, "its degrees were not asked for" if self.asked else "no such degrees"
            )
        best: tuple[CandidatePipelines, CutPipeline] | None = None
        least: tuple[CandidatePipelines, CutPipeline] | None = None
        for pipelines in own:
            if best is not None and pipelines.candidate.bound_s * 1e12 >= best[1].step_ps:
                break
            found = self._found(name, pipelines)
            if found.fits and (best is None or found.step_ps < best[1].step_ps):
                best = (pipelines, found)
            if least is None or found.peak_bytes < least[1].peak_bytes:
                least = (pipelines, found)
        if best is None:
            assert least is not None
            d = least[0].candidate.degrees
            why = f"nothing fits: a rank would hold {format_bytes(least[1].peak_bytes)}"
            return Alternative(
                name, d.tensor, d.pipeline, d.data, least[0].candidate.batch, None, least[1].peak_bytes, why
            )
        pipelines, cut = best
        if name == "OSDP":
            cut = pipelines.searched(cut.cuts, QUICK, 0)
        d = pipelines.candidate.degrees
        words = ", ".join(dict.fromkeys(s.what for s in cut.stages))
        return Alternative(
            name,
            d.tensor,
            d.pipeline,
            d.data,
            pipelines.candidate.batch,
            cut.step_ps * 1e-12,
            cut.peak_bytes,
            words,
        )

    def _found(self, name: str, pipelines: CandidatePipelines) -> CutPipeline:
        if name == "OSDP":
            return pipelines.uniform(EVERY_MODE, EVERY_WAY, 0)
        return pipelines.uniform(_MODES.get(name, ("NO_SHARD",)), EVERY_WAY, ROUNDS)
