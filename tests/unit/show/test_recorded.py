"""A step that torch.profiler recorded, as a time line beside the predicted one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import osdp
from osdp.base.printed import plain
from osdp.cli.main import main
from osdp.errors import FormatError
from osdp.plan.timeline import Timeline
from tests.unit.gpt_descriptions import gpt, machine


def ran(name: str, begin: float, end: float) -> dict[str, Any]:
    """Milliseconds, as torch writes them: microseconds after some moment long ago."""
    return {"ph": "X", "name": name, "pid": 1, "tid": 1, "ts": 5e9 + 1e3 * begin, "dur": 1e3 * (end - begin)}


def allocated(at: float, total: int, device: int = 0) -> dict[str, Any]:
    args = {"Total Allocated": total, "Bytes": 1, "Device Type": device}
    return {"ph": "i", "name": "[memory]", "ts": 5e9 + 1e3 * at, "args": args}


STEP = [
    {"ph": "M", "name": "process_name", "args": {"name": "python"}},
    ran("aten::mm", 1, 2),
    ran("model forward", 0, 10),
    ran("a all-gather", 0, 3),
    ran("a forward", 2, 6),
    ran("wait for a all-gather", 2, 3),
    ran("b forward", 6, 9),
    ran("b backward", 10, 14),
    ran("b reduce-scatter", 13, 16),
    ran("b all-reduce between lines", 16, 17),
    ran("c reduce-scatter between lines", 17, 18),
    ran("a recomputation", 14, 15),
    ran("a backward", 15, 18),
    ran("c all-reduce", 17, 20),
    ran("Optimizer.step#AdamW.step", 20, 24),
    ran("somebody else's", 30, 40),
    allocated(1, 500),
    allocated(4, 1500),
    allocated(5, 9000, device=1),
    allocated(12, 700),
]


def written(path: Path, events: object) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def test_a_step_is_what_the_innermost_range_computes_less_what_is_waited_for(tmp_path: Path) -> None:
    step = Timeline.of_trace(written(tmp_path / "step.json", STEP))
    found = [
        (e.resource, e.action, e.phase, e.name, round(e.begin_s * 1e3, 6), round(e.end_s * 1e3, 6))
        for e in step.events
    ]
    assert [f[2:] for f in found if f[0] == "computation"] == [
        ("forward", "", 0, 2),  # the root's own
        ("forward", "a", 3, 6),
        ("forward", "b", 6, 9),
        ("forward", "", 9, 10),
        ("backward", "b", 10, 14),
        ("recompute", "a", 14, 15),
        ("backward", "a", 15, 18),
        ("optimizer", "", 20, 24),
    ]
    assert [f for f in found if f[0] != "computation"] == [
        ("communication", "gather", "forward", "a", 0, 3),
        ("communication", "reduce", "backward", "b", 13, 16),
        ("between hosts", "average", "backward", "b", 16, 17),
        ("between hosts", "average", "backward", "c", 17, 18),
        ("communication", "all_reduce", "backward", "c", 17, 20),
    ]
    times = (step.step_time_s, step.compute_s, step.communication_s, step.overlap_s, step.optimizer_s)
    assert times == pytest.approx((24e-3, 17e-3, 10e-3, 7e-3, 4e-3))
    assert step.exposed_communication_s == pytest.approx(3e-3)
    assert [(round(s * 1e3, 6), size) for s, size in step.memory] == [(0, 0), (1, 0), (4, 1000), (12, 200)]
    assert step.peak_memory_bytes == 1000


def test_a_wait_within_a_module_does_not_end_it(tmp_path: Path) -> None:
    events = [ran("a backward", 0, 9), ran("wait for b reduce-scatter", 3, 5), ran("b reduce-scatter", 1, 5)]
    step = Timeline.of_trace(written(tmp_path / "step.json", events))
    spans = [(e.begin_s, e.end_s) for e in step.events if e.resource == "computation"]
    assert spans == [pytest.approx((0, 3e-3)), pytest.approx((5e-3, 9e-3))]
    assert step.memory == () and step.peak_memory_bytes == 0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"traceEvents": 3}',
        b'{"traceEvents": [3]}',
        b'{"traceEvents": [{"ph": "X", "name": "a forward"}]}',
        b'{"traceEvents": [{"ph": "X", "name": "a forward", "ts": "soon", "dur": 1}]}',
        b'{"traceEvents": [{"name": "[memory]", "args": {"Device Type": 0}}]}',
        b'{"traceEvents": []}',
        b"[" * 100000,
        b"\xff\xfe",
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "step.json"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"step.json: (not a trace|the trace has no step)") as caught:
        Timeline.of_trace(path)
    assert caught.value.field == "traceEvents"


def test_a_trace_without_a_sharded_model_says_so(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="'MODULE forward'"):
        Timeline.of_trace(written(tmp_path / "step.json", [ran("aten::mm", 0, 1), ran("forward", 0, 1)]))


def test_predicted_and_measured_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = osdp.search(gpt(2, 128), memory="1GiB", world_size=8, hardware=machine(), batch_size=1)
    plan.save(tmp_path / "plan.json")
    recorded = written(tmp_path / "recorded.json", STEP)
    predicted, measured = plan.simulate(), Timeline.of_trace(recorded)
    trace = predicted.chrome_trace(measured)["traceEvents"]
    assert {e["args"]["name"]: e["pid"] for e in trace if e["name"] == "process_name"} == {
        "predicted": 0,
        "measured": 1,
    }
    assert sum(e["pid"] == 1 and e["ph"] == "X" for e in trace) == len(measured.events)

    lines = plain(predicted.beside(measured), width=100).splitlines()
    assert lines[0] == "predicted" and "measured" in lines
    ends = [len(line) for line in lines if line.startswith("memory  ")]
    assert max(ends) <= 100 and ends[0] < ends[1]  # on one scale: the measured step is longer
    step = next(line for line in lines if line.startswith("step "))
    assert step.split()[-2:] == ["24", "ms"]

    figure = predicted.plot(measured)
    labels = [t.get_text() for t in figure.axes[0].get_yticklabels()]
    assert labels[:2] == ["computation, predicted", "computation, measured"]
    assert "between hosts, measured" in labels and "between hosts, predicted" not in labels
    held = figure.axes[1].lines[0].get_ydata()
    assert max(held) - held[0] == pytest.approx(1000 / 2**20)

    command = ["simulate", str(tmp_path / "plan.json"), "--measured", str(recorded)]
    picture = tmp_path / "step.svg"
    assert main([*command, "--plot", str(picture), "--trace", str(tmp_path / "both.json")]) == 0
    assert "measured" in capsys.readouterr().out and "<svg" in picture.read_text()
    assert len(json.loads((tmp_path / "both.json").read_text())["traceEvents"]) == len(trace)
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measured"]["step_time_s"] == pytest.approx(24e-3)
    assert main([*command[:-1], str(tmp_path / "none.json")]) == 2
    assert main([*command[:-1], str(tmp_path / "plan.json")]) == 2
    assert "not a trace of torch.profiler" in capsys.readouterr().err
