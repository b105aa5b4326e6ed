"""Hardware: the search's model of the machine: memory, collectives (alpha, beta) and computation (gamma)."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Annotated

from osdp import _search
from osdp.base.byte_sizes import MOST_BYTES
from osdp.base.json_files import InFile
from osdp.base.names import did_you_mean
from osdp.base.schema import AtLeast, OneOf
from osdp.errors import InvalidProblemError

MOST_PROTOCOLS = 8  # as csrc/search/problem/request.hpp
MOST_DEVICE_BYTES = 2**50  # so that sums do not overflow


@dataclass(frozen=True)
class Collective:
    """Cost of one collective over N ranks on S bytes (the full, unsharded size) in the paper's ring model
    (section 3).

    all_gather, reduce_scatter: (N-1) * (alpha_s + S/N * beta_s_per_byte); all_reduce: 2(N-1) * (the same), so
    that alpha is the latency of one ring step and beta the time per byte sent in it.
    """

    alpha_s: float
    beta_s_per_byte: float


@dataclass(frozen=True)
class Protocol:
    """One of the ways in which NCCL runs collectives, an algorithm with a protocol: Note [Protocols of NCCL] in
    csrc/search/problem/collective_time.hpp. Over N ranks on H hosts a ring takes `base_s`, N - H inner hops and H - 1
    outer ones, each twice for an all-reduce, and the time of its bytes at a share of the link's bandwidth.
    """

    algorithm: Annotated[str, OneOf(_search.ALGORITHMS)]
    protocol: str  # NCCL's name: "LL", "LL128", "Simple"
    base_s: float
    inner_hop_s: float  # inside a host
    outer_hop_s: float  # between hosts
    bandwidth_share: Annotated[float, AtLeast(0, strictly=True)]
    most_bytes_per_s: Annotated[float, AtLeast(0)] = 0.0  # 0: no limit but the links'


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of one device that no tensor holds but that count against a limit (`osdp.planning.device_memory`).
    All 0 on CPUs.

    The last four describe the caching allocator.
    """

    context_bytes: Annotated[int, AtLeast(0)] = 0  # the process's driver context, including kernels' code
    communicator_bytes: Annotated[int, AtLeast(0)] = 0  # buffers of one communicator of all ranks
    workspace_bytes: Annotated[int, AtLeast(0)] = 0  # of matrix products, for each thread that computes
    tensor_rounding_bytes: Annotated[int, AtLeast(0)] = 0  # a tensor takes a multiple of this
    small_block_bytes: Annotated[int, AtLeast(0)] = 0  # small tensors are allocated from blocks of this size,
    large_block_bytes: Annotated[int, AtLeast(0)] = 0  # larger ones from these
    unused_bytes: Annotated[int, AtLeast(0)] = 0  # reserved but in no tensor at a step's peak


@dataclass(frozen=True)
class KernelRates:
    """What prices the kernels of a machine that was not measured, with `flops_per_s_by_dtype`: Note [Roofline] in
    osdp/planning/kernel_times.py."""

    memory_bytes_per_s: Annotated[float, AtLeast(0, strictly=True)]  # that a kernel reaches
    launch_s: float  # of a kernel, and what is between it and the next
    half_rate_dimension: Annotated[float, AtLeast(0)]  # the least dimension of products at half of their rate
    attention_share: Annotated[float, AtLeast(0, strictly=True)]  # of the rate of products, of long sequences
    # Flops per byte at which attention has half of that rate: about a quarter of a sequence's length in 16 bits.
    attention_half_intensity: Annotated[float, AtLeast(0)] = 0.0


@dataclass(frozen=True)
class HostMemory:
    """The memory of the host, where the parts of operators rest that are offloaded (`FULL_SHARD_OFFLOAD`), while all ranks
    of the host use it at the same time."""

    copy: Collective  # of one rank, to or from its device: alpha_s + bytes * beta_s_per_byte
    # An AdamW step's time on the host per byte of fp32 parameters that a rank updates.
    optimizer_s_per_byte: float


@dataclass(frozen=True)
class InsideHosts:
    """The collectives of the ranks of one host, all hosts at the same time, on a machine of several hosts."""

    all_gather: Collective
    reduce_scatter: Collective
    all_reduce: Collective


@dataclass(frozen=True)
class Measured:
    """The machine that `osdp.profile` ran on, and the times of two fixed jobs, which tell whether the machine or
    its speed has changed since (`osdp.hardware.this_machine`).
    """

    processor: str  # model of the CPU or accelerator
    cores: Annotated[int, AtLeast(1)]  # of the CPU, that a rank may run on
    threads: Annotated[int, AtLeast(1)]  # in which torch computed on each rank
    torch: str  # its version
    product_s: Annotated[float, AtLeast(0, strictly=True)]  # of a matrix product, all ranks at once
    copy_s: Annotated[float, AtLeast(0, strictly=True)]  # of a copy from memory to memory, likewise


@dataclass(frozen=True, repr=False)
class Hardware(InFile):
    """One machine, measured by `osdp.profile` or taken from public figures (`Hardware.load("rtx-titan-8")`).

    >>> hardware = osdp.profile(model, inputs)  # collective: on every rank
    >>> hardware.save("cluster.json")
    >>> hardware = osdp.Hardware.load("cluster.json")
    """

    KIND = "hardware"

    name: str
    source: str  # of the figures: "measured 2026-11-21 on ...", or a publication
    device: str  # "cpu", "cuda"
    world_size: Annotated[int, AtLeast(1)]
    memory_bytes: Annotated[int, AtLeast(1)] | None  # of one device; the search's default limit
    all_gather: Collective
    reduce_scatter: Collective
    all_reduce: Collective
    # Achieved rate of matrix products in fp32; determines the cost of operators that were not measured.
    flops_per_s: Annotated[float, AtLeast(0, strictly=True)]
    optimizer_s_per_byte: float  # an AdamW step's time per byte of fp32 parameters that a rank updates
    # One step of a ring between hosts; None: one host, or not measured.
    between_hosts: Collective | None = None
    # How many seconds a second of communication adds to a step: 1.0 without overlap, less where computation
    # hides it, more where the two slow each other down (on CPU cores).
    exposed_communication: Annotated[float, AtLeast(0)] = 1.0
    # Operator name -> seconds: forward + backward per sample; the part that does not grow with the batch;
    # forward alone per sample.
    gamma_s: Mapping[str, float] = field(default_factory=dict)
    gamma_fixed_s: Mapping[str, float] = field(default_factory=dict)
    recompute_s: Mapping[str, float] = field(default_factory=dict)
    # While computation runs: the additional time of one ring step, and the seconds by which computation is
    # delayed per second of transfer (of its time without computation; latency delays nothing).
    communication_delay: Collective = Collective(0.0, 0.0)
    stolen_computation: Annotated[float, AtLeast(0)] = 0.0
    # The same as `flops_per_s` in other dtypes: "bfloat16", "float16", "tf32" (fp32 rounded in tensor cores).
    # Dtypes that are missing here have the rate of fp32.
    flops_per_s_by_dtype: Mapping[str, Annotated[float, AtLeast(0, strictly=True)]] = field(
        default_factory=dict
    )
    device_memory: DeviceMemory = DeviceMemory()
    # Time of a recomputed forward relative to the first one; 1.0 if it was not measured.
    recompute_slowdown: Annotated[float, AtLeast(0, strictly=True)] = 1.0
    # None: operators that were not measured are priced by their flops alone.
    kernel_rates: KernelRates | None = None
    # What NCCL chooses from; their latencies replace those of `all_gather` and the others. Empty, as in every profile: a
    # collective takes the time of `Collective`.
    protocols: tuple[Protocol, ...] = ()
    # How much faster than with all ranks of its host at once, as all else was measured, a rank computes while 1, 2, 4, ...
    # of them do: more than 1 where they share cores, which a stage of a pipeline leaves to others while it waits. Empty: 1.
    fewer_ranks_speedup: tuple[Annotated[float, AtLeast(1)], ...] = ()
    # None: the device's memory is the host's, or it was not measured; nothing can be planned to be offloaded.
    host_memory: HostMemory | None = None
    # Where `all_gather` and the others were measured over several hosts of several ranks each; None: they are of one
    # host, or links are alike.
    inside_hosts: InsideHosts | None = None
    measured: Measured | None = None  # None: public figures, or an older profile

    @property
    def label(self) -> str:
        """The name, and whether the figures were measured there or are published ones."""
        return f"{self.name} ({'measured' if self.measured is not None else 'assumed'})"

    def inside_a_host(self, hosts: int) -> Hardware:
        """The machine, to a group of ranks of one of `hosts` hosts; of one alone: with what all ranks measured together."""
        inside = self.inside_hosts
        if inside is None or hosts == 1:
            return self
        return replace(
            self,
            all_gather=inside.all_gather,
            reduce_scatter=inside.reduce_scatter,
            all_reduce=inside.all_reduce,
            inside_hosts=None,
        )

    def bare_step_s(self, batch_size: int) -> float:
        """Seconds of a forward and backward of the profiled model on one rank, without communication; 0.0 if
        none was profiled."""
        return sum(self.gamma_s.values()) * batch_size + sum(self.gamma_fixed_s.values())

    def speedup(self, computing: int, ranks: int) -> float:
        """Of a rank while so many of its host's `ranks` compute; between what was measured, times are linear."""
        known = [(1 << i, 1 / s) for i, s in enumerate(self.fewer_ranks_speedup) if 1 << i < ranks]
        for (few, fast), (more, slow) in itertools.pairwise([*known, (ranks, 1.0)]):
            if computing <= more:
                return 1 / (fast + (slow - fast) * (computing - few) / (more - few))
        return 1.0

    def _problems(self) -> Iterator[tuple[str, str]]:
        return _problems(self)

    @classmethod
    def load(cls, name_or_path: str | os.PathLike[str]) -> Hardware:
        """Load a known machine ("rtx-titan-8", "a100-8", "h100-8": see `known_machines()`) or a file written
        by `save`.

        Raises FormatError that names the field, and InvalidProblemError if the name is neither.
        """
        name = os.fspath(name_or_path)
        if name in known_machines():
            with resources.as_file(resources.files("osdp.hardware") / "machines" / f"{name}.json") as path:
                return super().load(path)
        if not Path(name).is_file():
            known = known_machines()
            raise InvalidProblemError(
                f"hardware {name!r} is neither a file nor a known machine ({', '.join(known)})"
                f"{did_you_mean(name, known)}"
            )
        return super().load(name)


def known_machines() -> list[str]:
    """The names of machines that `Hardware.load` accepts besides files."""
    folder = resources.files("osdp.hardware") / "machines"
    return sorted(file.name.removesuffix(".json") for file in folder.iterdir() if file.name.endswith(".json"))


def _problems(hardware: Hardware) -> Iterator[tuple[str, str]]:
    """Violated ranges, which types do not express; NaN is outside of all of them."""
    for name in ("exposed_communication", "stolen_computation"):
        if not 0 <= getattr(hardware, name) <= 100:
            yield name, f"must be between 0 and 100, got {getattr(hardware, name)}"
    for i, faster in enumerate(hardware.fewer_ranks_speedup):
        if not 1 <= faster <= 1000:
            yield f"fewer_ranks_speedup[{i}]", f"must be between 1 and 1000, got {faster}"
    seconds = {"optimizer_s_per_byte": hardware.optimizer_s_per_byte}
    links = {n: getattr(hardware, n) for n in ("between_hosts", "communication_delay")}
    for where, of in (("", hardware), ("inside_hosts.", hardware.inside_hosts)):
        links |= {f"{where}{n}": getattr(of, n, None) for n in ("all_gather", "reduce_scatter", "all_reduce")}
    for name, link in links.items():
        if link is not None:
            seconds |= {f"{name}.alpha_s": link.alpha_s, f"{name}.beta_s_per_byte": link.beta_s_per_byte}
    if (host := hardware.host_memory) is not None:
        seconds |= {
            "host_memory.copy.alpha_s": host.copy.alpha_s,
            "host_memory.copy.beta_s_per_byte": host.copy.beta_s_per_byte,
            "host_memory.optimizer_s_per_byte": host.optimizer_s_per_byte,
        }
    if hardware.kernel_rates is not None:
        seconds["kernel_rates.launch_s"] = hardware.kernel_rates.launch_s
    for i, p in enumerate(hardware.protocols):
        seconds |= {
            f"protocols[{i}].{name}": getattr(p, name) for name in ("base_s", "inner_hop_s", "outer_hop_s")
        }
        if not 0 < p.bandwidth_share <= 1:
            yield f"protocols[{i}].bandwidth_share", f"must be above 0 and at most 1, got {p.bandwidth_share}"
        if not 0 <= p.most_bytes_per_s <= 1e30:
            yield f"protocols[{i}].most_bytes_per_s", f"must be between 0 and 1e30, got {p.most_bytes_per_s}"
    if len(hardware.protocols) > MOST_PROTOCOLS:
        yield "protocols", f"must be at most {MOST_PROTOCOLS}, got {len(hardware.protocols)}"
    if hardware.protocols and all(p.algorithm != "ring" for p in hardware.protocols):
        yield "protocols", "must hold a ring, which every kind of collective can run"
    for table in ("gamma_s", "gamma_fixed_s", "recompute_s"):
        seconds |= {f"{table}.{name}": value for name, value in getattr(hardware, table).items()}
    if hardware.measured is not None:
        seconds |= {f"measured.{job}": getattr(hardware.measured, job) for job in ("product_s", "copy_s")}
    for name, value in seconds.items():
        if not 0 <= value < 1e6:
            yield name, f"must be at least 0 and less than 1e6 seconds, got {value}"
    rates = {"flops_per_s": hardware.flops_per_s}
    if (kernels := hardware.kernel_rates) is not None:
        rates |= {
            f"kernel_rates.{name}": getattr(kernels, name)
            for name in ("memory_bytes_per_s", "attention_share")
        }
        for name in ("half_rate_dimension", "attention_half_intensity"):
            if not 0 <= (half := getattr(kernels, name)) <= 1e9:
                yield f"kernel_rates.{name}", f"must be between 0 and 1e9, got {half}"
    rates |= {f"flops_per_s_by_dtype.{dtype}": rate for dtype, rate in hardware.flops_per_s_by_dtype.items()}
    for name, rate in rates.items():
        if not 0 < rate <= 1e30:
            yield name, f"must be above 0 and at most 1e30, got {rate}"
    if hardware.memory_bytes is not None and hardware.memory_bytes > MOST_BYTES:
        yield "memory_bytes", f"must be at most 2**58, got {hardware.memory_bytes}"
    for name, size in asdict(hardware.device_memory).items():
        if not 0 <= size <= MOST_DEVICE_BYTES:
            yield f"device_memory.{name}", f"must be between 0 and 2^50, got {size}"


def check_hardware(hardware: Hardware) -> Hardware:
    """Return `hardware` if its figures are valid; else raise InvalidProblemError."""
    for field_, why in _problems(hardware):
        raise InvalidProblemError(f"hardware {hardware.name!r}: {field_} {why}")
    return hardware
