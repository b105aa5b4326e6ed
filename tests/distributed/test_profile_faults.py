"""osdp.profile where a rank is lost in the middle of what is measured: a typed error on the others, and no file."""

from __future__ import annotations

import os
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from harness import Member
from harness.doomed import run_doomed

import osdp
from osdp.hardware.hardware import Hardware
from osdp.profiling import profile

TIMEOUT_S = 5.0
SLACK_S = 60.0  # on any machine
SHORT = timedelta(seconds=5)
SECONDS = 2.0  # of profiling
OLD = "what an earlier profile left"


def killed_in(name: str, after_s: float) -> None:
    """This process is killed so long after `osdp.profiling.profile` has begun with that part."""
    part = getattr(profile, name)

    def doomed(*args: object, **kwargs: object) -> object:
        threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return part(*args, **kwargs)

    setattr(profile, name, doomed)


def profiles_to(me: Member, path: str, doom: str) -> tuple[str, str, float]:
    """What profiling and saving raised on a rank that lives, and after how long."""
    dist.barrier()
    if me.rank == me.world - 1:
        killed_in(doom, after_s=0.05)
    begin = time.monotonic()
    try:
        hardware = osdp.profile(group=me.group, seconds=SECONDS)
        hardware.save(path)
    except osdp.OSDPError as error:
        return type(error).__name__, str(error), time.monotonic() - begin
    raise AssertionError("nothing was raised")


@pytest.mark.outcome(
    "a rank dies while `profile` measures a collective, alone or during computation", osdp.RankError
)
@pytest.mark.parametrize(
    ("doom", "world"), [("measure_collectives", 3), ("measure_rates", 2), ("measure_contention", 3)]
)
def test_a_rank_that_dies_in_the_middle_of_profiling(tmp_path: Path, doom: str, world: int) -> None:
    path = tmp_path / "here.json"
    path.write_text(OLD)
    endings = run_doomed(profiles_to, str(path), doom, world=world, timeout_s=TIMEOUT_S)
    assert endings[-1].signal in ("SIGKILL", "stuck"), endings[-1]
    for rank, ending in enumerate(endings[:-1]):
        assert ending.error is None and ending.signal is None, (rank, ending)
        kind, message, seconds = ending.result
        assert kind == "RankError" and f"rank {world - 1}" in message, (kind, message)
        assert seconds < SECONDS + TIMEOUT_S + SLACK_S, (rank, seconds, message)
    assert path.read_text() == OLD and [p.name for p in tmp_path.iterdir()] == ["here.json"]


def without_a_store(me: Member, directory: str, met_before: bool) -> tuple[str, str, float]:
    """Profiling on two ranks whose store was a third process's, which has ended."""
    host = me.world - 1
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if me.rank == host else None
    port = me.everywhere(store.port if store is not None else 0)[host]
    dist.destroy_process_group()
    ready = [Path(directory, f"ready{rank}") for rank in range(host)]
    if me.rank == host:
        while not all(path.exists() for path in ready):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=me.rank, world_size=host, timeout=SHORT)
    if met_before:
        osdp.profile(seconds=0.05)
    dist.barrier()
    ready[me.rank].touch()
    time.sleep(1.0)
    begin = time.monotonic()
    try:
        osdp.profile(seconds=0.2).save(Path(directory) / "here.json")
    except osdp.OSDPError as error:
        return type(error).__name__, str(error), time.monotonic() - begin
    return "", "", time.monotonic() - begin


@pytest.mark.outcome("`profile` where the process that holds the ranks' store has ended", osdp.RankError)
def test_profiling_without_a_store(tmp_path: Path) -> None:
    endings = run_doomed(without_a_store, str(tmp_path), False, world=3, timeout_s=15.0)
    for rank, ending in enumerate(endings[:-1]):
        assert ending.error is None and ending.signal is None, (rank, ending)
        kind, message, seconds = ending.result
        assert kind == "RankError" and "holds the ranks' store" in message, (kind, message)
        assert "osdp.profile" in message and seconds < SHORT.total_seconds() + SLACK_S, (seconds, message)
    assert not (tmp_path / "here.json").exists()


def test_ranks_that_have_met_need_no_store(tmp_path: Path) -> None:
    endings = run_doomed(without_a_store, str(tmp_path), True, world=3, timeout_s=15.0)
    for rank, ending in enumerate(endings[:-1]):
        assert ending.error is None and ending.signal is None, (rank, ending)
        assert ending.result[0] == "", (rank, ending)
    assert Hardware.load(tmp_path / "here.json").world_size == 2
