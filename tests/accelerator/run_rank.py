"""One rank of the cases: runs each that is named, and writes what it told, one JSON line per case."""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import cases
import faults
import memory
import peers
import profiles
import torch
import torch.distributed as dist
from training import Setting

from osdp import _C

WITHOUT = " without "  # CASE without SITE: see Note [What orders streams]
SENSITIVITY = hasattr(_C, "leave_out")  # the build of `make test-sensitivity`


def join(rank: int, world: int, device: str, backend: str, folder: Path) -> torch.device:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    faulthandler.enable()
    faulthandler.dump_traceback_later(float(os.environ.get("CASES_DUMP_S", "50")), repeat=True)
    torch.set_num_threads(1)
    if device.startswith("ordered"):
        import ordered_device

        ordered_device.build()
        _, mode, *seed = device.split(":")
        ordered_device.use(mode, *map(int, seed))
        here = torch.device("ordered", 0)
    else:
        here = torch.device("cuda", 0) if device == "cuda" else torch.device("cpu")
    dist.init_process_group(
        backend,
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=60),
    )
    gc.freeze()  # collecting after each case does not look at what was imported
    return here


def run(name: str, rank: int, world: int, device: torch.device, delayed: bool) -> dict[str, Any]:
    """What the case told on the device, and, unless streams are delayed there, on the CPU: "losses", "cpu"."""
    name, _, left_out = name.partition(WITHOUT)
    setting, on_cpu = Setting(rank, world, device), Setting(rank, world, torch.device("cpu"))
    groups = (cases.CASES, cases.PLANTED, memory.MEMORY, peers.PEERS, profiles.CASES, faults.FAULTS)
    run_case = {name: case for group in groups for name, case in group.items()}[name]
    result: dict[str, Any] = {"case": name}
    if SENSITIVITY or left_out:
        _C.leave_out(left_out)
    begin = time.perf_counter()
    try:
        if device.type == "ordered":
            import ordered_device

            with ordered_device.counted() as counts:
                run_case(setting)
                setting.close()
            found = counts.pop("found")
            result |= counts | {"found": [str(race) for race in found]}
        else:
            run_case(setting)
            setting.close()
        if SENSITIVITY:
            result["sites"] = _C.ordering_sites()
        if device.type != "cpu" and not delayed and not left_out:
            run_case(on_cpu)
            on_cpu.close()
    except Exception as error:
        result["error"] = f"{type(error).__name__}: {error}"
        result["trace"] = traceback.format_exc()
    result["counts"] = setting.counts
    return result | {"losses": setting.losses, "cpu": on_cpu.losses, "seconds": time.perf_counter() - begin}


def main(
    rank: int,
    world: int,
    device: str,
    backend: str,
    folder: Path,
    names: list[str],
) -> None:
    """`device`: cpu, cuda, ordered:check or ordered:async:SEED:DELAY_US. Writes RANK.told and RANK.log in `folder`."""
    for fd, kind in ((1, "told"), (2, "log")):
        os.dup2(os.open(folder / f"{rank}.{kind}", os.O_WRONLY | os.O_CREAT), fd)
    sys.stdout, sys.stderr = (os.fdopen(fd, "w", buffering=1, closefd=False) for fd in (1, 2))
    here = join(rank, world, device, backend, folder)
    for name in names:
        print(name, file=sys.stderr, flush=True)
        result = run(name, rank, world, here, ":async" in device)
        print(json.dumps(result), flush=True)
        if "error" in result:  # the ranks no longer agree on where they are
            break
        gc.collect()
    else:
        dist.barrier()
    sys.stdout.flush()
    os._exit(0)
