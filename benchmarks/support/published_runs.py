"""Training runs that others published, and each as a plan on a machine with its GPUs, links and kernels.

Note [Published runs]
published_fsdp.csv has MosaicML's runs of MPT under FSDP (llm-foundry, scripts/train/benchmarking/README.md and its
history: tables of May 2023, October 2023 and January 2024). Known of them: blocks are units; the unit of embeddings and
the last norm stays gathered from forward to backward; whole blocks are recomputed; parameters are gathered, and
gradients reduced, in every micro-batch, both in bf16, or gradients in fp32 where `mixed_precision` is DEFAULT (for the
tables of October 2023 it is not known whether that held: both readings are printed). Eight GPUs a host; between hosts of
A100 1,600 Gb/s for the eight together, of H100 not stated (the 8 x 400 Gb/s of a DGX H100 are assumed).

Note [What is theirs]
The machines are the shipped ones, with the run's link between hosts, but for attention: it was Triton's first
FlashAttention, whose rate (ATTENTION) is fitted to these runs. Fitted was to those of up to 8,192 tokens, 64 GPUs and 13B.
All constants are the A100's but two, the H100's rates of products and attention. With the A100's shares it is 34% off, and
the causes can be seen apart from these runs (FROM_A100):
  products    The A100's 82% is also what an H100 that was measured (results/kernels-*.json) reaches for a moment, and 71%
              for longer, since 700 W hold its clock down. These runs reach 62%: cuBLAS 12.1, and eight such GPUs.
  attention   A kernel of the A100's instructions, without Hopper's own (wgmma), reaches 63% of its tensor cores' rate
              (arXiv 2402.13499).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from typing import Any

import osdp
from osdp.description.model_description import ModelDescription
from osdp.hardware.hardware import Collective, Hardware

TABLE = Path(__file__).parent.parent / "published_fsdp.csv"
MACHINES = {"a100_40gb": "a100-40gb-8", "a100_80gb": "a100-8", "h100_80gb": "h100-8"}
SEVERAL_HOSTS = {"a100_40gb": "dgx-a100-2x8", "a100_80gb": "dgx-a100-2x8", "h100_80gb": "h100-2x8"}
# What their drivers report, which is not quite the GiB of their names: 39.4, 79.1 and 79.1 GiB.
MEMORY = {"a100_40gb": 42_300_000_000, "a100_80gb": 84_900_000_000, "h100_80gb": 84_900_000_000}
# Their datasheets: tensor cores in bf16, bandwidth of the memory.
PEAK = {"a100_40gb": 312e12, "a100_80gb": 312e12, "h100_80gb": 989.5e12}
BANDWIDTH = {"a100_40gb": 1555e9, "a100_80gb": 2039e9, "h100_80gb": 3350e9}
HOST_GBPS = 3200.0  # of a DGX H100, where the table does not state it
LINK_SHARE = 0.8  # as the shipped machines of two hosts have it
RANKS_PER_HOST = 8
COUNTS = (
    *("layers", "width", "heads", "vocabulary", "parameters"),
    *("sequence", "gpus", "micro_batch", "accumulation"),
)
CONTRADICTED = 0.12  # Note [Contradicted rows]
SCALES = ("one host", "2 to 8 hosts", "more hosts")


@dataclass(frozen=True)
class Run:
    """A row of the table."""

    model: str
    layers: int
    width: int
    heads: int
    vocabulary: int
    parameters: int
    sequence: int
    gpus: int
    gpu: str
    host_gbps: float | None
    strategy: str
    micro_batch: int
    accumulation: int
    recomputation: bool
    mixed_precision: str
    published: str
    tokens_per_s_per_gpu: float

    @property
    def hosts(self) -> int:
        return max(1, self.gpus // RANKS_PER_HOST)

    @property
    def scale(self) -> str:
        return SCALES[0 if self.hosts == 1 else 1 if self.hosts <= 8 else 2]

    @property
    def name(self) -> str:
        return f"{self.model} x {self.sequence} on {self.gpus} {self.gpu}"

    @property
    def flops_per_token(self) -> float:
        """Of products that run: forward and backward, the forward once more with recomputation, half of attention."""
        forward = 2 * self.parameters + 2 * self.layers * self.sequence * self.width
        return (4 if self.recomputation else 3) * forward

    @property
    def precisions(self) -> tuple[str, ...]:
        """The likelier reading first."""
        if self.mixed_precision == "PURE":
            return ("bf16",)
        return ("bf16-reduce-fp32", "bf16") if self.published.startswith("2023-10") else ("bf16-reduce-fp32",)


def runs() -> list[Run]:
    with TABLE.open() as file:
        return [
            Run(
                **{name: row[name] for name in ("model", "gpu", "strategy", "mixed_precision", "published")},
                **{name: int(row[name]) for name in COUNTS},
                host_gbps=float(row["host_gbps"]) if row["host_gbps"] else None,
                recomputation=row["recomputation"] == "True",
                tokens_per_s_per_gpu=float(row["tokens_per_s_per_gpu"]),
            )
            for row in csv.DictReader(file)
        ]


# Note [Contradicted rows]
# Fixed before anything was fitted, and computed from what was published alone. Neighbours of a row differ from it in one
# thing, on either side: the sequence's length or the model's size; GPU, number of GPUs, table and recomputation are the
# same. Its rate of products (tokens/s x flops_per_token) is compared with that of the two, interpolated by the logarithm
# of the thing. A row is contradicted if it has such a pair, and every pair that it has is more than 12% off, to one side.
def contradicted(all_runs: Sequence[Run]) -> set[Run]:
    found = set()
    for run in all_runs:
        offs = list(_offs(run, all_runs))
        if offs and (min(offs) > CONTRADICTED or max(offs) < -CONTRADICTED):
            found.add(run)
    return found


def _offs(run: Run, all_runs: Sequence[Run]) -> Iterator[float]:
    for what, same in (("sequence", "model"), ("width", "sequence")):
        alike = ("gpu", "gpus", "published", "recomputation", same)
        line = [r for r in all_runs if all(getattr(r, a) == getattr(run, a) for a in alike)]
        at = getattr(run, what)
        below = [r for r in line if getattr(r, what) < at]
        above = [r for r in line if getattr(r, what) > at]
        if not below or not above:
            continue
        low, high = max(below, key=lambda r: getattr(r, what)), min(above, key=lambda r: getattr(r, what))
        part = log(at / getattr(low, what)) / log(getattr(high, what) / getattr(low, what))
        expected = exp((1 - part) * log(_rate(low)) + part * log(_rate(high)))
        yield _rate(run) / expected - 1


def _rate(run: Run) -> float:
    return run.tokens_per_s_per_gpu * run.flops_per_token


ATTENTION = {"a100": (0.382, 24.0), "h100": (0.30, 24.0)}  # share of products' rate, and half intensity
LASTING, WITHOUT_WGMMA = 700 / 798, 0.629  # what a lent H100 kept of its rate; arXiv 2402.13499
Change = Callable[[Hardware], Hardware]


def rates_changed(**rates: Any) -> Change:
    def change(machine: Hardware) -> Hardware:
        assert machine.kernel_rates is not None
        return replace(machine, kernel_rates=replace(machine.kernel_rates, **rates))

    return change


def products_changed(share: Callable[[Hardware], float]) -> Change:
    """`share` of the rate that the machine has."""

    def change(machine: Hardware) -> Hardware:
        rates = {d: rate * share(machine) for d, rate in machine.flops_per_s_by_dtype.items()}
        return replace(machine, flops_per_s_by_dtype=rates)

    return change


def _from_a100(products: float, attention: float) -> Change:
    """The A100's shares on an H100, and what is left of them."""

    def change(machine: Hardware) -> Hardware:
        a100, share = osdp.Hardware.load(MACHINES["a100_80gb"]), products
        share *= a100.flops_per_s_by_dtype["bfloat16"] / PEAK["a100_80gb"] * PEAK["h100_80gb"]
        machine = products_changed(lambda m: share / m.flops_per_s_by_dtype["bfloat16"])(machine)
        return rates_changed(attention_share=ATTENTION["a100"][0] * attention / products)(machine)

    return change


FROM_A100 = {
    "the A100's shares alone": _from_a100(1, 1),
    "and products at 700 W": _from_a100(LASTING, LASTING),
    "and attention without wgmma": _from_a100(LASTING, WITHOUT_WGMMA),
}


def machine_of(run: Run, their_attention: bool = True) -> Hardware:
    """The shipped machine of the run's GPU, with the run's own memory, link between hosts and kernel of attention."""
    shipped = osdp.Hardware.load(MACHINES[run.gpu])
    if their_attention:
        share, half = ATTENTION[run.gpu.partition("_")[0]]
        shipped = rates_changed(attention_share=share, attention_half_intensity=half)(shipped)
    # FSDP1 has one communicator; the prediction counts OSDP's and the caller's, and those inside and between hosts.
    counted = 2 if run.hosts == 1 else 4
    own = shipped.device_memory
    one = replace(own, communicator_bytes=own.communicator_bytes // counted)
    shipped = replace(shipped, device_memory=one)
    if run.hosts == 1:
        return replace(shipped, memory_bytes=MEMORY[run.gpu])
    bytes_per_s = (run.host_gbps or HOST_GBPS) * 1e9 / 8 * LINK_SHARE
    two_hosts = osdp.Hardware.load(SEVERAL_HOSTS[run.gpu])
    assert two_hosts.between_hosts is not None
    return replace(
        shipped,
        world_size=run.gpus,
        memory_bytes=MEMORY[run.gpu],
        between_hosts=Collective(two_hosts.between_hosts.alpha_s, 1 / bytes_per_s),
        protocols=two_hosts.protocols,
    )


def plan_of(run: Run, description: ModelDescription, precision: str) -> osdp.Plan:
    """The run as a plan: units are blocks, and what is outside of them."""
    outside = {o.name for o in description.operators if o.block is None and o.parameters}
    plan = osdp.Plan.uniform(description, run.strategy)
    plan = plan.replace({name: osdp.Choice("SHARD_GRAD_OP") for name in outside})
    if run.recomputation:
        plan = plan.replace(recompute={b.name: "hold" for b in description.blocks})
    return replace(
        plan,
        units=_units(description),
        batch_size=run.micro_batch,
        accumulation=run.accumulation,
        precision=precision,
    )


def _units(description: ModelDescription) -> tuple[tuple[str, ...], ...]:
    members: dict[str | None, list[str]] = {}
    for o in description.operators:
        if o.parameters:
            members.setdefault(o.block, []).append(o.name)
    return tuple(tuple(names) for names in members.values())
