"""What a found plan costs, operator by operator, and why each choice was made, in words for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from osdp.base.byte_sizes import format_bytes
from osdp.description.model_description import ModelDescription, Operator
from osdp.hardware.hardware import Hardware
from osdp.plan.choice import MODES, Choice
from osdp.plan.prediction import OperatorPrediction, Prediction
from osdp.planning.core_inputs import SPLIT_CODES, compute_s, computing_dtypes

PS = 1e-12


def choice_of(candidate: Mapping[str, Any]) -> Choice:
    """The Choice that a candidate of the core (csrc/search/problem/cost.hpp: Candidate) stands for."""
    mode, g, k = MODES[candidate["mode"]], candidate["granularity"], candidate["sharded_slices"]
    if g == 1:
        return Choice(mode)
    return Choice(mode, g, None if k == g else k, SPLIT_CODES[candidate["split"]])


def predict(
    description: ModelDescription,
    hardware: Hardware,
    found: Mapping[str, Any],
    candidates: Sequence[Sequence[Mapping[str, Any]]],
    *,
    played: Mapping[str, Any] | None,
    world_size: int,
    recompute: Mapping[str, str],
    price_ps_per_byte: float,
    precision: str,
) -> Prediction:
    """The prediction of what `_search.schedule` found. `candidates`: by operator, empty without parameters; `played`:
    its step, played (None: times are the objective's, one after the other).
    """
    batch, times = found["batch_size"], found["accumulation"]
    operators = {}
    communication = compute = optimizer = 0.0
    reasons: dict[tuple[int, int, int], str] = {}
    dtypes = computing_dtypes(description, precision)
    for o, list_, choice in zip(description.operators, candidates, found["choices"], strict=True):
        both, fixed, forward = compute_s(o, hardware, dtypes[o.name])
        again = o.block is not None and o.block in recompute
        compute_time = times * (batch * (both + (forward if again else 0.0)) + fixed)
        compute += compute_time
        saved = 0 if again else batch * o.saved_bytes_per_sample + o.saved_bytes_fixed
        if choice < 0:
            reason = "no parameters: nothing to shard"
            operators[o.name] = OperatorPrediction(0, saved, 0, 0.0, compute_time, reason)
            continue
        c = list_[choice]
        communication += c["communication_ps"] * times * PS
        optimizer += c["optimizer_ps"] * PS
        key = (id(list_), choice, o.parameter_bytes)
        if key not in reasons:
            reasons[key] = reason_for(o, list_, c, times=times, price_ps_per_byte=price_ps_per_byte)
        operators[o.name] = OperatorPrediction(
            state_bytes=c["state_bytes"],
            saved_bytes=saved,
            transient_bytes=c["transient_bytes"],
            communication_s=c["communication_ps"] * times * PS,
            compute_s=compute_time,
            reason=reasons[key],
        )
    step = found["step_ps"] * PS
    if played is not None:
        step, both = played["step_ps"] * PS, played["both_ps"] * PS
        compute = played["only_computing_ps"] * PS + both
        communication = played["only_communicating_ps"] * PS + both
        optimizer = played["optimizer_ps"] * PS
    return Prediction(
        step_time_s=step,
        throughput=world_size * batch * times / step if step > 0 else 1e300,
        peak_memory_bytes=found["peak_bytes"],
        communication_s=communication,
        compute_s=compute,
        optimizer_s=optimizer,
        operators=operators,
    )


def reason_for(
    operator: Operator,
    candidates: Sequence[Mapping[str, Any]],
    chosen: Mapping[str, Any],
    *,
    times: int = 1,
    price_ps_per_byte: float = 0.0,
) -> str:
    """One line that says why `chosen` and not the most obvious alternative.

    >>> reason_for(...)
    'kept whole: sharding it would save 1.20 MiB and cost 0.80 ms a step'
    """

    def step_ps(c: Mapping[str, Any]) -> int:
        return int(c["communication_ps"] * times + c["optimizer_ps"])

    def resident(c: Mapping[str, Any]) -> int:
        return int(c["state_bytes"] + c["gathered_bytes"])

    def versus(other: Mapping[str, Any]) -> tuple[str, float]:
        """What `chosen` saves in memory and costs in milliseconds against `other`."""
        saves = resident(other) - resident(chosen)
        return format_bytes(abs(saves)), (step_ps(chosen) - step_ps(other)) * 1e-9

    mode = MODES[chosen["mode"]]
    whole = next((c for c in candidates if MODES[c["mode"]] == "NO_SHARD"), None)
    if mode == "NO_SHARD":
        smaller = [c for c in candidates if resident(c) < resident(chosen)]
        if len(candidates) == 1 or not smaller:
            size = format_bytes(operator.parameter_bytes)
            return (
                f"kept whole ({size}): this plan keeps no room to gather it in, or no other mode is allowed"
            )
        other = min(smaller, key=lambda c: (step_ps(c), resident(c)))
        saves, costs = versus(other)
        verb = "sharding it" if other["granularity"] == 1 else "sharding a slice of it"
        if (
            costs > 0
        ):  # also faster, but for the room to gather it in, which the whole plan would have to keep
            buffer = format_bytes(other["transient_bytes"])
            return (
                f"kept whole: {verb} would save {saves} and {_ms(costs)} a step, but buffers of {buffer} "
                "to gather it in, which cost more elsewhere"
            )
        return f"kept whole: {verb} would save {saves} and cost {_ms(-costs)} a step"
    if whole is None:
        return "sharded: keeping it whole is not allowed"
    saves, costs = versus(whole)
    cost = (
        f"costs {_ms(costs)} a step"
        if costs >= 0
        else f"is {_ms(-costs)} a step faster (each rank updates its part only)"
    )
    if mode == "SHARD_GRAD_OP":
        full = next(
            (c for c in candidates if MODES[c["mode"]] == "FULL_SHARD" and c["granularity"] == 1), None
        )
        tail = ""
        if full is not None:
            more, extra = versus(full)
            tail = f"; sharding the parameters too would save {more} more and cost {_ms(-extra)}"
        return f"gradients and optimizer state sharded: saves {saves} and {cost}{tail}"
    g, k = chosen["granularity"], chosen["sharded_slices"]
    what = "sharded inside each host" if mode == "HYBRID_SHARD" else "sharded"
    what = what if g == 1 else f"{k} of {g} slices sharded"
    worth = (
        f"; here {format_bytes(2**20)} is worth {_ms(price_ps_per_byte * 2**20 * 1e-9)}"
        if price_ps_per_byte
        else ""
    )
    room = f", at most {format_bytes(chosen['transient_bytes'])} of it is whole at once" if g > 1 else ""
    return f"{what}: saves {saves} and {cost}{room}{worth}"


def _ms(milliseconds: float) -> str:
    if abs(milliseconds) < 0.01:
        return f"{milliseconds * 1000:.2g} us"
    return f"{milliseconds:.2f} ms"
