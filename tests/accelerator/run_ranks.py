"""Runs cases on processes that are started for them. `run_cases`: from tests; as a script: a table, for a look by hand.

python run_ranks.py [--world 2] [--device ordered:check] [--backend gloo] [CASE...]
"counted": a step of each kind beside torch's own sharding.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "distributed"))
from harness.server import server  # noqa: E402


def run_cases(
    names: list[str],
    device: str,
    world: int = 2,
    backend: str = "",
    timeout_s: float = 120,
    out: Path | None = None,
    **environment: str,
) -> dict[str, list[dict[str, Any]]]:
    """Name -> what each rank told of it, or how it failed. After a failure new ranks go on with the next case."""
    left: list[str] = list(names)
    results: dict[str, list[dict[str, Any]]] = {}
    while left:
        told = _run(left, device, world, backend, timeout_s, environment)
        results |= told
        left = left[len(told) :]
        if out is not None:
            out.write_text(json.dumps(results, indent=1))
    return results


def _lines(file: Path) -> list[str]:
    """The complete ones."""
    return [line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


_asking = threading.Lock()  # of several threads that ask for the end of one process, one is told it


@functools.cache
def _descriptions() -> tempfile.TemporaryDirectory[str]:
    """Where ranks keep what training.described has found out, until this process ends."""
    return tempfile.TemporaryDirectory(prefix="osdp-descriptions-")


def _exit_codes(ranks: list[Any]) -> list[int | None]:
    with _asking:
        return [process.exitcode for process in ranks]


def _rank(environment: dict[str, str], *given: Any) -> None:
    os.environ |= environment
    from harness import other_extension

    other_extension.load()
    import run_rank  # here: its modules look at the environment, and who only reads results needs no torch

    run_rank.main(*given)


def _run(
    names: list[str], device: str, world: int, backend: str, timeout_s: float, environment: dict[str, str]
) -> dict[str, list[dict[str, Any]]]:
    if not backend:
        backend = "cpu:gloo,ordered:ordered" if device.startswith("ordered") else "gloo"
    with tempfile.TemporaryDirectory(prefix="osdp-cases-") as folder:
        with _asking:
            kept = _descriptions().name
        environment = {"OMP_NUM_THREADS": "1", "CASES_DESCRIPTIONS": kept, **environment}
        given = (world, device, backend, Path(folder), names)
        # Forked where that is certain to be harmless: a driver of CUDA must not have been asked for anything before.
        context = multiprocessing.get_context("spawn") if device == "cuda" else server()
        ranks = [
            context.Process(target=_rank, args=(environment, rank, *given), daemon=True)
            for rank in range(world)
        ]
        files = [(Path(folder, f"{rank}.told"), Path(folder, f"{rank}.log")) for rank in range(world)]
        for told_file, log in files:
            told_file.touch(), log.touch()
        with _asking:
            for process in ranks:
                process.start()
        end, late = time.monotonic() + timeout_s, False
        while (codes := _exit_codes(ranks)).count(None) and not late:
            if any(codes):
                end = min(end, time.monotonic() + 5)  # the others wait for it
            late = time.monotonic() > end
            running = [process.sentinel for process, code in zip(ranks, codes, strict=True) if code is None]
            wait(running, min(0.5, max(0.0, end - time.monotonic())))
        with _asking:
            for process in ranks:
                process.kill()
                process.join()
        told = [[json.loads(line) for line in _lines(file) if line.startswith("{")] for file, _ in files]
        logs = [log.read_text()[-20000:] for _, log in files]
    results: dict[str, list[dict[str, Any]]] = {}
    for i, name in enumerate(names):
        got = [lines[i] if i < len(lines) else None for lines in told]
        missing = [rank for rank, each in enumerate(got) if each is None]
        for rank in missing:
            why = f"rank {rank} did not come to its end" + (f" in {timeout_s:g} s" if late else "")
            got[rank] = {"case": name, "losses": [], "cpu": [], "error": why, "trace": logs[rank]}
        for each, log in zip(got, logs, strict=True):
            if each is not None and "error" in each and log not in each["trace"]:
                each["trace"] += f"\n{log}"  # what was printed: a sanitizer's reports, say
        results[name] = got  # type: ignore[assignment]
        if any("error" in each for each in got if each):
            break
    return results


def distance(ranks: list[dict[str, Any]]) -> float:
    """The largest relative distance of what the ranks told from what they told on the CPU."""
    return max(
        abs(x - y) / max(1.0, abs(y)) if x == x else float("inf")
        for each in ranks
        for x, y in zip(each["losses"], each["cpu"], strict=True)
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--device", default="ordered:check")
    parser.add_argument("--backend", default="")
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--out", type=Path)
    parser.add_argument("cases", nargs="*")
    a = parser.parse_args()
    if not a.cases:
        sys.path.insert(0, str(HERE))
        import cases

        a.cases = list(cases.CASES)
    elif a.cases == ["counted"]:
        sys.path.insert(0, str(HERE))
        import peers

        a.cases = list(peers.PEERS)
    results = run_cases(a.cases, a.device, a.world, a.backend, a.timeout, a.out)
    for name, ranks in results.items():
        row = f"{name:26}"
        if error := next((r for r in ranks if "error" in r), None):
            print(f"{row} {error['error'][:600]}")
            for line in error["trace"].strip().splitlines()[-40:]:
                print("      |", line[:220])
            continue
        row += f" {max(r['seconds'] for r in ranks):6.1f} s"
        if "races" in ranks[0]:
            row += f"  races {[r['races'] for r in ranks]}  syncs {sum(ranks[0]['host_syncs'].values())}"
        if ranks[0]["cpu"]:
            row += f"  off by {distance(ranks):.1e}"
        if counts := ranks[0].get("counts"):
            row += f"  {counts['operators']} operators, {counts['collectives']} collectives, {counts['host_syncs']} a step"
            row += f", {counts['events']} events made, pools {counts['pools']} bytes"
        print(row, [round(x, 5) for x in ranks[0]["losses"][:4]])
        for text in ranks[0].get("found", [])[:6]:
            print("      ", text)


if __name__ == "__main__":
    main()
