"""Hardware figures: known machines, files, and the fit of alpha and beta."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import osdp
from osdp.description.model_description import ModelDescription
from osdp.errors import FormatError, InvalidProblemError
from osdp.hardware.alpha_beta_fit import fit
from osdp.hardware.hardware import Collective, Hardware, known_machines
from osdp.profiling.machine_speed import SIZES
from tests.unit.gpt_descriptions import operator


def test_known_machines_are_there_with_their_sources() -> None:
    of_one_host = {
        "rtx-titan-8",
        "a100-8",
        "a100-40gb-8",
        "h100-8",
        "h200-8",
        "b200-8",
        "l40s-8",
        "rtx-4090-8",
    }
    assert set(known_machines()) == of_one_host | {
        "a100-2x8",
        "dgx-a100-2x8",
        "h100-2x8",
        "h200-2x8",
        "b200-2x8",
    }
    for name in known_machines():
        hardware = Hardware.load(name)
        assert hardware.name == name and len(hardware.source) > 40
        assert hardware.world_size == (16 if "-2x8" in name else 8)
        assert (hardware.between_hosts is not None) == ("-2x8" in name)
        if hardware.between_hosts is not None:
            assert hardware.between_hosts.beta_s_per_byte > hardware.all_gather.beta_s_per_byte
            assert hardware.between_hosts.alpha_s > hardware.all_gather.alpha_s
        # A collective of 64 MiB takes milliseconds, not microseconds or seconds, on any of them.
        link = hardware.all_gather
        assert 1e-4 < 7 * (link.alpha_s + 2**23 * link.beta_s_per_byte) < 0.1
        assert 1e12 < hardware.flops_per_s < 1e15


def test_hardware_comes_back_from_its_file_equal(tmp_path: Path) -> None:
    hardware = replace(Hardware.load("a100-8"), gamma_s={"a.b": 1 / 3, "": 1e-300}, memory_bytes=None)
    hardware.save(tmp_path / "here.json")
    assert Hardware.load(tmp_path / "here.json") == hardware
    assert Hardware.load(str(tmp_path / "here.json")) == hardware


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    for name in ("a100-9", str(tmp_path / "nothing.json"), str(tmp_path)):
        with pytest.raises(InvalidProblemError, match="rtx-titan-8"):
            Hardware.load(name)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("world_size", 0),
        ("memory_bytes", -1),
        ("flops_per_s", 0),
        ("optimizer_s_per_byte", -1e-9),
        ("optimizer_s_per_byte", True),
        ("device", 3),
    ],
)
def test_figures_that_mean_nothing_are_refused_by_name(tmp_path: Path, field: str, value: object) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(json.loads(Hardware.load("h100-8").dumps()) | {field: value}))
    with pytest.raises(FormatError) as caught:
        Hardware.load(path)
    assert caught.value.field == field


def test_negative_costs_of_collectives_and_operators_are_refused() -> None:
    hardware = Hardware.load("h100-8")
    for broken, field in (
        (replace(hardware, all_reduce=Collective(-1e-6, 0.0)), "all_reduce.alpha_s"),
        (replace(hardware, gamma_s={"x.y": -1.0}), "gamma_s.x.y"),
        (replace(hardware, memory_bytes=2**58 + 1), "memory_bytes"),
    ):
        with pytest.raises(FormatError) as caught:
            Hardware.loads(broken.dumps())
        assert caught.value.field == field


def test_the_fit_finds_the_line_and_never_goes_negative() -> None:
    found = fit(SIZES, [2e-5 + size * 3e-10 for size in SIZES])
    assert found.alpha_s == pytest.approx(2e-5) and found.beta_s_per_byte == pytest.approx(3e-10)
    disturbed = fit(SIZES, [(2e-5 + size * 3e-10) * (1 + 0.1 * (-1) ** i) for i, size in enumerate(SIZES)])
    assert disturbed.alpha_s == pytest.approx(2e-5, rel=0.25) and disturbed.beta_s_per_byte == pytest.approx(
        3e-10, rel=0.25
    )
    shrinking = fit(SIZES, [1e-3 / (i + 1) for i in range(len(SIZES))])
    assert shrinking.beta_s_per_byte == 0 and shrinking.alpha_s > 0
    convex = fit([1, 2], [1e-6, 1e-3])
    assert convex.alpha_s == 0 and convex.beta_s_per_byte > 0


def test_the_rtx_titan_figures_reproduce_the_measured_blocks() -> None:
    """Played, with the known machine's figures: as near as its source says."""
    blocks = json.loads((Path(__file__).parents[2] / "data" / "rtx_titan_8gpu_blocks.json").read_text())[
        "blocks"
    ]

    def step_s(hidden: int, level: int, batch: int, count: int) -> float:
        parts = [
            operator(f"{b}.{name}", "Part", {"weight": (n * hidden, hidden)}, flops=2 * 576 * n * hidden**2)
            for b in range(count)
            for name, n in (("attention", 4), ("mlp", 8))
        ]
        sharded = {"attention": level in (1, 3), "mlp": level in (2, 3)}
        plan = osdp.Plan.uniform(ModelDescription("Blocks", tuple(parts), (), 1, 0), "NO_SHARD")
        choices = {
            p.name: osdp.Choice("FULL_SHARD" if sharded[p.name.split(".")[1]] else "NO_SHARD") for p in parts
        }
        return replace(plan.replace(choices), batch_size=batch).simulate("rtx-titan-8", 8).step_time_s

    errors = [
        abs((step_s(b["hidden"], level, batch, 5) - step_s(b["hidden"], level, batch, 2)) / 3 / measured - 1)
        for b in blocks[1:]
        for batch in (1, 2, 3)
        for level, measured in enumerate(b["time_s"][batch])
    ]
    assert max(errors) < 0.125 and sum(errors) / len(errors) < 0.031
