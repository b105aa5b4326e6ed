"""Everything that needs a GPU, in one command: build, training over NCCL and gloo, profiling, a step beside FSDP2 and one
beside its prediction.

    python tools/gpu_check.py [--minutes 9] [--built SITE]        (make gpu-check)

From an unpacked source tree, without network, with the torch of this Python (2.11 or newer, a CUDA build), CMake and
ninja. Builds into build/gpu, or takes a folder that holds the package, built for the same Python and torch. Writes
benchmarks/results/gpu-NAME.json, prints a table, and fails where something is wrong. What one GPU can show: its rank
shards alone and calls NCCL (OSDP_SHARD_ALONE); two ranks share it over gloo. Nothing else may use it: memory that other
processes take counts as the driver's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "gpu"
# fp32 on another processor; what is rounded to 16 bits, and then differs in the last of them.
TOLERANCE, LOW = 1e-5, 5e-3


class Check:
    def __init__(self, minutes: float, site: Path) -> None:
        self.site = site
        self.begin = time.monotonic()
        self.end = self.begin + 60 * minutes
        self.rows: list[tuple[str, str]] = []
        self.result: dict[str, Any] = {}
        self.failed = False

    def row(self, what: str, found: str, right: bool = True) -> None:
        self.failed |= not right
        self.rows.append((what, found if right else f"WRONG: {found}"))
        print(f"== {time.monotonic() - self.begin:4.0f} s  {what}: {self.rows[-1][1]}", flush=True)

    def run(
        self, limit_s: float, *command: str | Path, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        left = max(1.0, min(limit_s, self.end - time.monotonic()))
        paths = os.pathsep.join([str(self.site), str(ROOT / "tests" / "accelerator")])
        env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **environment}
        try:
            return subprocess.run(
                [str(part) for part in command],
                capture_output=True,
                text=True,
                timeout=left,
                env=env,
                cwd=BUILD,
            )
        except subprocess.TimeoutExpired as late:
            told = late.stdout.decode() if isinstance(late.stdout, bytes) else ""
            return subprocess.CompletedProcess(late.cmd, 124, told, f"not done in {left:.0f} s")


def build(check: Check) -> bool:
    jobs = str(os.cpu_count() or 2)
    # Some toolchains link their own libstdc++ into every library, which does not mix with the one that torch has loaded.
    shared = subprocess.run(
        ["g++", "-print-file-name=libstdc++.so.6"], capture_output=True, text=True
    ).stdout.strip()
    shared = shared if Path(shared).is_absolute() else "-l:libstdc++.so.6"
    configure = check.run(
        60, "cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}",
        "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_MODULE_LINKER_FLAGS=-Wl,--no-as-needed {shared} -Wl,--as-needed",
    )  # fmt: skip
    made = (
        check.run(400, "ninja", "-C", BUILD, f"-j{jobs}", "_C", "_search")
        if not configure.returncode
        else configure
    )
    if made.returncode:
        print((made.stdout + made.stderr)[-4000:])
        check.row("build", "does not build", False)
        return False
    package = check.site / "osdp"
    package.mkdir(parents=True, exist_ok=True)
    for file in [*(ROOT / "osdp").iterdir(), *BUILD.glob("_C*.so"), *BUILD.glob("_search*.so")]:
        link = package / file.name
        link.unlink(missing_ok=True)
        link.symlink_to(file)
    found = check.run(60, sys.executable, "-c", "import osdp._C")
    check.row(
        "build", "builds and loads" if not found.returncode else found.stderr[-800:], not found.returncode
    )
    return not found.returncode


def run_cases(
    check: Check,
    what: str,
    world: int,
    backend: str,
    cases: list[str],
    right: str = "ways of training as on the CPU",
    **environment: str,
) -> None:
    """Every case on the GPU, its losses beside the CPU's."""
    out = BUILD / "cases.json"
    out.unlink(missing_ok=True)
    done = check.run(
        150, sys.executable, ROOT / "tests/accelerator/run_ranks.py", "--device", "cuda", "--world", str(world),
        "--backend", backend, "--timeout",
        "140", "--out", out, *cases, **environment,
    )  # fmt: skip
    if not out.exists():
        return check.row(what, (done.stdout + done.stderr)[-600:], False)
    sys.path.insert(0, str(ROOT / "tests" / "accelerator"))
    from run_ranks import distance

    told = json.loads(out.read_text())
    wrong = {}
    for name, ranks in told.items():
        error = next((r["error"] for r in ranks if "error" in r), None)
        low = re.search("bf16|fp16", name)
        if error or distance(ranks) > (LOW if low else TOLERANCE):
            wrong[name] = error or f"off by {distance(ranks):.1e}"
            print(
                f"   {name}: {wrong[name]}\n{next((r.get('trace', '') for r in ranks if 'error' in r), '')[-2500:]}"
            )
    check.result[what] = {name: wrong.get(name, "equal") for name in told}
    check.row(what, f"{len(told) - len(wrong)} of {len(told)} {right}", not wrong)


def _reports(done: subprocess.CompletedProcess[str]) -> bool:
    return bool(re.search("data race|CUDASanitizerErrors", done.stdout + done.stderr))


def sanitizer(check: Check) -> None:
    """torch's own: silent on a right step, and it must see a wait that is left out."""
    run = (
        ROOT / "tests/accelerator/run_ranks.py",
        "--device",
        "cuda",
        "--world",
        "1",
        "--backend",
        "cpu:gloo,cuda:nccl",
    )
    switch = {"TORCH_CUDA_SANITIZER": "1", "OSDP_SHARD_ALONE": "1"}
    right = check.run(80, sys.executable, *run, "full_shard", **switch)
    planted = check.run(80, sys.executable, *run, "without_a_wait", **switch)
    seen = _reports(planted)
    silent = not _reports(right) and "off by" in right.stdout
    if not silent:
        print((right.stdout + right.stderr)[-6000:])
    check.row(
        "torch's stream sanitizer",
        f"silent on FULL_SHARD: {silent}; sees a planted race: {seen}",
        silent and seen,
    )


def step(check: Check, world: int, **size: int) -> None:
    options = [f"--{name}={value}" for name, value in size.items()]
    found = []
    for engine in ("fsdp2", "osdp"):
        done = check.run(
            150, sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}",
            ROOT / "benchmarks/support/gpu_step.py", engine, *options, OSDP_SHARD_ALONE="1",
        )  # fmt: skip
        line = next((text for text in done.stdout.splitlines() if text.startswith("{")), None)
        if line is None:
            check.row(f"step of {engine}", (done.stdout + done.stderr)[-3000:], False)
            continue
        row = json.loads(line)
        found.append(row)
        check.row(
            f"{engine}, {row['parameters'] / 1e9:.2f}e9 parameters in bf16, {world} GPU",
            f"{row['step_s'] * 1e3:.0f} ms a step ({row['back_to_back_s'] * 1e3:.0f} without waiting), "
            f"{row['allocated_bytes'] / 2**30:.1f} GiB allocated, {row['reserved_bytes'] / 2**30:.1f} reserved",
        )
    check.result.setdefault("steps", []).extend(found)


def prediction(check: Check, world: int) -> None:
    """The profile, and the step that it predicts. What cannot be had is told, and the rest goes on."""
    done = check.run(
        150, sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}",
        ROOT / "benchmarks/support/gpu_prediction.py",
    )  # fmt: skip
    line = next((text for text in done.stdout.splitlines() if text.startswith("{")), None)
    if line is None:
        return check.row("a step beside its prediction", (done.stdout + done.stderr)[-3000:], False)
    row = json.loads(line)
    check.result["prediction"] = row
    rates = ", ".join(f"{name} {rate / 1e12:.0f}" for name, rate in row["profile"]["flops_per_s"].items())
    check.row("profile", f"TFLOP/s: {rates}; {', '.join(row['modes'])}")
    for name, unit, scale in (
        ("step_s", "ms", 1e-3),
        ("allocated_bytes", "GiB", 2**30),
        ("reserved_bytes", "GiB", 2**30),
    ):
        said, found = row["predicted"][name], row["measured"][name]
        beside = f"{said / scale:.1f} {unit} predicted" if said else "not predicted"
        beside += f", {found / scale:.1f} measured" if found else ", not measured"
        if said and found:
            beside += f" ({(said - found) / found:+.1%})"
        check.row(f"prediction, {name.rpartition('_')[0]}", beside)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument(
        "--only", nargs="*", default=[], help="of: nccl profile gloo sanitizer step prediction"
    )
    parser.add_argument("--built", type=Path, help="a folder that holds the built package: nothing is built")
    a = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("== make gpu-check: no GPU here")
        return 0
    BUILD.mkdir(parents=True, exist_ok=True)
    check = Check(a.minutes, a.built.resolve() if a.built else BUILD / "site")
    gpu = torch.cuda.get_device_name()
    check.row("machine", f"{torch.cuda.device_count()} x {gpu}, torch {torch.__version__}")
    if not a.built and not build(check):
        return 1
    wanted = a.only or ["nccl", "profile", "gloo", "sanitizer", "step", "prediction"]
    listed = check.run(30, sys.executable, "-c", "import cases; print(*cases.CASES)").stdout.split()
    if "nccl" in wanted:
        run_cases(
            check, "NCCL, 1 rank that shards alone", 1, "cpu:gloo,cuda:nccl", listed, OSDP_SHARD_ALONE="1"
        )
    if "profile" in wanted:
        alone = ["profile", "profile_model", "unused_memory", "report_of_memory", "contention"]
        what = "profiling, 1 rank that calls NCCL alone"
        run_cases(
            check, what, 1, "cpu:gloo,cuda:nccl", alone, "cases as they should be", OSDP_SHARD_ALONE="1"
        )
    if "gloo" in wanted:
        run_cases(check, "gloo with CUDA tensors, 2 ranks", 2, "cpu:gloo,cuda:gloo", listed)
    if "sanitizer" in wanted:
        sanitizer(check)
    if "step" in wanted:
        step(check, torch.cuda.device_count(), layers=24, width=2048, batch=4, length=1024)
    if "prediction" in wanted:
        prediction(check, torch.cuda.device_count())
    name = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")
    file = ROOT / "benchmarks" / "results" / f"gpu-{name}.json"
    facts = {"gpu": gpu, "count": torch.cuda.device_count(), "torch": torch.__version__, **check.result}
    file.write_text(json.dumps(facts, indent=1) + "\n")
    width = max(len(what) for what, _ in check.rows)
    print("\n" + "\n".join(f"{what:{width}}  {found}" for what, found in check.rows))
    return int(check.failed)


if __name__ == "__main__":
    sys.exit(main())
