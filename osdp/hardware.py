"""Hardware: what the search knows of the machine: memory, collectives (alpha, beta), computation (gamma)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from osdp import serial
from osdp.errors import FormatError, InvalidProblemError


@dataclass(frozen=True)
class Collective:
    """Cost of one collective over N ranks on S bytes (S: the full, unsharded size), as the paper's ring model
    has it.

    all_gather, reduce_scatter: (N-1) * (alpha_s + S/N * beta_s_per_byte); all_reduce: 2(N-1) * (the same), so
    that alpha is the latency of one ring step and beta the time per byte sent in it.
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
    # One step of a ring between hosts; None: one host, or not measured.
    between_hosts: Collective | None = None
    # How much longer a step gets for each second of communication: 1.0 where nothing overlaps, less where
    # computation hides it, more where the two hinder each other (CPU cores).
    exposed_communication: float = 1.0
    # Operator name -> seconds: forward + backward per sample; the part that does not grow with the batch;
    # forward alone per sample.
    gamma_s: Mapping[str, float] = field(default_factory=dict)
    gamma_fixed_s: Mapping[str, float] = field(default_factory=dict)
    recompute_s: Mapping[str, float] = field(default_factory=dict)

    def dumps(self) -> str:
        """The hardware as JSON text; `Hardware.loads` gives an equal one back."""
        return serial.dumps("hardware", self)

    @staticmethod
    def loads(text: str) -> Hardware:
        """The hardware of `dumps`. Raises FormatError that names the field."""
        return _checked(serial.loads("hardware", Hardware, text), "")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the figures to `path` as JSON: whole or not at all."""
        serial.save_text(path, self.dumps())

    @staticmethod
    def load(name_or_path: str | os.PathLike[str]) -> Hardware:
        """A known machine ("rtx-titan-8", "a100-8", "h100-8": `known_machines()`) or the file that `save`
        wrote.

        Raises FormatError that names the field, and InvalidProblemError for a name that is neither.
        """
        name = os.fspath(name_or_path)
        if name in known_machines():
            with resources.as_file(resources.files("osdp") / "hardware_data" / f"{name}.json") as path:
                return _checked(serial.load_file(path, "hardware", Hardware), name)
        if not Path(name).is_file():
            raise InvalidProblemError(
                f"hardware {name!r} is neither a file nor a known machine; "
                f"known are {', '.join(known_machines())}"
            )
        return _checked(serial.load_file(name, "hardware", Hardware), name)


def known_machines() -> list[str]:
    """The names that `Hardware.load` knows without a file."""
    folder = resources.files("osdp") / "hardware_data"
    return sorted(file.name.removesuffix(".json") for file in folder.iterdir() if file.name.endswith(".json"))


def _checked(hardware: Hardware, source: str) -> Hardware:
    for where, why in _problems(hardware):
        raise FormatError(f"{source}: {where}: {why}" if source else f"{where}: {why}", where)
    return hardware


def _problems(hardware: Hardware) -> Iterator[tuple[str, str]]:
    if hardware.world_size < 1:
        yield "world_size", f"must be at least 1, is {hardware.world_size}"
    if hardware.memory_bytes is not None and hardware.memory_bytes < 1:
        yield "memory_bytes", f"must be positive, is {hardware.memory_bytes}"
    if hardware.flops_per_s <= 0:
        yield "flops_per_s", f"must be positive, is {hardware.flops_per_s}"
    if hardware.optimizer_s_per_byte < 0:
        yield "optimizer_s_per_byte", f"must not be negative, is {hardware.optimizer_s_per_byte}"
    if not 0 <= hardware.exposed_communication <= 100:
        yield "exposed_communication", f"must be between 0 and 100, is {hardware.exposed_communication}"
    for name in ("all_gather", "reduce_scatter", "all_reduce", "between_hosts"):
        cost = getattr(hardware, name)
        if cost is None:
            continue
        for what in ("alpha_s", "beta_s_per_byte"):
            if getattr(cost, what) < 0:
                yield f"{name}.{what}", f"must not be negative, is {getattr(cost, what)}"
    for name in ("gamma_s", "gamma_fixed_s", "recompute_s"):
        for operator, seconds in getattr(hardware, name).items():
            if seconds < 0:
                yield f"{name}.{operator}", f"must not be negative, is {seconds}"
