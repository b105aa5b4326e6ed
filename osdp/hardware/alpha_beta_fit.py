"""Fits latency and time per byte to measured times."""

from __future__ import annotations

from collections.abc import Sequence

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
    total = sum(weights)
    x = sum(w * s for w, s in zip(weights, sizes, strict=True)) / total
    y = sum(w * t for w, t in zip(weights, times, strict=True)) / total
    spread = sum(w * (s - x) ** 2 for w, s in zip(weights, sizes, strict=True))
    beta = (
        sum(w * (s - x) * (t - y) for w, s, t in zip(weights, sizes, times, strict=True)) / spread
        if spread
        else 0.0
    )
    alpha = y - beta * x
    if alpha < 0:
        squares = sum(w * s * s for w, s in zip(weights, sizes, strict=True))
        return Collective(
            0.0, sum(w * s * t for w, s, t in zip(weights, sizes, times, strict=True)) / squares
        )
    return Collective(alpha, beta) if beta >= 0 else Collective(y, 0.0)
