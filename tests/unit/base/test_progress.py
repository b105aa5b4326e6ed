"""Progress: silent at first, a line on a terminal, records through logging, and no search that it changes."""

from __future__ import annotations

import io
import logging
import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import osdp
from osdp.base import progress
from osdp.base.progress import Progress
from osdp.hardware.hardware import Hardware
from osdp.planning.objectives import gap_in_words
from osdp.planning.plan_builder import plan_of
from tests.unit.problems import problem_of

PLANNER = runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "planner.py"))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The time, which passes as the test says."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    yield now


def told(clock: list[float], seconds: float, every_s: float = 1 / 16) -> None:
    with Progress("osdp.search") as tell:
        for i in range(round(seconds / every_s)):
            tell(f"part {i}")
            clock[0] += every_s


def test_a_terminal_gets_one_line_after_a_second_and_keeps_none(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    told(clock, 0.75)
    assert terminal.getvalue() == ""
    told(clock, 3.0)
    lines = terminal.getvalue().split("\r\x1b[K")
    assert lines[0] == lines[-1] == "" and len(lines) - 2 == 8, "some a second, and then it is gone"
    assert lines[1] == "osdp.search: part 16, 1 s" and "\n" not in terminal.getvalue()


def test_other_ranks_threads_files_and_a_raised_level_get_nothing(
    clock: list[float], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "stderr", file := io.StringIO())
    told(clock, 3.0)
    assert file.getvalue() == "" and caplog.records == []
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("RANK", "1")
    told(clock, 3.0)
    monkeypatch.delenv("RANK")
    thread = threading.Thread(target=told, args=(clock, 3.0))
    thread.start()
    thread.join()
    with caplog.at_level(logging.ERROR, "osdp"):
        told(clock, 3.0)
    assert terminal.getvalue() == ""


def test_who_logs_gets_records_and_no_line(
    clock: list[float], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with caplog.at_level(logging.INFO, "osdp"):
        told(clock, 25.0)
    assert [r.message for r in caplog.records] == [
        "osdp.search: part 16, 1 s",
        "osdp.search: part 176, 11 s",
        "osdp.search: part 336, 21 s",
        "osdp.search: done after 25.0 s",
    ]
    assert terminal.getvalue() == "" and {r.name for r in caplog.records} == {"osdp"}
    caplog.clear()
    monkeypatch.setenv("RANK", "1")
    with caplog.at_level(logging.INFO, "osdp"):
        told(clock, 25.0)
    assert caplog.records == [], "rank 0 speaks for all"


def test_the_library_itself_prints_nothing_and_configures_nothing() -> None:
    code = (
        "import logging, osdp; log = logging.getLogger('osdp'); log.warning('lost'); "
        "print(log.handlers, logging.root.handlers)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.stdout == "[<NullHandler (NOTSET)>] []\n" and ran.stderr == ""


def test_a_search_tells_its_gap_and_finds_the_same_plan() -> None:
    """Many phases bind."""
    transformer = PLANNER["transformer"]([w for w in (1024, 2048, 4096) for _ in range(16)])
    problem = problem_of(transformer, Hardware.load("rtx-titan-8"), 8)
    wish = problem.wish(16 * 10**9)
    wish.played_operators = 20000  # an eighth of the time
    gaps: list[float] = []
    told = problem.planner.search(wish, gaps.append)
    silent = problem.planner.search(wish)
    assert gaps and all(gap <= 1 for gap in gaps)
    first, second = (plan_of(problem, answer) for answer in (told, silent))
    assert first == second

    def broken(_: float) -> None:
        raise KeyError("of the listener")

    with pytest.raises(KeyError, match="of the listener"):
        problem.planner.search(wish, broken)


def test_a_gap_in_words() -> None:
    assert gap_in_words(1.0) == "no plan yet in this pass"
    assert gap_in_words(0.00421) == "no plan of this pass is more than 0.42% faster than its best"
    assert gap_in_words(-1e-12) == "no plan of this pass is more than 0.00% faster than its best"


def test_a_profile_tells_its_steps(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "osdp"):
        osdp.profile(seconds=1.01)
    messages = " ".join(r.message for r in caplog.records)
    for what in (
        "timing collectives",
        "timing matrix products and the optimizer",
        "collectives during computation",
    ):
        assert what in messages
