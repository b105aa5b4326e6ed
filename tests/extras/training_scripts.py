"""Training scripts of frameworks, which end by printing their figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def figures_of(command: list[str]) -> dict[str, Any]:
    """Runs a script and returns what it prints: a line of JSON that begins with its losses."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith('{"losses"')]
    return json.loads(line)  # type: ignore[no-any-return]
