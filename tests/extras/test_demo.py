"""The demo, smaller: it does what it says, and each part's title says what the part is for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("describe", "profile", "search", "DistributedDataParallel", "train", "report", "checkpoint")


@pytest.mark.extras
def test_the_demo_describes_profiles_searches_trains_and_reloads_on_another_number_of_ranks(
    tmp_path: Path,
) -> None:
    small = ["--layers", "2", "--width", "64", "--context", "32", "--steps", "12", "--out", str(tmp_path)]
    told = subprocess.run(
        [str(ROOT / "examples" / "demo.sh"), sys.executable, "2", *small],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=400, capture_output=True, text=True,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    titles = re.findall(r"^== (\w+): (.+)$", told.stdout, re.MULTILINE)
    assert tuple(what for what, _ in titles[: len(PARTS)]) == PARTS
    assert all(len(why.split()) > 4 for _, why in titles), "a title says what it means"
    limit, whole = map(float, re.findall(r"demo: ([\d.]+) MiB a rank.* take ([\d.]+) MiB", told.stdout)[0])
    assert limit < whole and f"osdp explain {tmp_path}/plan.json" in told.stdout
    (difference,) = re.findall(r"largest difference over 10 steps: (\S+)", told.stdout)
    assert float(difference) < 1e-4
    assert "saved by 2 ranks" in told.stdout and "loaded by 1 rank" in told.stdout
    assert "the same to 6 digits" in told.stdout and (tmp_path / "plan.json").is_file()
