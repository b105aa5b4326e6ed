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

gc.disable()
run(0)
child = os.fork()
if child == 0:
    try:
        run(1)
    except osdp.ProcessGroupError as error:
        gc.collect()
        os._exit(7 if "forked" in str(error) else 1)
    os._exit(2)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
gc.collect()
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/2", rank=0, world_size=1)
osdp.FullyShardedDataParallel(nn.Linear(4, 4))
sys.exit(code)
"""


@pytest.mark.outcome("ranks forked from a process in which OSDP has communicated", osdp.ProcessGroupError)
def test_a_forked_rank_is_refused(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        timeout=90,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert ran.returncode == 7, ran.stderr[-2000:]
