"""What `osdp.profile` finds on a device; the cases judge by themselves, since a CPU has other figures."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from training import SAMPLES, Setting, described, train

import osdp
from osdp.base.byte_sizes import format_bytes
from osdp.hardware.hardware import DeviceMemory, Hardware
from osdp.profiling.device_memory import MemoryProbe
from osdp.profiling.machine_speed import SIZES, collective_sizes, products
from osdp.profiling.overlap_by_events import Judgement, Trials, measure_by_events

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "support"))
import gpu_prediction

MIB = 2**20


def positive_and_finite(hardware: Hardware) -> None:
    """Every figure that a profile must find on an accelerator."""
    rates = {"float32": hardware.flops_per_s, **hardware.flops_per_s_by_dtype}
    assert {"float32", "bfloat16", "float16"} <= set(rates), rates
    figures = [*rates.values(), hardware.optimizer_s_per_byte, hardware.memory_bytes or 0]
    assert hardware.host_memory is not None
    figures += [hardware.host_memory.copy.beta_s_per_byte, hardware.host_memory.optimizer_s_per_byte]
    for link in (hardware.all_gather, hardware.reduce_scatter, hardware.all_reduce):
        if hardware.world_size == 1:  # nothing is sent
            continue
        figures.append(link.alpha_s + 2**20 * link.beta_s_per_byte)
        assert link.beta_s_per_byte > 0, link
    assert all(math.isfinite(f) and f > 0 for f in figures), figures
    for f in (hardware.stolen_computation, hardware.communication_delay.alpha_s):
        assert math.isfinite(f) and f >= 0, hardware


def profile(s: Setting) -> None:
    """The machine alone."""
    s.tell(torch.ones(()))
    if s.device.type == "cpu":
        return
    hardware = osdp.profile(seconds=0.3)
    positive_and_finite(hardware)
    assert hardware.device == s.device.type and hardware.world_size == s.world
    m = hardware.device_memory
    if s.device.type == "ordered":  # its own figures: see ordered_device.cpp
        communicator = 8 * MIB if s.world > 1 else 0
        assert m == DeviceMemory(64 * MIB, communicator, 0, 512, 512, 2 * MIB, 0), m
    assert Hardware.loads(hardware.dumps()) == hardware


def profile_model(s: Setting) -> None:
    """With a model: the times of its operators, and what its step leaves unused."""
    s.tell(torch.ones(()))
    if s.device.type == "cpu":
        return
    model = s.model().to(s.device)
    hardware = osdp.profile(model, s.tokens(0)[0], seconds=0.3)
    positive_and_finite(hardware)
    assert hardware.gamma_s["blocks.0.up"] == hardware.gamma_s["blocks.1.up"]
    assert sum(hardware.gamma_s.values()) + sum(hardware.gamma_fixed_s.values()) > 0
    assert sum(hardware.recompute_s.values()) > 0
    assert all(p.grad is None for p in model.parameters())
    m = hardware.device_memory
    if (
        s.device.type == "ordered"
    ):  # in test_profile.py also of a communicator that an earlier profile, the case's before, has seen come
        assert (m.context_bytes, m.communicator_bytes) == (64 * MIB, 8 * MIB if s.world > 1 else 0), m
    for precision in ("fp32", "bf16"):
        plan = osdp.search(
            described(s.model(), precision=precision),
            memory="1GiB",
            world_size=s.world,
            hardware=hardware,
            precision=precision,
        )
        assert osdp.verify(plan) == ""


def sizes(s: Setting) -> None:
    """Collectives of up to 256 MiB, where time and memory allow."""
    s.tell(torch.ones(()))
    found = collective_sizes(s.device, None, s.world, 1000.0)
    if s.device.type == "cpu":
        assert found == SIZES
        return
    assert found == (*SIZES, 16 * MIB, 64 * MIB, 256 * MIB), found
    assert collective_sizes(s.device, None, s.world, 1e-9) == SIZES


def unused_memory(s: Setting) -> None:
    """This device's allocator gives a freed tensor's memory out again for the same size only."""
    s.tell(torch.ones(()))
    if s.device.type != "ordered":
        return

    def step() -> None:
        first = torch.ones(4 * MIB, device=s.device)
        del first
        torch.ones(8 * MIB, device=s.device)

    m = MemoryProbe(s.device).found(step, 0)
    assert m.unused_bytes == 16 * MIB - m.large_block_bytes - m.small_block_bytes, m
    assert MemoryProbe(torch.device("cpu")).found(step, 0) == DeviceMemory()


def report_of_memory(s: Setting) -> None:
    """What the allocator has given out and what it has reserved, beside what was predicted of each."""
    figures = Hardware.load("a100-8")
    m = dataclasses.replace(figures.device_memory, unused_bytes=5 * MIB)
    model = s.model().to(s.device)
    plan = osdp.search(
        described(s.model()), memory="8GiB", world_size=s.world, batch_size=SAMPLES // s.world,
        hardware=dataclasses.replace(figures, device_memory=m), modes="FULL_SHARD", checkpoint=False,
    )  # fmt: skip
    assert plan.predicted is not None
    model = osdp.fully_shard(model, plan)
    train(s, model)
    report = osdp.report(model)
    if s.device.type == "cpu":
        assert report.measured_reserved_bytes is None and "reserved" not in str(report)
        return
    total = plan.predicted.peak_memory_bytes
    beside = m.context_bytes + (2 * m.communicator_bytes if s.world > 1 else 0)
    assert report.predicted_reserved_bytes == total - beside
    blocks = 2 * (m.small_block_bytes + m.large_block_bytes)
    assert report.predicted_peak_memory_bytes == total - beside - blocks - 5 * MIB
    assert report.measured_reserved_bytes is not None
    assert 0 < report.measured_peak_memory_bytes <= report.measured_reserved_bytes
    row = next(line for line in str(report).splitlines() if line.startswith("reserved"))
    assert format_bytes(report.measured_reserved_bytes) in row
    assert format_bytes(report.predicted_reserved_bytes) in row


def contention(s: Setting) -> None:
    """Where streams run by themselves, collectives are at work while the device computes: by its own clock."""
    s.tell(torch.ones(()))
    if s.device.type == "cpu":
        return
    sizes = (4 * MIB, MIB)
    trials = Trials(s.device, None, sizes)
    alone = [took for took, _ in trials.run(2, None).beside()]
    assert all(took > 0 for took in alone), alone
    compute = products(s.device, at_least_s=2 * max(trials.mean(alone)))
    apart = trials.run(0, compute).compute_s
    assert apart > 0
    together = [trials.run(8, compute) for _ in range(3)]
    shares = [share for trial in together for _, share in trial.beside()]
    assert max(shares) > 0.9 and all(0 <= share <= 1 for share in shares), together
    assert (Judgement(alone, apart).stolen(together) or 0.0) < 100
    delay, stolen = measure_by_events(s.device, None, s.world, sizes, 0.2, None)
    assert all(math.isfinite(x) and x >= 0 for x in (delay.alpha_s, delay.beta_s_per_byte, stolen))


def prediction(s: Setting) -> None:
    """As gpu_check does it, of a small model: what is measured has a prediction beside it."""
    s.tell(torch.ones(()))
    if s.device.type == "cpu":
        return
    model = gpu_prediction.WithLoss(s.model().to(s.device))
    tokens = torch.zeros(SAMPLES // s.world, 7, dtype=torch.long, device=s.device)
    row = gpu_prediction.beside_prediction(model, (tokens,), seconds=0.3, steps=2, memory="1GiB")
    predicted, measured = row["predicted"], row["measured"]
    assert all(predicted[name] > 0 and found > 0 for name, found in measured.items()), row
    for told in (predicted, measured):
        assert told["allocated_bytes"] < told["reserved_bytes"], row
    assert json.loads(json.dumps(row)) == row


_ALL = (sizes, profile, profile_model, unused_memory, report_of_memory, contention, prediction)
CASES: dict[str, Callable[[Setting], None]] = {f.__name__: f for f in _ALL}
