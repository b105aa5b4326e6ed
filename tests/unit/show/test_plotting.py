"""A frontier as a picture and a table."""

from __future__ import annotations

import importlib.util

import matplotlib
import pytest

from osdp.errors import InvalidProblemError
from osdp.plan.frontier import Frontier, FrontierPoint
from osdp.show.frontier_plot import labelled

matplotlib.use("Agg")


def point(gib: float, throughput: float, batch: int) -> FrontierPoint:
    return FrontierPoint(int(gib * 2**30), throughput, batch / throughput, batch, int(gib * 2**30) - 1)


FRONTIER = Frontier((point(1, 2.0, 1), point(2, 3.0, 4), point(4, 3.5, 4), point(8, 3.75, 16)))


def test_matplotlib_draws_every_point_and_where_the_batch_changes() -> None:
    ax = FRONTIER.plot()
    line = ax.lines[0]
    assert list(line.get_xdata()) == [1, 2, 4, 8] and list(line.get_ydata()) == [2.0, 3.0, 3.5, 3.75]
    assert line.get_drawstyle() == "steps-post", "between two limits the plan of the smaller one is the best"
    assert [text.get_text() for text in ax.texts] == ["b=1", "b=4", "b=16"]
    assert "GiB" in ax.get_xlabel() and "samples/s" in ax.get_ylabel()
    other = Frontier(FRONTIER.points[:2]).plot(ax=ax)
    assert other is ax and len(ax.lines) == 4


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidProblemError, match="pip install"):
        FRONTIER.plot()


def test_what_cannot_be_drawn_is_told() -> None:
    with pytest.raises(InvalidProblemError, match="no points"):
        Frontier(()).plot()


def test_many_batch_sizes_are_thinned_out() -> None:
    points = [point(i + 1, i + 1.0, i + 1) for i in range(60)]
    kept = labelled(points)
    assert len(kept) == 10 and kept[0] is points[0] and kept[-1] is points[-1]


def test_the_table_has_a_line_for_each_point() -> None:
    lines = str(FRONTIER).splitlines()
    assert len(lines) == 5 and lines[0].split()[:2] == ["memory", "limit"]
    assert lines[4].split() == ["8.00", "GiB", "3.75", "4.27", "s", "16", "8.00", "GiB"]
