"""benchmarks/truth.py goes on with results of this machine only."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def of_support() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == "support"]


@pytest.fixture
def truth(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    # Benchmarks and the tests among ranks each have a package `support`.
    others = {name: sys.modules.pop(name) for name in of_support()}
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import truth

    def measure(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing is to be measured")

    monkeypatch.setattr(truth, "run_ranks", measure)
    yield truth
    for name in [*of_support(), "truth"]:
        del sys.modules[name]
    sys.modules.update(others)


def resume(truth: Any, monkeypatch: pytest.MonkeyPatch, file: Path, **changes: object) -> None:
    """With results of a machine that differs from this one by `changes`."""
    result = {"alone_s": 1.0, "rows": [], "machine": {**truth.machine(), **changes}}
    file.write_text(json.dumps({"one-host, deep GPT": result}))
    monkeypatch.setattr(sys, "argv", ["truth.py", "--json", str(file), "--minutes", "0"])
    truth.main()


@pytest.mark.parametrize("what", ["processor", "cores", "torch"])
def test_results_of_another_machine_are_refused_and_stay(
    what: str, truth: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "truth.json"
    with pytest.raises(SystemExit) as ended:
        resume(truth, monkeypatch, file, **{what: "another"})
    assert ended.value.code == 2
    assert f"{file} was measured on another machine: {what} was another at 'one-host, deep GPT'" in (
        capsys.readouterr().err
    )
    assert json.loads(file.read_text())["one-host, deep GPT"]["machine"][what] == "another"


@pytest.mark.parametrize("changes", [{}, {"date": "2026-01-01", "load": 99.0}], ids=["now", "later"])
def test_results_of_this_machine_are_gone_on_with(
    changes: dict[str, object], truth: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(truth, "show", lambda found: None)
    resume(truth, monkeypatch, tmp_path / "truth.json", **changes)
