"""The shipped machines that nobody measured: made from datasheets by one rule (tools/machines.py)."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from osdp.hardware.hardware import Hardware

TOOL = Path(__file__).parents[3] / "tools" / "machines.py"


@pytest.fixture(scope="module")
def machines() -> Any:
    spec = importlib.util.spec_from_file_location("machines", TOOL)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_shipped_files_are_what_the_tool_writes(machines: Any) -> None:
    for path, text in machines.generate().items():
        assert path.read_text() == text, f"{path.name}: run `make format`"


GPUS = {
    "a100-8": "A100_80",
    "a100-40gb-8": "A100_40",
    "h100-8": "H100",
    "h200-8": "H200",
    "b200-8": "B200",
    "l40s-8": "L40S",
    "rtx-4090-8": "RTX_4090",
}


@pytest.mark.parametrize("name", GPUS)
def test_nothing_exceeds_the_datasheet(machines: Any, name: str) -> None:
    gpu, hardware = getattr(machines, GPUS[name]), Hardware.load(name)
    assert hardware.kernel_rates is not None and hardware.protocols
    assert hardware.kernel_rates.memory_bytes_per_s < gpu.memory_bytes_per_s
    assert machines.OPTIMIZER_BYTES / 4 / hardware.optimizer_s_per_byte < gpu.memory_bytes_per_s
    assert hardware.flops_per_s < gpu.fp32_flops_per_s
    assert hardware.flops_per_s_by_dtype["bfloat16"] < gpu.bf16_flops_per_s
    assert hardware.flops_per_s_by_dtype["tf32"] < gpu.tf32_flops_per_s
    assert hardware.memory_bytes is not None and hardware.memory_bytes <= gpu.memory_bytes
    for link in (hardware.all_gather, hardware.reduce_scatter, hardware.all_reduce):
        assert 1 / link.beta_s_per_byte < gpu.link_bytes_per_s
    assert all(p.bandwidth_share <= 1 for p in hardware.protocols)


def test_the_two_a100_differ_in_size_and_bandwidth_of_their_memory_alone() -> None:
    small, large = (asdict(Hardware.load(name)) for name in ("a100-40gb-8", "a100-8"))
    differing = {key for key in small if small[key] != large[key]}
    assert differing == {"name", "source", "memory_bytes", "optimizer_s_per_byte", "kernel_rates"}
    rates = (small["kernel_rates"], large["kernel_rates"])
    assert {key for key in rates[0] if rates[0][key] != rates[1][key]} == {"memory_bytes_per_s"}
    bandwidth = 1555 / 2039
    assert rates[0]["memory_bytes_per_s"] == pytest.approx(bandwidth * rates[1]["memory_bytes_per_s"])
    assert large["optimizer_s_per_byte"] == pytest.approx(bandwidth * small["optimizer_s_per_byte"])
