"""Where the paper's models train: ranks, machine and memory."""

from __future__ import annotations

from dataclasses import dataclass

from osdp import Hardware


@dataclass(frozen=True)
class Setting:
    """`gib`: of memory, for a rank."""

    hardware: str | Hardware
    ranks: int
    hosts: int
    gib: int

    @property
    def name(self) -> str:
        return f"{self.ranks} ranks, {self.gib} GB"


# One server of 8 RTX TITAN on PCIe 3.0, and two of 8 A100 with 100 Gb/s between them (the paper's section on experiments),
# each limited to 8 and to 16 GB, which the authors' code takes as 8,192 and 16,384 MiB.
SETTINGS = tuple(
    Setting(hardware, ranks, hosts, gib)
    for hardware, ranks, hosts in (("rtx-titan-8", 8, 1), ("a100-2x8", 16, 2))
    for gib in (8, 16)
)
UNITS = (1, 2, 3)  # a rank and step: the authors' scheduler tries batches of range(1, 4) units
LARGE = 16  # units a rank and step, in as many micro-batches as each strategy likes
