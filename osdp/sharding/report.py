"""report: predicted and measured figures of a plan."""

from __future__ import annotations

import statistics
from collections.abc import Collection

from torch import nn

from osdp import _C
from osdp.errors import ShardingError
from osdp.hardware.device_statistics import DeviceStatistics
from osdp.plan.plan import Plan
from osdp.sharding.drift import drift_of, step_now_s
from osdp.sharding.report_value import Report
from osdp.sharding.sharded_model import runtime_of
from osdp.show.plan_figures import device_terms

# Terms of osdp.planning.device_memory that the caching allocator does not count, and those that it does not
# count as allocated.
_NOT_RESERVED = ("context", "communicators")
_NOT_ALLOCATED = (*_NOT_RESERVED, "open blocks", "unused")
WARM_UP = 2  # steps not counted: the first creates optimizer state, the second still allocates


def report(model: nn.Module, *, bare_step_s: float | None = None, machine: bool = True) -> Report:
    """Predicted and measured step time and memory of this rank, after some training steps of a sharded model.

    Step time is measured from one training forward to the next (data loading and the optimizer included): the
    median without the first two. Peak memory is that of all tensors minus those live when the model was
    sharded, plus the model's. On an accelerator it is the caching allocator's peak of allocated memory,
    compared with that part of the prediction (without context, communicators and unused memory), and, where
    the device reports it, the reserved memory.

    With `machine`, and a plan whose hardware `osdp.profile` measured, the two fixed jobs of the profile are timed
    again (a third of a second), and if the plan's step would now take more than 15% longer or shorter, the report says
    so and predicts for that. The profile ran on all ranks at once, so call `report` on all of them. With `bare_step_s`
    (from `osdp.bare_step_s` before the model was sharded, with plan.batch_size samples) computation is compared using
    the model itself instead of the two jobs. A machine that was not measured (a name, or the default) has no error of
    its time.

    Raises ShardingError if `model` is not sharded.

    >>> print(osdp.report(model))
    """
    sharded = runtime_of(model)
    times = sharded.runtime.step_seconds[WARM_UP:]
    predicted = sharded.plan.predicted
    peak = _peak(model)  # before measurements allocate memory
    reserved = DeviceStatistics(sharded.device).peak_reserved()
    drift = drift_of(sharded.plan, sharded.device, bare_step_s) if machine else None
    return Report(
        predicted_step_time_s=predicted.step_time_s if predicted else None,
        measured_step_time_s=statistics.median(times) if times else None,
        predicted_peak_memory_bytes=predicted_allocated_bytes(sharded.plan),
        measured_peak_memory_bytes=peak,
        steps=len(sharded.runtime.step_seconds),
        predicted_reserved_bytes=predicted_reserved_bytes(sharded.plan),
        measured_reserved_bytes=reserved,
        drift=drift,
        predicted_step_time_now_s=step_now_s(sharded.plan, drift) if drift is not None else None,
        step_times_s=tuple(sharded.runtime.step_seconds),
        assumed_machine=_assumed(sharded.plan),
    )


def _assumed(plan: Plan) -> str | None:
    hardware = plan.hardware
    return hardware.name if hardware is not None and hardware.measured is None else None


def predicted_allocated_bytes(plan: Plan) -> int | None:
    """The part of the predicted peak that an accelerator's allocator counts as allocated."""
    return _predicted_without(plan, _NOT_ALLOCATED)


def predicted_reserved_bytes(plan: Plan) -> int | None:
    """The part of the predicted peak that the allocator reserves."""
    return _predicted_without(plan, _NOT_RESERVED)


def _predicted_without(plan: Plan, terms: Collection[str]) -> int | None:
    """The predicted peak without these terms of the device's memory."""
    if plan.predicted is None:
        return None
    return plan.predicted.peak_memory_bytes - sum(t.bytes for t in device_terms(plan) if t.name in terms)


def _peak(model: nn.Module) -> int:
    sharded = runtime_of(model)
    device = sharded.device
    if device.type == "cpu":
        return _C.memory_peak_bytes() - sharded.resting_bytes + sharded.local_bytes
    peak = DeviceStatistics(device).peak_allocated()
    if peak is None:
        raise ShardingError(f"no memory statistics for device {device}")
    return peak
