"""A process that is forked from one in which OSDP has communicated: it may end, and may not be a rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import osdp

SCRIPT = """
import gc, os, sys
import torch
from torch import distributed as dist, nn
import osdp

def run(number):
    store = f"file://{sys.argv[1]}/{number}"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    model = osdp.FullyShardedDataParallel(nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()
    dist.destroy_process_group()
    model.itself = model  # so that only the collector finds it
    return model

gc.disable()
run(0)
model = run(1)
child = os.fork()
if child == 0:
    told = []
    for use in (lambda: model(torch.ones(2, 4)), lambda: run(2)):
        try:
            use()
        except (osdp.ShardingError, osdp.ProcessGroupError) as error:
            told.append((type(error), "forked" in str(error)))
    gc.collect()
    print(told, file=sys.stderr)
    os._exit(7 if told == [(osdp.ShardingError, True), (osdp.ProcessGroupError, True)] else 1)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
gc.collect()
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/3", rank=0, world_size=1)
osdp.FullyShardedDataParallel(nn.Linear(4, 4))
sys.exit(code)
"""


@pytest.mark.outcome("ranks forked from a process in which OSDP has communicated", osdp.ProcessGroupError)
@pytest.mark.outcome("a sharded model called in a forked child", osdp.ShardingError)
def test_a_forked_rank_is_refused(tmp_path: Path) -> None:
    """So is a use of its parent's model, which would wait for threads that are not there."""
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        timeout=90,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OSDP_SHARD_ALONE": "1"},
        check=False,
    )
    assert ran.returncode == 7, ran.stderr[-2000:]
