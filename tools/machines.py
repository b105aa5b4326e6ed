"""Writes osdp/hardware/machines/*.json, all but rtx-titan-8.json, which is fitted to measurements; with --check, says
whether they are current.

Two tables: what the makers publish of each GPU and host, and the shares of it that are reached, which all GPUs have in
common unless a line says why not. Run by `make format`; tests/unit/hardware/test_machines.py checks.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from osdp.hardware.hardware import Collective, DeviceMemory, Hardware, HostMemory, KernelRates, Protocol

MACHINES = Path(__file__).resolve().parent.parent / "osdp" / "hardware" / "machines"
NCCL = "2.30.7"


@dataclass(frozen=True)
class Gpu:
    """As its maker's datasheet has it. Rates of tensor cores are dense, with sums in fp32."""

    name: str
    datasheet: str
    memory_bytes: int
    memory_bytes_per_s: float
    fp32_flops_per_s: float
    tf32_flops_per_s: float
    bf16_flops_per_s: float
    link_bytes_per_s: float  # to the other GPUs of its host, each way
    generation: str  # of NCCL's table: "ampere", "hopper", "blackwell"
    nvlink: bool = True


A100_80 = Gpu(
    "NVIDIA A100 SXM 80 GB, NVLink 3",
    "NVIDIA A100 Tensor Core GPU datasheet: FP32 19.5 TFLOP/s, TF32 156, BF16 and FP16 312 (dense), memory 2039 GB/s, "
    "NVLink 600 GB/s (300 each way)",
    *(80 * 10**9, 2039e9, 19.5e12, 156e12, 312e12, 300e9, "ampere"),
)
A100_40 = Gpu(
    "NVIDIA A100 SXM 40 GB, NVLink 3",
    "NVIDIA A100 Tensor Core GPU datasheet: FP32 19.5 TFLOP/s, TF32 156, BF16 and FP16 312 (dense), memory 1555 GB/s, "
    "NVLink 600 GB/s (300 each way)",
    *(40 * 10**9, 1555e9, 19.5e12, 156e12, 312e12, 300e9, "ampere"),
)
H100 = Gpu(
    "NVIDIA H100 SXM 80 GB, NVLink 4",
    "NVIDIA H100 Tensor Core GPU datasheet: FP32 67 TFLOP/s, TF32 989, BF16 and FP16 1979 with sparsity, half of that "
    "without, memory 3350 GB/s, NVLink 900 GB/s (450 each way)",
    *(80 * 10**9, 3350e9, 67e12, 494.5e12, 989.5e12, 450e9, "hopper"),
)
H200 = Gpu(
    "NVIDIA H200 SXM 141 GB, NVLink 4",
    "NVIDIA H200 Tensor Core GPU datasheet: FP32 67 TFLOP/s, TF32 989, BF16 and FP16 1979 with sparsity, half of that "
    "without, memory 4.8 TB/s, NVLink 900 GB/s (450 each way)",
    *(141 * 10**9, 4800e9, 67e12, 494.5e12, 989.5e12, 450e9, "hopper"),
)
B200 = Gpu(
    "NVIDIA B200 SXM 180 GB, NVLink 5",
    "NVIDIA HGX B200 and DGX B200 datasheets, of each of the 8 GPUs: FP32 75 TFLOP/s, TF32 2200, BF16 and FP16 4500 with "
    "sparsity, half of that without, memory 8 TB/s, NVLink 1.8 TB/s (900 GB/s each way)",
    *(180 * 10**9, 8000e9, 75e12, 1100e12, 2250e12, 900e9, "blackwell"),
)
L40S = Gpu(
    "NVIDIA L40S 48 GB, PCIe 4.0 x16",
    "NVIDIA L40S datasheet: FP32 91.6 TFLOP/s, TF32 183, BF16 and FP16 362 (dense), memory 864 GB/s, "
    "PCIe 64 GB/s (32 each way)",
    *(48 * 10**9, 864e9, 91.6e12, 183e12, 362e12, 32e9, "ampere", False),
)
RTX_4090 = Gpu(
    "NVIDIA GeForce RTX 4090 24 GB, PCIe 4.0 x16",
    "NVIDIA Ada GPU architecture whitepaper: FP32 82.6 TFLOP/s, TF32 82.6, BF16 and FP16 165.2 (dense, sums in FP32), "
    "memory 1008 GB/s; PCIe 64 GB/s (32 each way); GPUs reach each other through the host's memory",
    *(24 * 10**9, 1008e9, 82.6e12, 82.6e12, 165.2e12, 32e9, "ampere", False),
)
# NCCL's table of latencies in microseconds (src/graph/tuning.cc): base; a hop over NVLink, PCIe and the network.
RINGS = {"LL": (6.6, 0.6, 1.0, 2.7), "LL128": (14.0, 1.9, 2.5, 4.0), "Simple": (8.4, 3.4, 5.7, 14.0)}
TREES = {"LL": (6.8, 0.6, 1.0, 5.0), "LL128": (14.0, 1.25, 1.9, 8.5), "Simple": (8.4, 4.0, 4.0, 14.0)}
RING_SHARE = {"LL": 0.5, "LL128": 0.92, "Simple": 1.0}
TREE_SHARE = {"LL": 0.92 / 3.8, "LL128": 0.92 * 120 / 128, "Simple": 0.92}
POST_S = 1e-6  # to post to the network, which a hop of LL inside a host waits for where there are several
LL_BYTES_PER_S = {"ampere": 87.7e9, "hopper": 141e9, "blackwell": 282e9}
LL_BYTES_PER_S_BETWEEN_HOSTS = 20.4e9
IN_SWITCH = {"hopper": (25e-6, 0.85), "blackwell": (25e-6, 0.74)}  # NVLS
CHANNELS = {"ampere": 24, "hopper": 32, "blackwell": 32}  # of 10 MiB of buffers each
# PCIe of a GPU, each way, and the host's memory: DDR4-3200 or DDR5 in 16 channels, of which each of 8 ranks has an eighth.
PCIE = {"ampere": 32e9, "hopper": 64e9, "blackwell": 64e9}
COPY_LATENCY_S = 10e-6
HOST = {
    "ampere": ("2x AMD EPYC 7742 with DDR4-3200 (NVIDIA DGX A100 datasheet)", 16 * 25.6e9),
    "hopper": ("2x Intel Xeon 8480C with DDR5-4800 (NVIDIA DGX H100 datasheet)", 16 * 38.4e9),
    "blackwell": ("2x Intel Xeon 8570 with DDR5-5600 (NVIDIA DGX B200 datasheet)", 16 * 44.8e9),
}
# Shares of the datasheet's figures that are reached.
LINK, MEMORY_OF_OPTIMIZER, FP32 = 0.8, 0.8, 0.8
OPTIMIZER_BYTES = 28 + 4 + 8  # moved for a parameter: AdamW, the norm that clips gradients, and scaling them


def protocols(gpu: Gpu, several_hosts: bool) -> tuple[Protocol, ...]:
    """What NCCL chooses from. LL128 needs NVLink."""
    usable = ("LL", "LL128", "Simple") if gpu.nvlink else ("LL", "Simple")
    limit = LL_BYTES_PER_S_BETWEEN_HOSTS if several_hosts else LL_BYTES_PER_S[gpu.generation]
    found = []
    tables = [("ring", RINGS, RING_SHARE)] + ([("tree", TREES, TREE_SHARE)] if several_hosts else [])
    for algorithm, latencies, shares in tables:
        for name in usable:
            base, nvlink, pcie, network = (round(1e-6 * us, 9) for us in latencies[name])
            inner = nvlink if gpu.nvlink else pcie
            found.append(
                Protocol(
                    algorithm,
                    name,
                    base,
                    max(inner, POST_S) if several_hosts else inner,
                    network,
                    shares[name],
                    limit if name == "LL" else 0.0,
                )
            )
    if not several_hosts and gpu.generation in IN_SWITCH:
        latency, share = IN_SWITCH[gpu.generation]
        channels = CHANNELS[gpu.generation] / 2
        found.append(Protocol("in-switch", "Simple", latency, 0.0, 0.0, share * (channels - 1) / channels))
    return tuple(found)


@dataclass(frozen=True)
class Rates:
    """What kernels reach, of the datasheet's figures: Note [Roofline] in osdp/planning/kernel_times.py."""

    source: str
    products: float  # large ones, of the tensor cores' rate
    memory: float
    launch_s: float
    half_rate_dimension: float
    attention: float  # of products
    attention_half_intensity: float
    stolen: float = 0.25  # of computation, per second of transfer


def machine(
    name: str,
    gpu: Gpu,
    rates: Rates,
    hosts: int = 1,
    host_gbps: float = 0.0,
    link: str = "",
) -> Hardware:
    """`hosts` hosts of eight GPUs each, with `host_gbps` Gb/s from each host for its eight together."""
    beta = 1 / (LINK * gpu.link_bytes_per_s)
    nccl = protocols(gpu, hosts > 1)
    simple = next(p for p in nccl if (p.algorithm, p.protocol) == ("ring", "Simple"))
    inside = Collective(simple.inner_hop_s, beta)
    between = Collective(simple.outer_hop_s, 8 / (LINK * host_gbps * 1e9)) if hosts > 1 else None
    source = [
        f"{'' if hosts == 1 else f'{hosts} hosts of '}8x {gpu.name}. {gpu.datasheet}.",
        f"{link} Search with hosts={hosts}." if hosts > 1 else "",
        f"Taken at {LINK:.0%}: links; {MEMORY_OF_OPTIMIZER:.0%} of the memory's bandwidth: the optimizer, which moves "
        f"{OPTIMIZER_BYTES} bytes a parameter (AdamW 28, the norm of clipping 4, scaling by it 8); {FP32:.0%}: products in "
        "FP32.",
        f"Collectives: the protocols and latencies of NCCL {NCCL} (src/graph/tuning.cc).",
        rates.source,
        f"Offloaded parameters: copies over PCIe at {PCIE[gpu.generation] / 1e9:.0f} GB/s, and an optimizer that moves as "
        f"many bytes on the host, which has {HOST[gpu.generation][0]}{'' if gpu.nvlink else ', assumed'}, "
        f"{HOST[gpu.generation][1] / 1e9:.0f} GB/s for its 8 ranks together; both taken at {LINK:.0%}.",
        "Memory beside tensors: allocator and cuBLAS workspaces as in PyTorch's sources (CUDACachingAllocator, "
        f"CublasHandlePool); a communicator {CHANNELS[gpu.generation]} x 10 MiB (as NCCL's issue 1685 has them for 8 H100, "
        "and two a NVLink for the A100, assumed); assumed, not published: 512 MiB of context; what the allocator "
        "leaves unused depends on the model and is 0 here. Measure your own with osdp.profile.",
    ]
    return Hardware(
        name=name,
        source=" ".join(part for part in source if part),
        device="cuda",
        world_size=8 * hosts,
        memory_bytes=gpu.memory_bytes,
        all_gather=inside,
        reduce_scatter=inside,
        all_reduce=inside,
        flops_per_s=FP32 * gpu.fp32_flops_per_s,
        optimizer_s_per_byte=OPTIMIZER_BYTES / 4 / (MEMORY_OF_OPTIMIZER * gpu.memory_bytes_per_s),
        between_hosts=between,
        stolen_computation=rates.stolen,
        flops_per_s_by_dtype={
            "bfloat16": rates.products * gpu.bf16_flops_per_s,
            "float16": rates.products * gpu.bf16_flops_per_s,
            # Those of Ada's GeForce have no more than FP32.
            "tf32": max(rates.products * gpu.tf32_flops_per_s, FP32 * gpu.fp32_flops_per_s),
        },
        device_memory=DeviceMemory(
            context_bytes=512 * 2**20,
            communicator_bytes=CHANNELS[gpu.generation] * 10 * 2**20,
            workspace_bytes=33554432 if gpu.generation in ("hopper", "blackwell") else 8519680,
            tensor_rounding_bytes=512,
            small_block_bytes=2 * 2**20,
            large_block_bytes=20 * 2**20,
        ),
        kernel_rates=KernelRates(
            memory_bytes_per_s=rates.memory * gpu.memory_bytes_per_s,
            launch_s=rates.launch_s,
            half_rate_dimension=rates.half_rate_dimension,
            attention_share=rates.attention,
            attention_half_intensity=rates.attention_half_intensity,
        ),
        protocols=nccl,
        host_memory=HostMemory(
            Collective(COPY_LATENCY_S, 1 / (LINK * PCIE[gpu.generation])),
            OPTIMIZER_BYTES / 4 / (MEMORY_OF_OPTIMIZER * HOST[gpu.generation][1] / 8),
        ),
    )


# Note [Rates that GPUs reach]
# They are those of training that others published (benchmarks/published.py), A100 and H100 in 2023, not of kernels alone:
# one H100 runs whole decoders in 0.72 of what is predicted here (benchmarks/kernels.py). All shares of the datasheet are
# fitted to the A100 and hold for the H100, but for that of products: 81% for a moment, 71% for longer, since 700 W hold its
# clock down, and 62% in training. Attention is what scaled_dot_product_attention was measured to reach, beside products
# that were measured likewise. Blackwell and Ada: the Hopper's shares, assumed.
AMPERE = Rates(
    "Rates of products and of other kernels, launches and what communication takes from computation are fitted "
    "(benchmarks/published.py) to training of up to 64 GPUs, 13B and 8,192 tokens that MosaicML published (llm-foundry). "
    "Attention: its share of products as on an H100, measured (benchmarks/kernels.py).",
    *(0.816, 0.527, 10e-6, 210.0, 0.82, 170.0),
)
HOPPER = replace(AMPERE, products=0.62)
ASSUMED = replace(
    HOPPER, source="Rates of kernels: the shares of the datasheet that training on H100 reached, assumed."
)


def generate() -> dict[Path, str]:
    """Path -> text of every machine."""
    dgx_a100 = "8x 200 Gb/s ConnectX-6 a host (NVIDIA DGX A100 datasheet), taken at 80%: 160 GB/s for its ranks together."
    dgx_h100 = "8x 400 Gb/s ConnectX-7 a host (NVIDIA DGX H100 datasheet), taken at 80%: 320 GB/s for its ranks together."
    dgx_b200 = "8x 400 Gb/s ConnectX-7 a host (NVIDIA DGX B200 datasheet), taken at 80%: 320 GB/s for its ranks together."
    paper = (
        "100 Gb/s between them, taken at 80%: the two-server environment of the OSDP paper (IJCAI 2023, section on "
        "experiments), which does not say more of the GPUs."
    )
    made = (
        machine("a100-8", A100_80, AMPERE),
        machine("a100-2x8", A100_80, AMPERE, 2, 100.0, paper),
        machine("a100-40gb-8", A100_40, AMPERE),
        machine("dgx-a100-2x8", A100_80, AMPERE, 2, 1600.0, dgx_a100),
        machine("h100-8", H100, HOPPER),
        machine("h100-2x8", H100, HOPPER, 2, 3200.0, dgx_h100),
        machine("h200-8", H200, HOPPER),
        machine("h200-2x8", H200, HOPPER, 2, 3200.0, dgx_h100),
        machine("b200-8", B200, ASSUMED),
        machine("b200-2x8", B200, ASSUMED, 2, 3200.0, dgx_b200),
        machine("l40s-8", L40S, ASSUMED),
        machine("rtx-4090-8", RTX_4090, ASSUMED),
    )
    return {MACHINES / f"{hardware.name}.json": hardware.dumps() for hardware in made}


def main() -> int:
    stale = [path for path, text in generate().items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv[1:]:
        if stale:
            print(f"not current: {', '.join(path.name for path in stale)}; run `make format` and commit them")
        return bool(stale)
    for path in stale:
        path.write_text(generate()[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
