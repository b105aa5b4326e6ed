"""The scripts of examples/drop_in: written for torch's FSDP, and the same but for the line that imports it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.extras
FOLDER = Path(__file__).parents[2] / "examples" / "drop_in"
CHANGES = {
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n": (
        "from osdp import FullyShardedDataParallel as FSDP\n"
    ),
    "from torch.distributed.fsdp import fully_shard\n": "from osdp import fully_shard\n",
}


def losses(script: Path, *arguments: str) -> dict[int, float]:
    """By step, as rank 0 printed them."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(FOLDER),
        "PYTHONWARNINGS": "ignore",
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(script), *arguments], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, f"{script}: {done.stdout}\n{done.stderr}"
    return {int(n): float(loss) for n, loss in re.findall(r"step (\d+): loss ([\d.]+)", done.stdout)}


def changed(script: Path, folder: Path) -> Path:
    text = script.read_text()
    lines = [line for line in CHANGES if line in text]
    assert len(lines) == 1
    after = folder / script.name
    after.write_text(text.replace(lines[0], CHANGES[lines[0]]))
    return after


def compare(name: str, folder: Path, *runs: tuple[str, ...], steps: int, tolerance: float = 1e-4) -> None:
    """`runs`: the arguments of one run after another."""
    script = FOLDER / f"{name}.py"
    found = []
    for version, path in (("before", script), ("after", changed(script, folder))):
        place = folder / version
        found.append([losses(path, *(a.format(out=place) for a in arguments)) for arguments in runs or ((),)])
    before, after = found
    assert sum(map(len, before)) == steps
    for theirs, ours in zip(before, after, strict=True):
        assert theirs.keys() == ours.keys()
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
        assert max(theirs.values()) > 1.05 * min(theirs.values()), "nothing was learned"


def test_blocks_and_the_model_by_fully_shard(tmp_path):
    compare("fully_shard_blocks", tmp_path, ("--out", "{out}"), steps=10)


def test_a_bare_wrap(tmp_path):
    compare("bare", tmp_path, steps=11)


def test_blocks_by_a_policy_in_bfloat16(tmp_path):
    compare("auto_wrap_policy", tmp_path, steps=10, tolerance=5e-3)


def test_a_t5_with_types_of_state_dicts(tmp_path):
    compare("t5_state_dict_type", tmp_path, ("--out", "{out}"), steps=10)


def test_fairseqs_subclass_and_wraps(tmp_path):
    compare("fairseq_style", tmp_path, steps=10)


def test_nanogpts_loop_is_resumed(tmp_path):
    again = ("--out", "{out}", "--init_from", "resume")
    compare("nanogpt_resume", tmp_path, ("--out", "{out}", "--max_iters", "5"), again, steps=12)
