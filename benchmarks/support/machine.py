"""Where figures come from: the machine, and how busy it was."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


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


def another_machine(found: Mapping[str, Any]) -> str:
    """What of this machine differs from the one that stored results were measured on; "" where nothing does."""
    here = machine()
    for name, result in found.items():
        then = result.get("machine", {})
        for what in ("processor", "cores", "torch"):
            if then.get(what) != here[what]:
                return f"{what} was {then.get(what)} at {name!r}, and is {here[what]} here"
    return ""


def machine_line(m: dict[str, object], load: bool = True) -> str:
    loaded = f", load {m['load']:.1f}" if load else ""
    return f"{m['processor']}, {m['cores']} cores{loaded}, torch {m['torch']}, {m['date']}"


def show(
    table: Table, here: dict[str, object], figures: dict[str, object], file: Path | None, width: int
) -> None:
    """Prints a table and the machine that it is from; with `file`, writes both."""
    console = Console(width=width)
    console.print(table)
    console.print(machine_line(here))
    if file is not None:
        file.write_text(json.dumps({"machine": here, **figures}, indent=1) + "\n")
