"""Fits latency and time per byte to measured times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import mul

from osdp.hardware.hardware import Collective


def fit(sizes: Sequence[float], times: Sequence[float]) -> Collective:
    """Fit nonnegative alpha and beta with `time = alpha + size * beta`.

    Weighted least squares with weights 1 / time: small sizes count enough to determine alpha, but the large
    ones, where a step spends its time, count more. (When collectives follow each other, a link takes
    max(alpha, size * beta) rather than the sum; weighting relative errors equally would make beta too small
    by a seventh.) If the optimum has a negative coefficient, that one is set to zero and the other is fitted
    again.
    """
    weights = [1 / max(t, 1e-9) for t in times]

    def mean(values: Iterable[float]) -> float:
        return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)

    x, y = mean(sizes), mean(times)
    spread = mean((s - x) ** 2 for s in sizes)
    beta = mean((s - x) * (t - y) for s, t in zip(sizes, times, strict=True)) / spread if spread else 0.0
    alpha = y - beta * x
    if alpha < 0:
        return Collective(0.0, mean(map(mul, sizes, times)) / mean(map(mul, sizes, sizes)))
    return Collective(alpha, beta) if beta >= 0 else Collective(y, 0.0)
