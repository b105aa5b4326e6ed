"""Plans in terminals of any width and encoding, and on notebooks of any theme."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

import osdp
from osdp.base.drawn_once import drawn_once
from osdp.base.printed import plain
from osdp.cli.main import main
from osdp.plan.plan import Plan
from osdp.show.description_table import table
from osdp.show.notebook import html
from tests.unit.gpt_descriptions import gpt


@pytest.fixture(scope="module")
def plan() -> Plan:
    return osdp.search(gpt(6, 512), memory="900MiB", world_size=8, hardware="rtx-titan-8", batch_size=2)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140])
def test_every_width_shows_whole_names_and_modes(plan: Plan, width: int) -> None:
    wide = set(re.findall(r"\S+", plain(plan, 300)))
    names = {o.name for o in plan.description.operators if o.block is None and o.name in plan.choices} & wide
    assert len(names) > 1
    for text in (plain(plan, width), plan.explain(width=width)):
        shown = set(re.findall(r"[^\s:]+", text))
        assert names <= shown, "a name is left out, or broken into lines"
        assert {c.mode for c in plan.choices.values()} <= shown
        assert all(len(line) <= width for line in text.splitlines())
    assert names <= set(re.findall(r"\S+", plain(table(plan.description), width)))


def test_ascii_output_prints_instead_of_raising(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan.save(tmp_path / "plan.json")
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    for command in ("explain", "simulate"):
        assert main([command, str(tmp_path / "plan.json")]) == 0
    print(plan)
    out.flush()
    text = out.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]
    assert "####" in text and "NO_SHARD" in text and "\\u" not in text


def test_a_name_that_the_encoding_lacks_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["verify", "no-such-file.json"]) == 2
    print("gefäß")
    out.flush()
    assert out.buffer.getvalue() == b"gef\\xe4\\xdf\n"  # type: ignore[attr-defined]


def test_a_defect_has_another_status_than_a_false_claim(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def defect(*_: object, **__: object) -> str:
        raise KeyError("defect")

    plan.save(tmp_path / "plan.json")
    monkeypatch.setattr("osdp.planning.verify.verify", defect)
    assert main(["verify", str(tmp_path / "plan.json")]) == 70
    assert "Traceback" in capsys.readouterr().err


THEMES = {  # text on background: JupyterLab light and dark, VS Code light and dark, Colab dark, plain pages
    "#212121": "#ffffff", "#e0e0e0": "#111111", "#3b3b3b": "#ffffff", "#cccccc": "#1f1f1f",
    "#d5d5d5": "#383838", "#000000": "#ffffff", "#ffffff": "#000000",
}  # fmt: skip


def rgb(color: str) -> list[int]:
    return [int(color[i : i + 2], 16) for i in (1, 3, 5)]


def luminance(channels: list[float]) -> float:
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in channels)
    ]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize(("text", "background"), THEMES.items())
@pytest.mark.parametrize("mode", ["NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD", "HYBRID_SHARD"])
def test_modes_have_contrast_on_every_theme(plan: Plan, mode: str, text: str, background: str) -> None:
    shown = html(Plan.uniform(plan.description, mode))
    (share, color) = set(re.findall(r"color:color-mix\(in srgb,currentColor (\d+)%,(#\w{6})\)", shown)).pop()
    kept = int(share) / 100
    mixed = [kept * t + (1 - kept) * c for t, c in zip(rgb(text), rgb(color), strict=True)]
    low, high = sorted((luminance(mixed), luminance([float(v) for v in rgb(background)])))
    assert (high + 0.05) / (low + 0.05) >= 4.5


def test_a_notebook_draws_a_figure_once(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    plt.switch_backend("Agg")
    plt.close("all")
    figure = plan.simulate().plot()
    assert plt.get_fignums() == [figure.number], "plt.show() of a script finds it"
    monkeypatch.setattr(plt, "get_backend", lambda: "module://matplotlib_inline.backend_inline")
    assert drawn_once(figure) is figure and plt.get_fignums() == []
