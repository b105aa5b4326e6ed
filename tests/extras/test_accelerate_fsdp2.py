"""Accelerate's own FSDP2 path with the one import changed: FSDP2's losses, gradient norms and final state."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("accelerate_training.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def figures(library: str, *how: str) -> list[float]:
    said = subprocess.run(
        [*TORCHRUN, str(SCRIPT), library, *how],
        env=os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "1"},
        timeout=300,
        capture_output=True,
        text=True,
    )
    assert said.returncode == 0, said.stderr
    steps = re.findall(r"^step \d: loss (\S+), norm (\S+)$", said.stdout, re.MULTILINE)
    (total, package) = re.findall(r"^state (\S+) of FSDPLlamaForCausalLM, (\w+)", said.stdout, re.MULTILINE)[
        0
    ]
    assert len(steps) == 6 and package == library, said.stdout
    return [*(float(number) for pair in steps for number in pair), float(total)]


@pytest.mark.extras
@pytest.mark.parametrize("how", [(), ("tied",), ("efficient",)], ids=str)
def test_accelerate_trains_as_with_fsdp2(how: tuple[str, ...]) -> None:
    pytest.importorskip("accelerate")
    assert figures("osdp", *how) == pytest.approx(figures("torch", *how), rel=1e-6)
