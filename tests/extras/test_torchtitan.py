"""torchtitan with the one import changed: FSDP2's losses and gradient norms. Needs torchtitan (tried: 0.3.0)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("torchtitan_training.py")
TRAINER = Path(__file__).with_name("torchtitan_trainer.py")


def figures(library: str, ranks: int, *how: str, script: Path = SCRIPT, steps: int = 5) -> list[float]:
    run = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(ranks),
        str(script),
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
    assert len(found) == steps, said.stdout
    return [float(number) for pair in found for number in pair]


@pytest.mark.extras
@pytest.mark.parametrize(
    ("ranks", "how", "within"),
    [
        (2, "chunked float32", 1e-6),
        (2, "plain float32", 1e-6),
        (2, "chunked bfloat16", 1e-4),
        (2, "chunked float32 compile", 1e-6),
        (4, "chunked float32 hsdp", 1e-6),
    ],
)
def test_torchtitan_trains_as_with_fsdp2(ranks: int, how: str, within: float) -> None:
    pytest.importorskip("torchtitan")
    # torch's norms of HSDP are 1e-5 from those of its own FSDP over the same ranks, which are the reference.
    of_torch = figures("torch", ranks, *how.replace(" hsdp", "").split())
    assert figures("osdp", ranks, *how.split()) == pytest.approx(of_torch, rel=within)


@pytest.mark.extras
@pytest.mark.parametrize(
    "how",
    [
        "tensor=2",
        "pipeline=2",
        "pipeline=2 schedule=Interleaved1F1B",
        "tensor=2 pipeline=2",
        "pipeline=2 compile=1",
    ],
)
def test_torchtitans_trainer_gives_fsdp2s_losses(how: str, tmp_path: Path) -> None:
    pytest.importorskip("torchtitan")
    of_torch, ours = (
        figures(library, 4, str(tmp_path), *how.split(), script=TRAINER) for library in ("torch", "osdp")
    )
    assert ours == pytest.approx(of_torch, rel=1e-6)


@pytest.mark.extras
def test_torchtitans_checkpoints_load_into_either(tmp_path: Path) -> None:
    pytest.importorskip("torchtitan")
    for saves in ("torch", "osdp"):
        how = (str(tmp_path / saves), "pipeline=2")
        whole = figures(saves, 4, *how, "save=async", script=TRAINER)
        for loads in ("torch", "osdp"):
            rest = figures(loads, 4, *how, "load=2", script=TRAINER, steps=3)
            assert rest == pytest.approx(whole[4:], rel=1e-6), (saves, loads)
