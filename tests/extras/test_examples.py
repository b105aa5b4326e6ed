"""The examples that compare with one process, or with torch's classes, run, and find the same losses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def said(ranks: int, script: str, *arguments: str) -> str:
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    told = subprocess.run(
        [*run, str(EXAMPLES / script), *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=400, capture_output=True, text=True,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    return told.stdout


@pytest.mark.extras
@pytest.mark.parametrize(("tensor", "pipeline", "ranks"), [(1, 2, 4), (2, 2, 8)])
def test_degrees_train_as_one_process(tensor: int, pipeline: int, ranks: int) -> None:
    degrees = ["--tensor", str(tensor), "--pipeline", str(pipeline)]
    found = said(ranks, "train_3d.py", *degrees, "--steps", "3")
    (difference,) = re.findall(r"largest difference: (\S+) of the loss", found)
    assert float(difference) < 1e-5


@pytest.mark.extras
def test_families_train_alike_under_osdp_fsdp2_and_ddp() -> None:
    pytest.importorskip("transformers")
    found = said(2, "train_families.py", "--steps", "3")
    for family in ("N&D", "W&S", "I&C", "OPT", "BERT"):
        assert re.search(rf"^{family} .* \d\.\de[-+]\d\d ", found, re.MULTILINE), found
