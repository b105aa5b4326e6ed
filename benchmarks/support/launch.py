"""Runs a benchmark's ranks, here or on several hosts, and brings back what rank 0 found."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from support.hosts import ADDRESS, hosts_apart

HERE = Path(__file__).parent.parent


def run_ranks(
    script: str,
    arguments: Sequence[str],
    ranks: int,
    *,
    hosts: int = 1,
    rate: str = "1gbit",
    seconds: float = 900,
    environment: Mapping[str, str] | None = None,
    own_cores: bool = False,
) -> Any:
    """What `as_rank` of `script` returned on rank 0; `ranks` processes in all, spread evenly over the hosts.
    `own_cores`: no two hosts compute on the same core, if there are enough.

    Raises RuntimeError when a rank fails, or not all have ended after `seconds`.
    """
    if ranks % hosts:
        raise ValueError(f"{ranks} ranks cannot be spread evenly over {hosts} hosts")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that ranks and hosts are cleared away
    with (
        tempfile.TemporaryDirectory() as folder,
        hosts_apart(hosts, rate) if hosts > 1 else contextlib.nullcontext([[]]) as prefixes,
    ):
        answer = Path(folder) / "answer.json"
        everyones = sorted(os.sched_getaffinity(0))
        apart = own_cores and hosts <= len(everyones)
        cores = [everyones[host::hosts] if apart else everyones for host in range(hosts)]
        everywhere = {
            **os.environ,
            **(environment or {}),
            "OMP_NUM_THREADS": "1",
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": ADDRESS.format(1) if hosts > 1 else "127.0.0.1",
            "MASTER_PORT": str(_free_port()),
            "GLOO_SOCKET_IFNAME": "eth0" if hosts > 1 else "lo",
            "LD_PRELOAD": str(_heap_counter(Path(folder))),
        }
        processes = [
            subprocess.Popen(
                [
                    *prefixes[rank * hosts // ranks],
                    sys.executable,
                    script,
                    "--as-rank",
                    str(answer),
                    *arguments,
                ],
                env={**everywhere, "RANK": str(rank), "LOCAL_RANK": str(rank % (ranks // hosts))},
                preexec_fn=partial(os.sched_setaffinity, 0, cores[rank * hosts // ranks]),
            )
            for rank in range(ranks)
        ]
        _wait(processes, seconds)
        return json.loads(answer.read_text())


def largest(*mine: float) -> list[float]:
    """Of each figure the largest over all ranks. Collective."""
    import torch
    import torch.distributed as dist

    values = torch.tensor(mine, dtype=torch.float64)
    dist.all_reduce(values, dist.ReduceOp.MAX)
    return values.tolist()


def slowest(mine: float) -> float:
    """The largest over all ranks. Collective."""
    return largest(mine)[0]


def as_rank(job: Callable[..., Any], *, patience: float = 100) -> bool:
    """In a rank: runs `job` within a gloo process group, with one thread, and hands its result back; else False.
    `patience`: seconds that ranks wait for one another."""
    if "--as-rank" not in sys.argv:
        return False
    import torch
    import torch.distributed as dist

    at = sys.argv.index("--as-rank")
    answer, given = Path(sys.argv[at + 1]), sys.argv[at + 2 :]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=patience))
    result = job(*given)
    if dist.get_rank() == 0:
        answer.write_text(json.dumps(result))
    dist.barrier()
    os._exit(0)  # peers leave threads behind that may not end by themselves


def _wait(processes: list[subprocess.Popen[bytes]], seconds: float) -> None:
    end = time.monotonic() + seconds
    try:
        while any(p.poll() is None for p in processes):
            failed = [rank for rank, p in enumerate(processes) if p.poll() not in (None, 0)]
            if failed or time.monotonic() > end:
                raise RuntimeError(f"ranks {failed} failed" if failed else f"not done after {seconds} s")
            time.sleep(0.05)
        failed = [rank for rank, p in enumerate(processes) if p.returncode != 0]
        if failed:
            raise RuntimeError(f"ranks {failed} failed")
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _heap_counter(folder: Path) -> Path:
    library = folder / "heap_peak.so"
    source = HERE / "heap_peak.c"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", str(source), "-o", str(library)], check=True, timeout=60)
    return library


def _free_port() -> int:
    """Below those that systems give to connections: one of them may be taken again before rank 0 listens there."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("", port))
            return port
