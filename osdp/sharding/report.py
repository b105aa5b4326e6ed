"""report: what was predicted of a plan beside what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection
from dataclasses import dataclass

from torch import nn

from osdp import _C
from osdp.base.byte_sizes import format_bytes
from osdp.errors import ShardingError
from osdp.hardware.device_statistics import DeviceStatistics
from osdp.sharding.drift import Drift, drift_of, step_now_s
from osdp.sharding.sharded_model import Sharded, runtime_of
from osdp.show.plan_figures import device_terms

# Terms of osdp.planning.device_memory that the caching allocator knows nothing of, and those that it gives to no tensor.
_NOT_RESERVED = ("context", "communicators")
_NOT_ALLOCATED = (*_NOT_RESERVED, "open blocks", "unused")
WARM_UP = 2  # steps that are not counted: the first makes optimizer state, the second still finds its memory


@dataclass(frozen=True)
class Report:
    """Predicted (None for plans made by hand) and measured figures of this rank. Printable."""

    predicted_step_time_s: float | None
    measured_step_time_s: float | None  # median; None before four steps
    predicted_peak_memory_bytes: int | None
    measured_peak_memory_bytes: int
    steps: int
    # Of an accelerator whose allocator keeps memory: what of the predicted peak it would reserve (all but context and
    # communicators), and what it has reserved.
    predicted_reserved_bytes: int | None = None
    measured_reserved_bytes: int | None = None
    # What has become of the machine since it was profiled, and the step that is predicted for it as it is; None where
    # there is no profile of this device to compare with, or nobody asked.
    drift: Drift | None = None
    predicted_step_time_now_s: float | None = None

    def __str__(self) -> str:
        changed = self.drift is not None and self.drift.changed
        rows: list[tuple[str, Callable[[float], str], float | None, float | None]] = [
            ("step time", _milliseconds, self.predicted_step_time_s, self.measured_step_time_s),
            *(
                [("  as it is", _milliseconds, self.predicted_step_time_now_s, self.measured_step_time_s)]
                if changed
                else []
            ),
            ("peak memory", _bytes, self.predicted_peak_memory_bytes, self.measured_peak_memory_bytes),
        ]
        if self.measured_reserved_bytes is not None:
            rows.append(("reserved", _bytes, self.predicted_reserved_bytes, self.measured_reserved_bytes))
        lines = [f"{'':14}{'predicted':>12}{'measured':>12}{'error':>9}"]
        for name, show, predicted, measured in rows:
            error = f"{(predicted - measured) / measured:+.1%}" if predicted and measured else ""
            lines.append(
                f"{name:14}{show(predicted) if predicted else '-':>12}{show(measured) if measured else '-':>12}{error:>9}"
            )
        lines.append(f"({self.steps} steps)")
        if changed:
            lines.append(f"The machine has changed since it was profiled: {self.drift}.")
        return "\n".join(lines)


def report(model: nn.Module, *, bare_step_s: float | None = None, machine: bool = True) -> Report:
    """Predicted beside measured for a sharded model, after some training steps; of this rank.

    Step time is from one training forward to the next (data loading and the optimizer included), the median without the
    first two. Peak memory counts all tensors above what was live when the model was sharded, and the model. On an
    accelerator it is what its caching allocator has given out at most, with what that takes of the prediction (no context,
    no communicators, nothing unused), and beside it, where the device can tell, what the allocator has reserved.

    With `machine`, and a plan whose hardware `osdp.profile` measured, the two fixed jobs of the profile are timed again (a
    third of a second), and where the machine is faster or slower than then by more than 15%, the report says so and gives
    the prediction for the machine as it is. The profile had all ranks at it at once, so let all of them report. With
    `bare_step_s` (`osdp.bare_step_s`, measured before the model was sharded, with plan.batch_size samples) computation is
    compared on the model itself, not on the two jobs.

    >>> print(osdp.report(model))
    """
    sharded = runtime_of(model)
    times = sharded.runtime.step_seconds[WARM_UP:]
    predicted = sharded.plan.predicted
    peak = _peak(model)  # before anything is measured
    reserved = DeviceStatistics(sharded.device).peak_reserved()
    drift = drift_of(sharded.plan, sharded.device, bare_step_s) if machine else None
    return Report(
        predicted_step_time_s=predicted.step_time_s if predicted else None,
        measured_step_time_s=statistics.median(times) if times else None,
        predicted_peak_memory_bytes=_predicted_without(sharded, _NOT_ALLOCATED),
        measured_peak_memory_bytes=peak,
        steps=len(sharded.runtime.step_seconds),
        predicted_reserved_bytes=_predicted_without(sharded, _NOT_RESERVED),
        measured_reserved_bytes=reserved,
        drift=drift,
        predicted_step_time_now_s=step_now_s(sharded.plan, drift) if drift is not None else None,
    )


def _predicted_without(sharded: Sharded, terms: Collection[str]) -> int | None:
    """The predicted peak less these terms of the device's memory."""
    plan = sharded.plan
    if plan.predicted is None:
        return None
    return plan.predicted.peak_memory_bytes - sum(t.bytes for t in device_terms(plan) if t.name in terms)


def _bytes(size: float) -> str:
    return format_bytes(int(size))


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _peak(model: nn.Module) -> int:
    sharded = runtime_of(model)
    device = sharded.device
    if device.type == "cpu":
        return _C.memory_peak_bytes() - sharded.resting_bytes + sharded.local_bytes
    peak = DeviceStatistics(device).peak_allocated()
    if peak is None:
        raise ShardingError(f"no memory statistics for device {device}")
    return peak
