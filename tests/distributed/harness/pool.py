"""Pool: a fixed number of rank processes that run cases one after the other.

A case is an importable function whose first argument is a `Member`; it runs on the first `world` ranks, the
others idle. Arguments and results travel pickled. A case fails if any rank raises, dies, or takes longer than
its time; the failure shows what every rank did. After a failure the processes are replaced, so that a rank
left waiting in a collective cannot disturb the next case.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from harness import worker
from harness.server import server

START_S = 120.0  # to import torch and connect, on a busy machine
GRACE_S = 2.0  # for the other ranks, once one has failed: they may be waiting for it for ever
DUMP_S = 0.3  # for a rank to write its stacks
DUMPS_S = 10.0  # the same on a busy machine
LOG_LINES = 30


class CaseFailure(AssertionError):
    """A distributed case failed; the message has each rank's error, or where it was when it was given up."""


class Pool:
    def __init__(self, size: int = 4) -> None:
        self.size = size
        self._processes: list[ForkServerProcess] = []
        self._pipes: list[Connection] = []
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._cases = 0  # run so far

    def run(
        self, case: Callable[..., Any], *args: Any, world: int, timeout_s: float = 240.0, **kwargs: Any
    ) -> list[Any]:
        """What `case(member, *args, **kwargs)` returned on ranks 0..world-1. Raises CaseFailure."""
        if not 1 <= world <= self.size:
            raise ValueError(f"world size {world}: this pool has {self.size} ranks")
        if not self._processes:
            self._start()
        self._cases += 1
        message = pickle.dumps((self._cases, case.__module__, case.__qualname__, world, args, kwargs))
        answers: dict[int, Any] = {}
        try:
            for pipe in self._pipes[:world]:
                pipe.send_bytes(message)
            self._collect(range(world), answers, timeout_s)
            if len(answers) == world and all(ok for ok, _ in answers.values()):
                return [answers[rank][1] for rank in range(world)]
            what = f"{case.__module__}.{case.__qualname__} on {world} ranks"
            report = self._report(what, world, answers, timeout_s)
        except BaseException:  # an interrupt, say: the ranks are in the middle of something
            self.close()
            raise
        self.close()
        raise CaseFailure(report)

    def close(self) -> None:
        """End the ranks. A later `run` starts new ones."""
        for process in self._processes:
            process.kill()
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            process.join()
            pipe.close()
        if self._directory is not None:
            self._directory.cleanup()
        self._processes, self._pipes, self._directory = [], [], None

    def _start(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="osdp-ranks-")
        context = server()
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=worker.main,
                args=(theirs, rank, self.size, self._directory.name, list(sys.path)),
                daemon=True,
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
        answers: dict[int, Any] = {}
        self._collect(range(self.size), answers, START_S)
        if any(answers.get(rank) != "ready" for rank in range(self.size)):
            report = self._report("starting the ranks", self.size, {}, START_S)
            self.close()
            raise CaseFailure(report)

    def _collect(self, ranks: range, answers: dict[int, Any], timeout_s: float) -> None:
        """Fill `answers` with what the ranks send, until all have, or the time is over."""
        waiting = {self._pipes[rank]: rank for rank in ranks}
        deadline = time.monotonic() + timeout_s
        while waiting:
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                return
            for pipe in ready:
                assert isinstance(pipe, Connection)
                rank = waiting.pop(pipe)
                try:
                    answers[rank] = pickle.loads(pipe.recv_bytes())
                except (EOFError, ConnectionResetError):
                    self._processes[rank].join()
                    code = self._processes[rank].exitcode or 0
                    end = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                    answers[rank] = (False, (f"the process ended ({end})", self._stacks(rank)))
                if answers[rank][0] is False:
                    deadline = min(deadline, time.monotonic() + GRACE_S)

    def _report(self, what: str, world: int, answers: dict[int, Any], timeout_s: float) -> str:
        failed = {rank: error for rank, (ok, error) in answers.items() if not ok}
        stuck = [rank for rank in range(world) if rank not in answers]
        why = "failed" if failed else f"did not finish in {timeout_s:g} s"
        lines = [f"{what} {why}"]
        lines += [f"  rank {rank}: {error[0]}" for rank, error in sorted(failed.items())]
        lines += [f"  rank {rank}: still running" for rank in stuck]
        shown: dict[str, int] = {}
        for rank, (_, trace) in sorted(failed.items()):
            first = shown.setdefault(trace, rank)
            lines += [f"--- rank {rank}", f"as rank {first}" if first != rank else trace]
        for rank in stuck:
            pid = self._processes[rank].pid
            if pid is not None and self._processes[rank].is_alive():
                os.kill(pid, signal.SIGUSR1)
        until = time.monotonic() + DUMPS_S
        time.sleep(DUMP_S if stuck else 0.0)
        while not all(map(self._stacks, stuck)) and time.monotonic() < until:
            time.sleep(DUMP_S)
        for rank in stuck:
            lines += [f"--- rank {rank} was here", self._stacks(rank)]
        for rank in sorted({*failed, *stuck}):
            log = self._file(f"log{rank}").splitlines()[-LOG_LINES:]
            lines += [f"--- what rank {rank} printed", *log] if log else []
        return "\n".join(lines)

    def _stacks(self, rank: int) -> str:
        return self._file(f"stacks{rank}")

    def _file(self, name: str) -> str:
        assert self._directory is not None
        return (Path(self._directory.name) / name).read_text(errors="replace")
