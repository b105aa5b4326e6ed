"""Converts readable byte sizes such as "8GiB" to integers and back."""

from __future__ import annotations

import math
import re

from osdp.errors import InvalidProblemError

_UNITS = {"b": 1}
for _power, _letter in enumerate("kmgtp", start=1):
    _UNITS[f"{_letter}b"] = 1000**_power
    _UNITS[f"{_letter}ib"] = 1024**_power

_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*", re.ASCII)
MOST_BYTES = 2**58  # four times that, where limits above a plan's are tried, is below the planner's own 2^61


def parse_bytes(value: int | float | str) -> int:
    """`value` in bytes, rounded down: "8GiB", "16 GB", "1.5 MiB", 8e9 or an int (bytes).

    KB, MB, GB, TB, PB are powers of 1000; KiB, MiB, GiB, TiB, PiB powers of 1024; case does not matter. A
    string without a unit is refused, since "8" could mean 8 bytes or 8 GiB. Raises InvalidProblemError.

    >>> parse_bytes("8GiB")
    8589934592
    """
    if isinstance(value, str):
        match = _SIZE.fullmatch(value)
        unit = _UNITS.get(match[2].lower()) if match else None
        if match is None or unit is None:
            raise InvalidProblemError(
                f"{value!r} is not a size: write a number and a unit, such as '8GiB', '16 GB' or '512MiB'"
            )
        whole, _, fraction = match[1].partition(".")
        # Integer arithmetic: a float has 53 bits, and a limit must not be rounded up.
        size = int(whole + fraction) * unit // 10 ** len(fraction) if len(match[1]) <= 40 else MOST_BYTES + 1
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidProblemError(
            f"{value!r} is not a size: give bytes as a number, or a string such as '8GiB'"
        )
    elif not math.isfinite(value):
        raise InvalidProblemError(f"{value!r} is not a size: it must be finite")
    else:
        size = math.floor(value)
    if not 0 <= size <= MOST_BYTES:
        raise InvalidProblemError(
            f"{value!r} is not a size: it must be between 0 and 2**58 bytes ({format_bytes(MOST_BYTES)})"
        )
    return size


def format_bytes(size: int | float, *, up: bool = False) -> str:
    """`size` bytes in readable form, in units of 1024 with three digits: 8589934592 -> "8.00 GiB".

    `up`: rounded up, so that a limit that is typed from it is not below `size`.
    """
    amount, sign = abs(float(size)), "-" if size < 0 else ""
    if amount < 1024:
        return f"{sign}{amount:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        amount /= 1024
        if amount < 999.5 or unit == "PiB":
            digits = 2 if amount < 9.995 else 1 if amount < 99.95 else 0
            if up:
                amount = math.ceil(amount * 10**digits) / 10**digits
            return f"{sign}{amount:.{digits}f} {unit}"
    raise AssertionError("unreachable")


def format_limits(limit: int, least: int) -> tuple[str, str]:
    """A limit, and the smallest one that fits, which is above it: in bytes where they would look alike."""
    shown = format_bytes(limit), format_bytes(least, up=True)
    return shown if shown[0] != shown[1] else (f"{limit:,} bytes", f"{least:,} bytes")
