"""Process groups come and go: what the runtime had for them goes with them; and a store may outlive the ranks."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from harness import Member
from harness.doomed import run_doomed
from harness.server import server
from support import deaths

import osdp


def one_round(model_too: bool) -> None:
    group = dist.new_group(timeout=timedelta(seconds=60))
    if model_too:
        model = osdp.fully_shard(deaths.tiny(), deaths.uniform(), process_group=group)
        model(torch.randn(2, 8)).sum().backward()
    else:
        osdp.profile(group=group, seconds=0.05)
    dist.destroy_process_group(group)


def counted() -> tuple[int, int]:
    """Threads and descriptors of this process, Python's and all others."""
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def settled(expected: tuple[int, int] | None) -> tuple[int, int]:
    """Once nothing more ends. What a model kept may be in cycles of its own, which the next collection finds."""
    until = time.monotonic() + (20 if expected is not None else 2)
    while (now := counted()) != expected and time.monotonic() < until:
        gc.collect()
        time.sleep(0.1)
    return now


def rounds(me: Member) -> tuple[tuple[int, int], tuple[int, int]]:
    for model_too in (True, False):  # what is made once
        one_round(model_too)
    before = settled(None)
    for i in range(5):
        one_round(i != 1)
    return before, settled(before)


@pytest.mark.outcome("`new_group`, `fully_shard`, `destroy_process_group`, many times", "equal")
def test_groups_that_are_destroyed_leave_nothing() -> None:
    for ending in run_doomed(rounds, world=2, timeout_s=60.0):
        assert ending.error is None and ending.signal is None, ending
        before, after = ending.result
        assert after <= before or sum(after) <= sum(before), (before, after)


def attempt(pipe, rank: int, port: int, last: bool) -> None:
    """A rank of a job whose store is the launcher's. In the first attempt rank 1 dies, and rank 0 records that."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=10))
    plan = osdp.Plan.uniform(osdp.describe(deaths.tiny(), torch.randn(2, 8)), "HYBRID_SHARD")
    mesh = dist.device_mesh.init_device_mesh("cpu", (1, 2))
    model = osdp.fully_shard(deaths.tiny(), plan, device_mesh=mesh)
    model(torch.randn(2, 8)).sum().backward()
    if not last and rank == 1:
        os._exit(0)
    try:
        model(torch.randn(2, 8)).sum().backward()
        pipe.send("trained")
    except osdp.RankError as error:
        pipe.send(str(error))
    threading.Event().wait(1.0)
    os._exit(0)


@pytest.mark.outcome("torchelastic restarts the ranks with the store of the previous attempt", "equal")
def test_a_store_that_survives_an_attempt() -> None:
    """torch's own addresses of the first attempt are deleted: its groups could not be made over old ones either."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    told = []
    for last in (False, True):
        context = server()
        processes, pipes = [], []
        for rank in range(2):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=attempt, args=(theirs, rank, store.port, last), daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        try:
            told.append([pipe.recv() if pipe.poll(60) else "stuck" for pipe in pipes[: 2 if last else 1]])
        finally:
            for process in processes:
                process.join(10)
                process.kill()
        for key in store.list_keys():
            if "osdp" not in key:
                store.delete_key(key)
    assert "rank 1's process has ended" in told[0][0], told
    assert told[1] == ["trained", "trained"], told


SCRIPT = """
import atexit, sys, time

@atexit.register  # before osdp's: runs after it
def keep_the_interpreter():
    sys.setswitchinterval(100)
    until = time.monotonic() + 1
    while time.monotonic() < until:
        pass

import torch
from torch import distributed as dist, nn
import osdp

rank = int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=rank, world_size=2)
model = osdp.FullyShardedDataParallel(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(2):
    model(torch.ones(2, 4)).sum().backward()
    if rank == step == 1:
        time.sleep(0.5)
    optimizer.step()  # compares the options of ranks, and waits for the outcome in the next step
"""


@pytest.mark.outcome("a script that ends right after a step, without `destroy_process_group`", "equal")
def test_what_a_step_began_ends_before_the_interpreter(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(tmp_path), str(rank)],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    told = [rank.communicate(timeout=60)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], told
