"""Under torchelastic: a rank is killed, all are started again, and the losses are those of a run that nobody killed."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
RESUME = runpy.run_path(str(EXAMPLES / "resume.py"))
STEPS = RESUME["STEPS"]

# `examples/resume.py`, in which rank 1 kills itself in the first start, while a checkpoint may be being written.
SCRIPT = f"""
import json, os, signal, sys
sys.path.insert(0, {str(EXAMPLES)!r})
import resume

rank, start = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
folder, victim = sys.argv[1], int(sys.argv[2])

def told(step, loss):
    with open(f"{{folder}}/losses-{{rank}}-{{start}}.jsonl", "a") as file:
        file.write(json.dumps([step, loss]) + "\\n")
    if (rank, start, step) == (1, 0, victim):
        os.kill(os.getpid(), signal.SIGKILL)

resume.train(folder + "/run", told)
"""


def begun(folder: Path, victim: int) -> subprocess.Popen[str]:
    folder.mkdir()
    (folder / "script.py").write_text(SCRIPT)
    torchrun = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "--max-restarts=1",
        "--monitor-interval=0.1",
    ]
    return subprocess.Popen(
        [sys.executable, *torchrun, str(folder / "script.py"), str(folder), str(victim)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def losses(run: subprocess.Popen[str], folder: Path) -> list[dict[int, float]]:
    """Rank 1's by step, of each start."""
    _, told = run.communicate(timeout=120)
    assert run.returncode == 0, told
    files = sorted(folder.glob("losses-1-*.jsonl"))
    return [dict(map(json.loads, file.read_text().splitlines())) for file in files]


@pytest.mark.extras
def test_losses_go_on_as_if_nobody_had_been_killed(tmp_path: Path) -> None:
    runs = {
        folder: begun(folder, victim)
        for folder, victim in ((tmp_path / "whole", -1), (tmp_path / "killed", 17))
    }
    assert STEPS * RESUME["PAUSE_S"] >= 60, "it lasts long enough to be killed by hand"
    (whole,), (first, second) = (losses(run, folder) for folder, run in runs.items())
    assert sorted(whole) == list(range(STEPS)) and sorted(first) == list(range(18))
    # Of the save after step 14, two steps before the death, nobody can say whether it was complete by then.
    assert min(second) in (10, 15) and max(second) == STEPS - 1
    assert {**first, **second} == whole
    steps = sorted(path.name for path in (tmp_path / "killed" / "run").iterdir())
    assert steps == ["latest", "step-00000055", "step-00000060"]
