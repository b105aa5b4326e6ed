"""What a report is for people and for loggers: text, a table, plain numbers, a picture."""

from __future__ import annotations

import dataclasses
import json
import sys

import pytest
from rich.console import Console

import osdp
from osdp.sharding.report import Report

FULL = Report(
    0.100, 0.125, 3 * 2**20, 2 * 2**20, 20, 5 * 2**20, 4 * 2**20, step_times_s=(0.3, 0.2, *([0.125] * 18))
)
BY_HAND = Report(None, None, None, 2**20, 1)


def test_plain_numbers_of_what_is_known() -> None:
    assert FULL.metrics() == {
        "osdp/predicted_step_time_s": 0.100,
        "osdp/measured_step_time_s": 0.125,
        "osdp/predicted_peak_memory_bytes": 3 * 2**20,
        "osdp/measured_peak_memory_bytes": 2 * 2**20,
        "osdp/predicted_reserved_bytes": 5 * 2**20,
        "osdp/measured_reserved_bytes": 4 * 2**20,
        "osdp/steps": 20,
    }
    assert BY_HAND.metrics(prefix="") == {"measured_peak_memory_bytes": 2**20, "steps": 1}
    assert json.loads(json.dumps(FULL.metrics())) == FULL.metrics()


def test_the_table_says_what_the_text_says() -> None:
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        console.print(FULL)
    words = capture.get().split()
    assert words == str(FULL).split()
    assert {"100", "125", "-20.0%", "+50.0%", "+25.0%"} <= set(words)


def test_the_time_of_an_assumed_machine_has_no_error() -> None:
    shown = str(dataclasses.replace(FULL, assumed_machine="a100-8"))
    assert "-20.0%" not in shown and "+50.0%" in shown  # memory does not depend on the machine's speed
    assert "a100-8" in shown and 'hardware="this"' in shown


def test_a_peak_above_the_prediction_is_explained() -> None:
    above = dataclasses.replace(FULL, measured_peak_memory_bytes=4 * 2**20)
    assert "fused=True" in str(above)
    for report in (FULL, BY_HAND, dataclasses.replace(FULL, measured_peak_memory_bytes=3 * 2**20)):
        assert "fused=True" not in str(report)


def test_the_picture_shows_every_step_and_what_is_known_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, memory = FULL.plot().axes
    assert [round(y) for y in steps.lines[0].get_ydata()[:3]] == [300, 200, 125]
    assert steps.lines[1].get_ydata()[0] == pytest.approx(100)
    assert [bar.get_height() for bar in memory.patches] == [3, 2, 5, 4]
    assert [bar.get_height() for bar in BY_HAND.plot().axes[1].patches] == [1]
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(osdp.InvalidProblemError, match=r"osdp\[plot\]"):
        FULL.plot()
