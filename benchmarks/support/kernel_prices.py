"""Kernels that a GPU was measured with (benchmarks/kernels.py) beside their price on a shipped machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from rich.console import Console
from rich.table import Table

import osdp
from osdp.description.model_description import Kernel
from osdp.hardware.hardware import Hardware
from osdp.planning.kernel_times import kernels_s, operator_s
from support import mpt

VOCABULARY = 50368
TWO_KERNELS = "layer norm's backward"


def priced(row: Mapping[str, Any], hardware: Hardware) -> Iterator[tuple[str, float, float]]:
    """What it is, seconds that the machine's roofline says, and seconds measured."""
    rates = hardware.kernel_rates
    assert rates is not None
    rate = hardware.flops_per_s_by_dtype["bfloat16"]
    if row["kind"] == "product":
        shape = (row["tokens"], row["inputs"], row["outputs"])
        moved = 2 * (shape[0] * shape[1] + shape[1] * shape[2] + shape[0] * shape[2])
        kernel = Kernel("product", 1, 0, 2 * shape[0] * shape[1] * shape[2], 0, moved, min(shape), 0)
        thin = "thin" if min(shape) < 512 else "width " + str(min(row["inputs"], row["outputs"]))
        yield f"products, {thin}", kernels_s([kernel], rates, rate, 1), row["seconds"]
    elif row["kind"] == "attention":
        flops = round(row["flops_per_s"] * row["seconds"])
        # Queries, keys, values and outputs in 16 bits; backward reads and writes their gradients, too.
        tensors = 4 if row["of"] == "forward" else 8
        moved = tensors * 2 * row["batch"] * row["heads"] * row["length"] * row["inner"]
        kernel = Kernel("attention", 1, 0, flops, 0, moved, 0, 0)
        yield (
            f"attention, {row['of']}, heads of {row['inner']}",
            kernels_s([kernel], rates, rate, 1),
            row["seconds"],
        )
    elif row["kind"] == "mover":
        count = 2 if row["of"] == TWO_KERNELS else 1
        moved = round(row["bytes_per_s"] * row["seconds"]) // count
        yield (
            row["of"],
            kernels_s([Kernel("other", count, 0, 0, 0, moved, 0, 0)], rates, rate, 1),
            row["seconds"],
        )
    elif row["kind"] == "decoder":
        model, sample = mpt.make(row["layers"], row["width"], row["heads"], VOCABULARY, row["length"])
        description = osdp.describe(model, *sample, precision="bf16")
        times = [operator_s(o, description, hardware, rate, row["batch"]) for o in description.operators]
        name = f"decoder, {row['layers']} x {row['width']}, {row['batch']} x {row['length']}, "
        for at, half in enumerate(("forward", "backward")):
            yield name + half, sum(t[at] for t in times if t is not None), row[f"{half}_s"]


def compare(measured: Mapping[str, Any], machine: str) -> dict[str, float]:
    """Prints predicted over measured by kind of kernel; returns the medians."""
    hardware = osdp.Hardware.load(machine)
    found: dict[str, list[tuple[float, float]]] = {}
    for row in measured["rows"]:
        for what, predicted_s, measured_s in priced(row, hardware):
            found.setdefault(what, []).append((predicted_s, measured_s))
    table = Table(
        f"{measured['gpu']} ({measured['date']})",
        "rows",
        "measured",
        "predicted over measured: median",
        "range",
    )
    for what, pairs in found.items():
        ratios = sorted(p / m for p, m in pairs)
        seconds = f"{1e3 * pairs[0][1]:.2f} ms" if len(pairs) == 1 else ""
        table.add_row(
            what, str(len(pairs)), seconds, f"{median(ratios):.2f}", f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        )
    console = Console(width=120)
    console.print(table)
    decoders: Sequence[float] = [
        p / m for w, pairs in found.items() if w.startswith("decoder") for p, m in pairs
    ]
    console.print(f"decoders: mean error {fmean(abs(r - 1) for r in decoders):.1%}")
    return {what: median(p / m for p, m in pairs) for what, pairs in found.items()}
