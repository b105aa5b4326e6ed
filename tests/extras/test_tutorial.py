"""The script of docs/tutorial.md, as it stands there: it trains, and goes on where it was stopped, on other ranks too."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"


def run(folder: Path, ranks: int) -> str:
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "train.py"]
    told = subprocess.run(
        [sys.executable, *torchrun], cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=120,
        capture_output=True, text=True,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    return told.stdout


@pytest.mark.extras
def test_the_tutorial_trains_and_resumes(tmp_path: Path) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "train.py").write_text(script)
    first = run(tmp_path, 2)
    assert "step 40: loss" in first and "predicted" in first and "goes on" not in first
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "latest",
        "step-00000030",
        "step-00000040",
    ]
    (tmp_path / "run" / "latest").unlink()
    (tmp_path / "run" / "latest").symlink_to("step-00000030")
    again = run(tmp_path, 2)
    assert again.count("resumes at step 30") == 2
    assert re.findall(r"step 40: loss \S+", again) == re.findall(r"step 40: loss \S+", first)
