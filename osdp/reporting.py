"""report: what was predicted of a plan beside what was measured."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import torch
from torch import nn

from osdp import _C
from osdp.errors import ShardingError
from osdp.sharding import runtime_of
from osdp.sizes import format_bytes

WARM_UP = 2  # steps that are not counted: the first makes optimizer state, the second still finds its memory


@dataclass(frozen=True)
class Report:
    """Predicted (None for plans made by hand) and measured figures of this rank. Printable."""

    predicted_step_time_s: float | None
    measured_step_time_s: float | None  # median; None before four steps
    predicted_peak_memory_bytes: int | None
    measured_peak_memory_bytes: int
    steps: int

    def __str__(self) -> str:
        rows = [
            ("step time", _milliseconds, self.predicted_step_time_s, self.measured_step_time_s),
            ("peak memory", format_bytes, self.predicted_peak_memory_bytes, self.measured_peak_memory_bytes),
        ]
        lines = [f"{'':14}{'predicted':>12}{'measured':>12}{'error':>9}"]
        for name, show, predicted, measured in rows:
            error = f"{(predicted - measured) / measured:+.1%}" if predicted and measured else ""
            lines.append(
                f"{name:14}{show(predicted) if predicted else '-':>12}{show(measured) if measured else '-':>12}{error:>9}"
            )
        lines.append(f"({self.steps} steps)")
        return "\n".join(lines)


def report(model: nn.Module) -> Report:
    """Predicted beside measured for a sharded model, after some training steps; of this rank.

    Step time is from one training forward to the next (data loading and the optimizer included), the median without the
    first two. Peak memory counts all tensors above what was live when the model was sharded, and the model; on an
    accelerator it is the caching allocator's peak.

    >>> print(osdp.report(model))
    """
    sharded = runtime_of(model)
    times = sharded.runtime.step_seconds[WARM_UP:]
    predicted = sharded.plan.predicted
    return Report(
        predicted_step_time_s=predicted.step_time_s if predicted else None,
        measured_step_time_s=statistics.median(times) if times else None,
        predicted_peak_memory_bytes=predicted.peak_memory_bytes if predicted else None,
        measured_peak_memory_bytes=_peak(model),
        steps=len(sharded.runtime.step_seconds),
    )


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _peak(model: nn.Module) -> int:
    sharded = runtime_of(model)
    device = sharded.device
    if device.type == "cpu":
        return _C.memory_peak_bytes() - sharded.resting_bytes + sharded.local_bytes
    if not torch.accelerator.is_available():
        raise ShardingError(f"no memory statistics for device {device}")
    return int(torch.accelerator.max_memory_allocated(device))
