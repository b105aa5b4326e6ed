"""Where figures come from: the machine, and how busy it was."""

from __future__ import annotations

import datetime
import os
import platform
from pathlib import Path


def machine() -> dict[str, object]:
    import torch

    names = [x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")]
    return {
        "date": str(datetime.date.today()),
        "processor": names[0].split(":")[1].strip() if names else platform.processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def machine_line(m: dict[str, object]) -> str:
    return f"{m['processor']}, {m['cores']} cores, load {m['load']:.1f}, torch {m['torch']}, {m['date']}"
