"""The page docs/first-hour.md as it stands there: its commands run in its order, a rank is killed, and the run ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "first-hour.md").read_text()
ENVIRONMENT = os.environ | {
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "OMP_NUM_THREADS": "1",
}


def commands() -> list[str]:
    """Those after installing, and before killing."""
    section = PAGE[PAGE.index("    osdp --version") : PAGE.index("## Kill it")]
    return re.findall(r"^    (\S.*)$", re.sub(r"```.*?```", "", section, flags=re.DOTALL), re.MULTILINE)


@pytest.mark.extras
def test_a_strangers_first_hour(tmp_path: Path) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "mine.py").write_text(script)
    *before, export, train = commands()
    assert len(before) == 5 and export.startswith("export ") and "mine.py" in train
    for command in before:
        told = subprocess.run(
            command, shell=True, cwd=tmp_path, env=ENVIRONMENT, timeout=200, capture_output=True, text=True
        )
        assert told.returncode == 0, (command, told.stderr)
        if "search" in command:
            said_of_it = " ".join(told.stdout.split())  # lines are as wide as the terminal
            assert "batch 16 per rank" in said_of_it and "(measured)" in told.stdout.splitlines()[0]
    said = (tmp_path / "said.txt").open("w+")
    run = subprocess.Popen(
        f"{export}; exec {train}", shell=True, cwd=tmp_path, env=ENVIRONMENT, stdout=said, stderr=said
    )
    try:
        while "step 150" not in (text := (tmp_path / "said.txt").read_text()):
            assert run.poll() is None, text
            time.sleep(0.2)
        os.kill(int(re.findall(r"rank 1 is process (\d+)", text)[0]), signal.SIGTERM)
        run.wait(timeout=300)
    finally:
        run.kill()
    text = (tmp_path / "said.txt").read_text()
    assert run.returncode == 0 and text.count("rank 1 is process") == 2, text
    steps = [int(step) for step in re.findall(r"^step (\d+): loss", text, re.MULTILINE)]
    assert sorted(set(steps)) == list(range(50, 601, 50)) and "peak memory" in text, "none is left out"
