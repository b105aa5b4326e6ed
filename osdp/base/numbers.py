"""Numbers for people, and the divisors of batches."""

from __future__ import annotations

from itertools import pairwise
from math import isqrt


def format_count(count: int) -> str:
    """1234567 -> "1.23 M"."""
    for size, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 999.5 * size else f"{count / size:.0f} {unit}"
    return str(count)


def format_rate(samples_per_s: float) -> str:
    """12345.6 -> "12,346", 441.53 -> "441.5"."""
    return f"{samples_per_s:,.0f}" if samples_per_s >= 1000 else f"{samples_per_s:.4g}"


def format_seconds(seconds: float) -> str:
    """0.00123 -> "1.23 ms"."""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= 0.9995 * size:
            return (
                f"{seconds / size:.3g} {unit}" if seconds < 999.5 * size else f"{seconds / size:.0f} {unit}"
            )
    return f"{seconds * 1e9:.3g} ns" if seconds else "0 s"


def cells(parts: list[float], whole: float, width: int) -> list[int]:
    """How many of `width` cells each part of `whole` gets; rounded so that they never add up to more."""
    edges, total = [0], 0.0
    for part in parts:
        total += part
        edges.append(min(width, round(width * total / whole)) if whole > 0 else 0)
    return [b - a for a, b in pairwise(edges)]


def divisors(n: int) -> list[int]:
    """Of a positive number, in ascending order."""
    return sorted({d for k in range(1, isqrt(n) + 1) if n % k == 0 for d in (k, n // k)})
