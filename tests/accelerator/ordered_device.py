"""A torch device "ordered" on host memory that checks whether accesses of different streams are ordered. See README.md.

import ordered_device
ordered_device.build()          # compiles it, once; registers the device and its backend
ordered_device.use("check")
dist.init_process_group(ordered_device.BACKEND)       # "cpu:gloo,ordered:ordered"
... train on torch.device("ordered") ...
for race in ordered_device.races(): print(race)
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

NAME = "ordered"
BACKEND = f"cpu:gloo,{NAME}:{NAME}"
_SOURCE = Path(__file__).with_name("ordered_device.cpp")
_KEPT = Path(__file__).parents[2] / "build" / "ordered_device"
_C: Any = None


@dataclasses.dataclass(frozen=True)
class Race:
    """Accesses of two streams to the same bytes that nothing orders, at least one a write."""

    text: str
    count: int
    bytes: int  # the largest overlap

    def __str__(self) -> str:
        return f"{self.count} x {self.text}; up to {self.bytes} bytes"


def compiled(timeout_s: float = 900) -> Path:
    """The compiled device, kept in build/ by source and torch version; made (g++ or $CXX, C++20) where it is not there."""
    key = hashlib.sha256(f"{_SOURCE.read_text()}{torch.__version__}{sys.version}".encode()).hexdigest()[:16]
    library = _KEPT / key / "ordered_device_C.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    with open(library.with_name("lock"), "w") as lock:  # one process compiles
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _compile(library, timeout_s)
    return library


def build() -> None:
    """Load the device and register it and its backend with torch; at most once."""
    global _C
    if _C is not None:
        return
    spec = importlib.util.spec_from_file_location("ordered_device_C", compiled())
    assert spec and spec.loader
    _C = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(_C)
    _register()


def use(mode: str = "check", seed: int = 0, delay_us: int = 2000) -> None:
    """ "check": at once, with vector clocks. "async": a thread per stream, random delays below `delay_us` by `seed`."""
    if mode not in ("check", "async"):
        raise ValueError(f'mode is {mode!r}; it is "check" or "async"')
    _C.use(mode == "async", seed, delay_us)


def races() -> list[Race]:
    """What was found since `clear`, equal ones counted together, the most frequent first."""
    found: dict[str, list[int]] = collections.defaultdict(list)
    for text, size in _C.races():
        found[text].append(size)
    return sorted((Race(t, len(s), max(s)) for t, s in found.items()), key=lambda r: -r.count)


def stats() -> dict[str, Any]:
    """Since `clear`: races, operators, collectives, accesses, events (made), host_syncs (by cause), streams (with
    their operators by name); since `reset_peaks`: peak_bytes and peaks of pools; now: live_bytes."""
    return _C.stats()


def clear() -> None:
    """Forgets what was counted and found, peaks too."""
    _C.clear()
    _C.reset_peaks()


def reset_peaks() -> None:
    _C.reset_peaks()


def memory() -> tuple[int, int]:
    """Free and total bytes, as if the device had the host's memory for itself."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    told = stats()
    return total - told["reserved_bytes"] - told["beside_bytes"], total


def synchronize() -> None:
    """The host waits for the device."""
    _C.synchronize()


def name_stream(stream: torch.Stream, name: str) -> None:
    """How reports call it."""
    _C.name_stream(stream.stream_id, name)


@contextlib.contextmanager
def counted() -> Iterator[dict[str, Any]]:
    """Fills the yielded dict, at its end, with the stats of what ran inside, and "found": its races. Clears both.

    >>> with ordered_device.counted() as step: train_step()
    >>> step["races"], step["operators"], sum(step["host_syncs"].values())
    """
    result: dict[str, Any] = {}
    clear()
    try:
        yield result
    finally:
        result.update(stats(), found=races())
        clear()


def backend(
    store: Any, rank: int, size: int, timeout: datetime.timedelta = datetime.timedelta(minutes=5)
) -> Any:
    """A c10d backend for the device with NCCL's stream semantics. It carries the bytes over gloo."""
    gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo/", store), rank, size, timeout)
    return _C.backend(gloo, timeout.total_seconds())


def process_group(
    rank: int, size: int, port: int, host: str = "127.0.0.1", **options: Any
) -> dist.ProcessGroup:
    """`init_process_group` with gloo for the CPU and this device's backend, and the default group."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        BACKEND, init_method=f"tcp://{host}:{port}", rank=rank, world_size=size, **options
    )
    group = dist.group.WORLD
    assert group is not None
    return group


def _compile(library: Path, timeout_s: float) -> None:
    from torch.utils.cpp_extension import include_paths, library_paths

    made = library.with_name(f"{os.getpid()}.so")  # then renamed
    parts = made.with_suffix(".o")
    python = sysconfig.get_paths()["include"]
    cache = [found] if (found := shutil.which("ccache")) else []
    compiler = os.environ.get("CXX", "g++")
    commands: Sequence[Sequence[str]] = [
        [
            *cache, compiler, "-std=c++20", "-O1", "-fPIC", "-w", "-DNDEBUG",  # as torch: its classes differ by it
            "-DTORCH_EXTENSION_NAME=ordered_device_C", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
            *(f"-isystem{path}" for path in [*include_paths(), python]), "-c", str(_SOURCE), "-o", str(parts),
        ],
        [
            compiler, "-shared", str(parts), "-o", str(made),
            *(f"-L{path}" for path in library_paths()), *(f"-Wl,-rpath,{path}" for path in library_paths()),
            "-ltorch", "-ltorch_cpu", "-ltorch_python", "-lc10",
        ],
    ]  # fmt: skip
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
        if done.returncode:
            raise RuntimeError(
                f"the ordered device does not compile:\n{' '.join(command)}\n{done.stderr[-4000:]}"
            )
    parts.unlink()
    made.replace(library)


def _register() -> None:
    torch.utils.rename_privateuse1_backend(NAME)
    module = types.ModuleType(f"torch.{NAME}")
    device = torch.device(NAME, 0)

    @contextlib.contextmanager
    def stream(s: torch.Stream | None) -> Iterator[None]:
        if s is None:
            yield
            return
        before = torch.accelerator.current_stream()
        torch.accelerator.set_stream(s)
        try:
            yield
        finally:
            torch.accelerator.set_stream(before)

    def new_stream(device_: Any = None, priority: int = 0, **_: Any) -> torch.Stream:
        return torch.Stream(device=device, priority=priority)

    def new_event(enable_timing: bool = False, **_: Any) -> torch.Event:
        return torch.Event(device=device, enable_timing=enable_timing)

    @contextlib.contextmanager
    def on_device(_: Any) -> Iterator[None]:
        yield

    def default_stream(_: Any = None) -> torch.Stream:
        kind = torch._C._autograd.DeviceType.PrivateUse1
        return torch.Stream(stream_id=0, device_index=0, device_type=kind)

    functions = {
        "is_available": lambda: True, "is_initialized": lambda: True, "init": lambda: None, "_is_in_bad_fork": lambda: False,
        "device_count": lambda: 1, "current_device": lambda: 0, "set_device": lambda d: None, "device": on_device,
        "manual_seed": lambda s: None, "manual_seed_all": lambda s: None, "initial_seed": torch.initial_seed,
        "get_rng_state": lambda d=None: torch.get_rng_state(),
        "set_rng_state": lambda s, d=None: torch.set_rng_state(s),
        "get_amp_supported_dtype": lambda: [torch.float32, torch.bfloat16, torch.float16],
        "Stream": new_stream, "Event": new_event, "stream": stream,
        "current_stream": lambda d=None: torch.accelerator.current_stream(),
        "set_stream": torch.accelerator.set_stream,
        "default_stream": default_stream,
        "synchronize": lambda d=None: synchronize(), "empty_cache": lambda: _C.empty_cache(),
        "mem_get_info": lambda d=None: memory(), "memory_summary": lambda d=None: str(stats()),
        "memory_allocated": lambda d=None: stats()["live_bytes"],
        "max_memory_allocated": lambda d=None: stats()["peak_bytes"],
        "memory_reserved": lambda d=None: stats()["reserved_bytes"],
        "max_memory_reserved": lambda d=None: stats()["peak_reserved_bytes"],
        "reset_peak_memory_stats": lambda d=None: reset_peaks(),
    }  # fmt: skip
    for name, function in functions.items():
        setattr(module, name, function)
    torch._register_device_module(NAME, module)
    torch.utils.generate_methods_for_privateuse1_backend()
    dist.Backend.register_backend(NAME, backend, devices=[NAME])
