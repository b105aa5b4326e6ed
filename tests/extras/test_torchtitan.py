"""torchtitan with the one import changed: FSDP2's losses and gradient norms. Needs torchtitan (tried: 0.3.0)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("torchtitan_training.py")


def figures(library: str, *how: str) -> list[float]:
    run = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(SCRIPT),
    ]
    said = subprocess.run(
        [*run, library, *how],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=300,
        capture_output=True,
        text=True,
    )
    assert said.returncode == 0, said.stderr
    found = re.findall(r"^step \d: loss (\S+), norm (\S+)$", said.stdout, re.MULTILINE)
    assert len(found) == 5, said.stdout
    return [float(number) for pair in found for number in pair]


@pytest.mark.extras
@pytest.mark.parametrize(
    ("loss", "dtype", "within"),
    [("chunked", "float32", 1e-6), ("plain", "float32", 1e-6), ("chunked", "bfloat16", 1e-4)],
)
def test_torchtitan_trains_as_with_fsdp2(loss: str, dtype: str, within: float) -> None:
    pytest.importorskip("torchtitan")
    assert figures("osdp", loss, dtype) == pytest.approx(figures("torch", loss, dtype), rel=within)
