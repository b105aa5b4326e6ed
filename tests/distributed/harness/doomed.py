"""Doomed: a run of ranks of which some die, hang or raise; how each of them ended.

Each run has processes of its own, with a process group whose timeout is short.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

from harness.server import server

EXTRA_S = 120.0  # to start, on a busy machine
LATER_S = 60.0  # than the timeout: for the other ranks, once one has ended, on a busy machine
START = timedelta(seconds=EXTRA_S)


@dataclass(frozen=True)
class Ending:
    """`error`: the exception that ended the case, with the names of its classes; None where it returned `result`.

    `signal`: what killed the process, "exit" where it ended without a word, "stuck" where it did not end.
    """

    result: Any = None
    error: str | None = None
    kinds: tuple[str, ...] = ()
    signal: str | None = None
    output: str = ""


def run_doomed(
    case: Callable[..., Any], *args: Any, world: int, timeout_s: float, lost: int = 0
) -> list[Ending]:
    """How `case(member, *args)` ended on each of `world` ranks, whose process group has that timeout.

    A rank that is stopped, or has not ended a while after the timeout, is killed; so are the last `lost` of them, which
    nothing is expected of.
    """
    context = server()
    endings = [Ending(signal="stuck")] * world
    with tempfile.TemporaryDirectory(prefix="osdp-doomed-") as directory:
        pipes, processes = [], []
        for rank in range(world):
            ours, theirs = context.Pipe(duplex=False)
            call = (theirs, case, args, rank, world, timeout_s, directory)
            process = context.Process(target=_run, args=call, daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        try:
            waiting = {pipe: rank for rank, pipe in enumerate(pipes)}
            deadline = time.monotonic() + timeout_s + EXTRA_S
            while len(waiting) > lost and (
                ready := wait(list(waiting), max(0.0, deadline - time.monotonic()))
            ):
                for pipe in ready:
                    assert isinstance(pipe, Connection)
                    rank = waiting.pop(pipe)
                    try:
                        endings[rank] = pipe.recv()
                    except EOFError:
                        processes[rank].join()
                        code = processes[rank].exitcode or 0
                        endings[rank] = Ending(signal=signal.Signals(-code).name if code < 0 else "exit")
                    deadline = min(deadline, time.monotonic() + timeout_s + LATER_S)
                if all(_stopped(processes[rank].pid) for rank in waiting.values()):
                    break
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.join()
    return endings


def _stopped(pid: int | None) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in ("T", "Z")
    except FileNotFoundError:
        return True


def _run(
    pipe: Connection,
    case: Callable[..., Any],
    args: tuple[Any, ...],
    rank: int,
    world: int,
    timeout_s: float,
    directory: str,
) -> None:
    import torch
    import torch.distributed as dist

    from harness.member import Member

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{directory}/store",
        rank=rank,
        world_size=world,
        timeout=START,
    )
    group = dist.new_group(timeout=timedelta(seconds=timeout_s))
    gc.freeze()  # as in worker.main
    try:
        pipe.send(Ending(result=case(Member(rank, world, group), *args)))
    except BaseException as error:
        kinds = tuple(kind.__name__ for kind in type(error).__mro__)
        pipe.send(Ending(error=str(error), kinds=kinds, output=traceback.format_exc()))
    sys.stdout.flush()
    time.sleep(600)  # alive, so that others do not learn of the end by a closed connection; the run kills it
