"""osdp.Checkpoints over ranks: saved while training goes on, loaded by others, failures told to all, ranks that die."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
import torch
from harness import Member
from harness.doomed import run_doomed
from support import blocks
from support.pair import SEED, Pair, adamw

import osdp
from osdp.checkpoint.dcp_planners import BoxWriter


def train_while_it_is_written(me: Member, folder: Path) -> None:
    """The writers of all ranks stand still during a step; what is saved is from before it."""
    pair = Pair(me, blocks.workload(), "FULL_SHARD")
    pair.train(steps=1)
    go_on, real = threading.Event(), BoxWriter.write_data

    def late(*args: object) -> object:
        assert go_on.wait(20)
        return real(*args)  # type: ignore[arg-type]

    run = osdp.Checkpoints(folder, process_group=me.group)
    BoxWriter.write_data = late  # type: ignore[method-assign,assignment]
    try:
        before = pair.sharded.state_dict()
        run.save(pair.sharded, pair.sharded_optimizer, 1, extra={"rank": me.rank})
        total = sum(p.numel() * p.element_size() for p in pair.whole.parameters())
        assert 0 < run.copied_bytes == run.share_bytes < 3 * total * 0.75, "a share, not all of it"
        pair.train(steps=1)
        assert not (folder / "latest").exists()
    finally:
        BoxWriter.write_data = real  # type: ignore[method-assign]
        go_on.set()
    run.save(pair.sharded, pair.sharded_optimizer, 2)  # waits for the first
    run.wait()
    if me.rank == 0:
        torch.save(before, folder / "before.pt")


def go_on_from(me: Member, folder: Path) -> None:
    """Step 1 as it was saved, then the last one, which trains on as one process does."""
    pair = Pair(me, blocks.workload(), "NO_SHARD")
    osdp.load(pair.sharded, pair.sharded_optimizer, folder / "step-00000001", process_group=me.group)
    expected = torch.load(folder / "before.pt")
    for name, value in pair.sharded.state_dict().items():
        assert torch.equal(value, expected[name]), name
    run = osdp.Checkpoints(folder, process_group=me.group)
    for model, optimizer in pair.both:
        assert run.load(model, optimizer) == 2 and run.extra == {}
    pair.train(steps=1)


def test_training_goes_on_while_it_is_written_and_other_ranks_load_it(ranks, tmp_path):
    ranks(train_while_it_is_written, tmp_path, world=2)
    ranks(go_on_from, tmp_path, world=3)


def wrapped(me: Member, how: str) -> torch.nn.Module:
    model = blocks.workload().model(SEED, torch.float64)
    if how == "by blocks":
        for block in model.blocks:
            osdp.fully_shard(block, process_group=me.group)
        return osdp.fully_shard(model, process_group=me.group)
    search = {"batch_size": 2}
    return osdp.FullyShardedDataParallel(model, process_group=me.group, memory="1GiB", search=search)


def resume_before_the_first_forward(me: Member, folder: Path) -> None:
    """Where the first forward regroups or searches, it does so with what was loaded."""
    for how in ("searched", "by blocks"):
        losses: dict[int, float] = {}
        for start in (0, 2):
            model = wrapped(me, how)
            optimizer = adamw(model.parameters())
            with osdp.Checkpoints(folder / how, process_group=me.group) as run:
                assert run.load(model, optimizer) == start
                for step in range(start, 4):
                    (tokens,), target = blocks.workload().data(step, 2 * me.world, torch.float64)
                    loss = blocks.surprise(model(me.part(tokens)), me.part(target))
                    loss.backward()
                    optimizer.step(), optimizer.zero_grad()
                    assert losses.setdefault(step, loss.item()) == loss.item(), (how, step)
                    if step == 1:
                        run.save(model, optimizer, 2)


@pytest.mark.filterwarnings("ignore::osdp.MachineMismatchWarning")
def test_wrapped_models_go_on_from_before_their_first_forward(ranks, tmp_path):
    ranks(resume_before_the_first_forward, tmp_path, world=2)


def fail_on_one(me: Member, folder: Path) -> None:
    pair = Pair(me, blocks.workload(), "FULL_SHARD")
    run = osdp.Checkpoints(folder, process_group=me.group)
    run.save(pair.sharded, None, 1)
    run.wait()
    real = BoxWriter.write_data
    if me.rank == 1:
        BoxWriter.write_data = lambda *_: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    try:
        run.save(pair.sharded, None, 2)
        with pytest.raises(osdp.OSDPError, match=r"rank 1.*ZeroDivisionError"):
            run.wait()
    finally:
        BoxWriter.write_data = real  # type: ignore[method-assign]
    with pytest.raises(osdp.DisagreementError, match="rank 1 saves step-00000004"):
        run.save(pair.sharded, None, 3 + me.rank)
    assert run.load(pair.sharded, None) == 1
    assert sorted(p.name for p in folder.iterdir()) == ["latest", "step-00000001"]


def test_what_fails_on_one_rank_fails_on_all_and_the_last_one_stays(ranks, tmp_path):
    ranks(fail_on_one, tmp_path, world=2)


def die_while_it_is_written(me: Member, folder: Path) -> None:
    pair = Pair(me, blocks.workload(), "FULL_SHARD")
    run = osdp.Checkpoints(folder, process_group=me.group)
    run.save(pair.sharded, None, 1)
    run.wait()
    if me.rank == 1:
        BoxWriter.boxes = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign,assignment,return-value]
    run.save(pair.sharded, None, 2)
    run.wait()


def find_the_last_one(me: Member, folder: Path) -> None:
    pair = Pair(me, blocks.workload(), "FULL_SHARD")
    run = osdp.Checkpoints(folder, process_group=me.group)
    assert run.load(pair.sharded, None) == 1
    run.save(pair.sharded, None, 2)
    run.wait()


def test_a_rank_that_dies_while_it_is_written_is_named_and_the_last_one_is_found(ranks, tmp_path):
    endings = run_doomed(die_while_it_is_written, tmp_path, world=2, timeout_s=20.0)
    assert endings[1].signal == "SIGKILL"
    assert "RankError" in endings[0].kinds and "rank 1" in str(endings[0].error)
    ranks(find_the_last_one, tmp_path, world=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "step-00000001", "step-00000002"]
