"""A played step as a picture: what each cell of it shows, and what the command line writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import osdp
from osdp.base.printed import plain
from osdp.cli.main import main
from osdp.plan.timeline import Timeline, TimelineEvent
from osdp.show.timeline_plot import busy, most_held, rows
from tests.unit.gpt_descriptions import gpt, machine

# 10 s: computes 0-4 and 5-10, of which the last 2 s are the optimizer; communicates 4-5.5.
STEP = Timeline(
    step_time_s=10.0,
    compute_s=7.0,
    communication_s=1.5,
    overlap_s=0.5,
    optimizer_s=2.0,
    peak_memory_bytes=80,
    events=(
        TimelineEvent("computation", "compute", "forward", "a", 0.0, 4.0),
        TimelineEvent("communication", "gather", "backward", "a", 4.0, 5.5),
        TimelineEvent("computation", "compute", "backward", "a", 5.0, 8.0),
        TimelineEvent("computation", "compute", "optimizer", "", 8.0, 10.0),
    ),
    memory=((0.0, 10), (1.0, 40), (4.5, 80), (5.0, 20)),
)


def test_each_cell_shows_the_share_and_the_phase_of_its_time() -> None:
    computation, communication = rows(STEP).values()
    assert list(rows(STEP)) == ["computation", "communication"]
    shares = busy(computation, 10.0, 4)  # of 2.5 s
    assert [share for share, _ in shares] == pytest.approx([1.0, 0.6, 1.0, 1.0])
    assert [phase for _, phase in shares] == ["forward", "forward", "backward", "optimizer"]
    assert [share for share, _ in busy(communication, 10.0, 4)] == pytest.approx([0, 0.4, 0.2, 0])
    assert most_held(STEP, 5) == [40, 40, 80, 20, 20]
    assert most_held(STEP, 1) == [80]


def test_it_is_as_wide_as_the_terminal() -> None:
    for width in (60, 100):
        lines = plain(STEP, width=width).splitlines()
        assert lines[0].startswith("computation    ███") and len(lines[0]) <= width
        assert lines[1].startswith("communication  ") and set(lines[1][15:]) <= set(" ░▒▓█")
        assert "█" in lines[2] and lines[3].endswith("10 s") and len(lines[3]) == width - 1
        assert lines[4].split() == ["█", "forward", "█", "backward", "█", "optimizer"]
        assert any(line.startswith("peak memory") for line in lines)


def test_lanes_are_rows_of_their_own() -> None:
    plan = osdp.search(
        gpt(2, 128),
        memory="1GiB",
        modes="HYBRID_SHARD",
        world_size=8,
        hosts=2,
        batch_size=1,
        hardware=machine(),
    )
    step = plan.simulate()
    assert list(rows(step)) == ["computation", "communication", "between hosts"]
    names = [e["args"]["name"] for e in step.chrome_trace()["traceEvents"] if e["ph"] == "M"]
    assert names == list(rows(step))


def test_the_command_line_draws_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = osdp.search(gpt(2, 128), memory="1GiB", world_size=8, hardware=machine(), batch_size=1)
    plan.save(tmp_path / "plan.json")
    trace, picture = tmp_path / "trace.json", tmp_path / "step.svg"
    command = ["simulate", str(tmp_path / "plan.json")]
    assert main([*command, "--trace", str(trace), "--plot", str(picture)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("computation ") and "peak memory" in said
    assert json.loads(trace.read_text())["traceEvents"] and "<svg" in picture.read_text()
    assert main([*command, "--json", "--world-size", "4"]) == 0
    assert json.loads(capsys.readouterr().out)["step_time_s"] == plan.simulate(world_size=4).step_time_s
    assert main([*command, "--hardware", "nowhere.json"]) == 2
    assert main(["simulate", str(tmp_path / "none.json")]) == 2
    osdp.Plan.uniform(gpt(2, 128)).save(tmp_path / "plan.json")
    assert main(command) == 2 and "its hardware" in capsys.readouterr().err
