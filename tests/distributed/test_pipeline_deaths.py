"""A rank that dies inside a pipeline ends all stages."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist
from harness import Member
from harness.doomed import run_doomed
from support.faults import SOON_S, TIMEOUT_S
from test_parallelize import batch, loss_of, net, plan_for

import osdp


def kill(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail(*_: object) -> None:
    raise ValueError("a script's own error")


def ends(me: Member, rank: int, how: Callable[..., None], directory: str) -> None:
    """What a step raised on a rank that lives; then its process ends, as a script's does."""
    model = net()
    plan = me.once(lambda: plan_for(model, 1, 2, me.world))
    pipe = osdp.parallelize(model, plan, loss_of)
    tokens, targets = (t[:4] for t in batch(0))
    pipe.step(tokens, target=targets)
    dist.barrier()
    if me.rank == rank:
        model.blocks[3].register_forward_pre_hook(how)
    begin = time.monotonic()
    try:
        pipe.step(tokens, target=targets)
    except Exception as error:
        told = {"kind": type(error).__name__, "message": str(error), "seconds": time.monotonic() - begin}
        Path(directory, f"{me.rank}.json").write_text(json.dumps(told))
    os._exit(1)


@pytest.mark.outcome("a rank dies inside a pipeline", osdp.RankError)
@pytest.mark.parametrize("how", [kill, pytest.param(fail, marks=pytest.mark.extras)])
def test_a_rank_that_ends_ends_all_stages(tmp_path: Path, how: Callable[..., None]) -> None:
    endings = run_doomed(ends, 3, how, str(tmp_path), world=4, timeout_s=TIMEOUT_S)
    assert endings[3].signal == ("SIGKILL" if how is kill else "exit")
    for rank in range(3):
        told = json.loads((tmp_path / f"{rank}.json").read_text())
        assert told["kind"] == "RankError" and "rank 3 (stage 1)" in told["message"], told
        assert f"This rank has stage {rank // 2} of 2; stage 0 is on ranks 0 to 1" in told["message"], told
        assert told["seconds"] < SOON_S, told
    if how is fail:
        told = json.loads((tmp_path / "3.json").read_text())
        assert told["kind"] != "RankError" and told["seconds"] < SOON_S, told
