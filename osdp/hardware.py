"""Hardware: what the search knows of the machine: memory, collectives (alpha, beta), computation (gamma)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Collective:
    """Cost of one collective over N ranks on S bytes (S: the full, unsharded size), as the paper's ring model has it.

    all_gather, reduce_scatter: (N-1) * (alpha_s + S/N * beta_s_per_byte); all_reduce: 2(N-1) * (the same), so that
    alpha is the latency of one ring step and beta the time per byte sent in it.
    """

    alpha_s: float
    beta_s_per_byte: float


@dataclass(frozen=True)
class Hardware:
    """One machine, as measured (`osdp.profile`) or from public figures (`Hardware.load("rtx-titan-8")`)."""

    name: str
    source: str  # where the figures come from: "measured 2026-11-21 on ...", or the publication
    device: str  # "cpu", "cuda"
    world_size: int
    memory_bytes: int | None  # of one device; the search's default limit
    all_gather: Collective
    reduce_scatter: Collective
    all_reduce: Collective
    flops_per_s: float  # achieved on matrix products; prices operators that were not measured themselves
    optimizer_s_per_byte: float  # time of an AdamW step per byte of fp32 parameters that this rank updates
    gamma_s: Mapping[str, float] = field(default_factory=dict)  # operator name -> forward + backward seconds per sample
    gamma_fixed_s: Mapping[str, float] = field(default_factory=dict)  # the part that does not grow with the batch
    recompute_s: Mapping[str, float] = field(default_factory=dict)  # operator name -> forward seconds per sample
