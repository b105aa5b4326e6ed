"""A machine in a terminal: its rates, its links, its memory, and where the figures are from."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from osdp.base.byte_sizes import format_bytes
from osdp.base.numbers import format_seconds
from osdp.hardware.hardware import Collective, Hardware


def table(hardware: Hardware) -> RenderableType:
    """The machine's figures, and their source."""
    memory = f", {format_bytes(hardware.memory_bytes)} each" if hardware.memory_bytes is not None else ""
    ranks = f"{hardware.world_size} ranks" if hardware.world_size > 1 else "1 rank"
    found = Table.grid(padding=(0, 2, 0, 0))
    found.add_column(no_wrap=True)
    found.add_column(overflow="fold")
    for name, value in _rows(hardware):
        found.add_row(name, value)
    headline = Text(f"{hardware.label}: {ranks} on {hardware.device}{memory}", style="bold")
    return Group(headline, found)


def _rows(hardware: Hardware) -> list[tuple[str, str]]:
    rates = {"float32": hardware.flops_per_s, **hardware.flops_per_s_by_dtype}
    rows = [("matrix products", ", ".join(f"{dtype} {r / 1e12:.3g} TFLOP/s" for dtype, r in rates.items()))]
    if (kernels := hardware.kernel_rates) is not None:
        memory = f"{kernels.memory_bytes_per_s / 1e9:.4g} GB/s of memory"
        rows.append(
            (
                "other kernels",
                f"{memory}, {format_seconds(kernels.launch_s)} each; attention {kernels.attention_share:.0%} of products",
            )
        )
    for name in ("all_gather", "reduce_scatter", "all_reduce", "between_hosts"):
        if (link := getattr(hardware, name)) is not None:
            rows.append((f"{name.replace('_', '-')} ring step", _link(link)))
    if (inside := hardware.inside_hosts) is not None:
        rows.append(("all-gather inside a host", _link(inside.all_gather)))
    if hardware.protocols:
        algorithms: dict[str, list[str]] = {}
        for p in hardware.protocols:
            algorithms.setdefault(p.algorithm, []).append(p.protocol)
        ways = "; ".join(f"{name}: {', '.join(known)}" for name, known in algorithms.items())
        rows.append(("NCCL chooses from", f"{ways}, with latencies of their own"))
    if hardware.stolen_computation:
        rows.append(
            (
                "communication beside it",
                f"delays computation by {hardware.stolen_computation:.0%} of its time",
            )
        )
    if (host := hardware.host_memory) is not None:
        rate = f"{0.25e-9 / host.optimizer_s_per_byte:.3g}" if host.optimizer_s_per_byte else "any number of"
        rows.append(
            ("host memory", f"copies at {_link(host.copy)}; AdamW steps of {rate} 10^9 parameters/s a rank")
        )
    if hardware.gamma_s:
        rows.append(
            (
                "measured operators",
                f"{len(hardware.gamma_s)}, {format_seconds(sum(hardware.gamma_s.values()))} of forward and backward per "
                f"sample, {format_seconds(sum(hardware.gamma_fixed_s.values()))} per step",
            )
        )
    if hardware.measured is not None:
        m = hardware.measured
        rows.append(
            ("measured on", f"{m.processor}, {m.cores} cores, {m.threads} threads a rank, torch {m.torch}")
        )
    rows.append(("source", hardware.source))
    return rows


def _link(link: Collective) -> str:
    rate = f"{1e-9 / link.beta_s_per_byte:.3g} GB/s" if link.beta_s_per_byte else "no limit"
    return f"{rate}, {format_seconds(link.alpha_s)} latency"
