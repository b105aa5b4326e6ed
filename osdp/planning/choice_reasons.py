"""The predicted costs of a plan by operator, and a readable reason for each choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from osdp import _search
from osdp.base.byte_sizes import format_bytes
from osdp.description.model_description import Operator
from osdp.plan.plan_fields import OperatorPrediction, Prediction
from osdp.planning.core_inputs import compute_s, computing_dtypes

if TYPE_CHECKING:
    from osdp.planning.search_problem import SearchProblem

PS = 1e-12
Candidate = _search.Candidate


@dataclass(frozen=True)
class Treated:
    """An operator with parameters: its candidates and the chosen one."""

    candidates: Sequence[Candidate]
    chosen: Candidate


def predict(
    problem: SearchProblem,
    answer: _search.Answer,
    treated: Sequence[Treated | None],
    *,
    simulated: bool,
    recompute: Mapping[str, str],
) -> Prediction:
    """The prediction for `answer`. `treated`: by operator, None for those without parameters; `simulated`:
    its step was; else the times are sums over operators, without overlap.
    """
    description, hardware = problem.description, problem.hardware
    batch, times = answer.plan.batch.size, answer.plan.batch.accumulation
    operators = {}
    communication = compute = optimizer = 0.0
    reasons: dict[tuple[int, int, int], str] = {}
    dtypes = computing_dtypes(description, problem.precision)
    for o, treatment in zip(description.operators, treated, strict=True):
        time = compute_s(o, hardware, dtypes[o.name], description, problem.kernels_batch())
        again = o.block is not None and o.block in recompute
        compute_time = times * (time.step(batch) + (time.forward(batch) if again else 0.0))
        compute += compute_time
        saved = 0 if again else batch * o.saved_bytes_per_sample + o.saved_bytes_fixed
        if treatment is None:
            reason = "no parameters: nothing to shard"
            operators[o.name] = OperatorPrediction(0, saved, 0, 0.0, compute_time, reason)
            continue
        c = treatment.chosen
        communication += c.communication_ps * times * PS
        optimizer += c.optimizer_ps * PS
        key = (id(treatment.candidates), id(c), o.parameter_bytes)
        if key not in reasons:
            reasons[key] = reason_for(o, treatment, times=times)
        operators[o.name] = OperatorPrediction(
            state_bytes=c.state_bytes,
            saved_bytes=saved,
            transient_bytes=c.transient_bytes,
            communication_s=c.communication_ps * times * PS,
            compute_s=compute_time,
            reason=reasons[key],
            host_bytes=c.host_bytes,
        )
    played = answer.played
    step = played.step_ps * PS
    if simulated:
        both = played.both_ps * PS
        compute = played.only_computing_ps * PS + both
        communication = played.only_communicating_ps * PS + both
        optimizer = played.optimizer_ps * PS
    return Prediction(
        step_time_s=step,
        throughput=problem.ranks * batch * times / step if step > 0 else 1e300,
        peak_memory_bytes=answer.peak_bytes,
        communication_s=communication,
        compute_s=compute,
        optimizer_s=optimizer,
        operators=operators,
    )


def reason_for(operator: Operator, treated: Treated, *, times: int = 1) -> str:
    """One line: what this candidate saves and costs compared with the most obvious alternative. Times are the operator's
    own, of which a step may hide a part behind computation; `Plan.explain` simulates steps instead.

    >>> reason_for(...)
    'kept whole: sharding it would save 1.20 MiB and cost 0.80 ms before overlap'
    """

    candidates, chosen = treated.candidates, treated.chosen

    def step_ps(c: Candidate) -> int:
        return c.communication_ps * times + c.optimizer_ps

    def resident(c: Candidate) -> int:
        return c.state_bytes + c.gathered_bytes

    def versus(other: Candidate) -> tuple[str, float]:
        """Memory that `chosen` saves and milliseconds that it costs compared to `other`."""
        saves = resident(other) - resident(chosen)
        return format_bytes(abs(saves)), (step_ps(chosen) - step_ps(other)) * 1e-9

    mode = chosen.choice.mode
    whole = next((c for c in candidates if c.choice.mode == "NO_SHARD"), None)
    if mode == "NO_SHARD":
        smaller = [c for c in candidates if resident(c) < resident(chosen)]
        if len(candidates) == 1 or not smaller:
            size = format_bytes(operator.parameter_bytes)
            return (
                f"kept whole ({size}): this plan keeps no room to gather it in, or no other mode is allowed"
            )
        other = min(smaller, key=lambda c: (step_ps(c), resident(c)))
        saves, costs = versus(other)
        verb = "sharding it" if other.choice.granularity == 1 else "sharding a slice of it"
        if costs > 0:  # also faster, but its transient would increase the reserve of the whole plan
            buffer = format_bytes(other.transient_bytes)
            return f"kept whole: {verb} would save {saves} and {_ms(costs)} before overlap, but needs buffers of {buffer}"
        return f"kept whole: {verb} would save {saves} and cost {_ms(-costs)} before overlap"
    if whole is None:
        return "sharded: keeping it whole is not allowed"
    saves, costs = versus(whole)
    cost = (
        f"costs {_ms(costs)} before overlap"
        if costs >= 0
        else f"is {_ms(-costs)} faster (each rank updates its part only)"
    )
    if mode == "SHARD_GRAD_OP":
        full = next(
            (c for c in candidates if c.choice.mode == "FULL_SHARD" and c.choice.granularity == 1), None
        )
        tail = ""
        if full is not None:
            more, extra = versus(full)
            tail = f"; sharding the parameters too would save {more} more and cost {_ms(-extra)}"
        return f"gradients and optimizer state sharded: saves {saves} and {cost}{tail}"
    g, k = chosen.choice.granularity, chosen.choice.sharded_slices
    traits = _search.traits(mode)
    what = "sharded inside each host" if traits.inside_hosts else "sharded"
    if traits.by_hosts:
        what += f", gathered between hosts {'once' if traits.second else 'each time'} and inside them"
    what += f", {format_bytes(chosen.host_bytes)} in host memory" if traits.on_host else ""
    what = what if g == 1 else f"{k} of {g} slices sharded"
    room = f", at most {format_bytes(chosen.transient_bytes)} of it is whole at once" if g > 1 else ""
    return f"{what}: saves {saves} and {cost}{room}"


def _ms(milliseconds: float) -> str:
    if abs(milliseconds) < 0.01:
        return f"{milliseconds * 1000:.2g} us"
    return f"{milliseconds:.2f} ms"
