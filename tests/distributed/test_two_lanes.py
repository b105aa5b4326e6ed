"""HYBRID_SHARD's two lanes: what is averaged between lines while the line goes on, and everything that may happen then."""

from __future__ import annotations

import contextlib
import random
import re
import time

import pytest
import torch
import torch.distributed as dist
from harness import Member
from harness.doomed import run_doomed
from support import blocks, plans
from support.faults import (
    ACTS,
    PATIENT_S,
    SOON_S,
    TIMEOUT_S,
    ActsInBackward,
    Branching,
    Doomed,
    failed_step,
    judge,
    step,
)
from support.links import NO, only, tower
from support.pair import Pair
from support.peaks import SLACK_BYTES, STATES, measured_stack, units_bytes
from support.workload import Workload, vectors
from torch import nn
from torch.profiler import ProfilerActivity, profile

import osdp
from osdp import _C
from osdp.sharding.sharded_model import runtime_of

LATE_S = 0.5


def hybrid(description: osdp.ModelDescription) -> osdp.Plan:
    return plans.apart(osdp.Plan.uniform(description, "HYBRID_SHARD"))


# --- ranks that drift apart


def drift(me: Member, micros: int, no_sync: bool, workload: Workload | None = None) -> None:
    """Every rank is late somewhere else, in every pass; the sums are what one process computes."""
    dice = random.Random(me.rank)
    pair = Pair(me, workload or blocks.workload(count=2), hybrid, ranks_per_host=2)
    for module in pair.sharded.modules():
        module.register_forward_pre_hook(lambda *_: time.sleep(0.01 * (dice.random() < 0.2)))
        module.register_full_backward_hook(lambda *_: time.sleep(0.02 * (dice.random() < 0.2)))
    pair.train(steps=3, micros=micros, no_sync=no_sync)


@pytest.mark.parametrize(("micros", "no_sync"), [(1, False), (3, False), (2, True)])
def test_ranks_that_drift_apart(ranks, micros, no_sync):
    ranks(drift, micros, no_sync, world=4)


def drift_over(me: Member, link: str) -> None:
    with only(link):
        drift(me, 2, False, Workload(tower, vectors(256, 7)))


@pytest.mark.parametrize(
    ("world", "link"), [pytest.param(4, "sockets", marks=pytest.mark.extras), (6, "sockets"), (6, "gloo")]
)
def test_each_link_between_lines(world, link):
    """Columns of two and of three ranks; what is small goes to all three at once."""
    for ending in run_doomed(drift_over, link, world=world, timeout_s=60.0):
        assert ending.error is None and ending.signal is None, ending


def several_models(me: Member) -> None:
    """Two models on one group, and so on the same two lanes, in one graph and in turn."""
    work = Workload(lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)), vectors(6, 4))
    first, second = (Pair(me, work, hybrid, ranks_per_host=2) for _ in range(2))
    for number in range(3):
        losses = [pair.forward(pair.data(number)) for pair in (first, second)]
        for which in (0, 1):
            (losses[0][which] + losses[1][which] * 2).backward()
        for pair in (first, second):
            pair.same_gradients()
            pair.update()
        second.train(steps=1)


def test_two_models_in_one_graph(ranks):
    ranks(several_models, world=4)


# --- memory


def peaks_with_a_late_line(me: Member) -> dict:
    """Line 1 is late in every backward, so that all of line 0's rows wait for its; peaks of steps, and of micro-batches that
    find a gradient there.
    """
    count, width, inner = 6, 256, 384
    measured = measured_stack(count, width, inner)
    model, x, empty = measured.model, measured.x, measured.empty
    plan = hybrid(osdp.describe(model, x))
    osdp.fully_shard(model, plan, me.group, ranks_per_host=2)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    peaks: dict[str, list[int]] = {"alone": [], "added": []}
    for _ in range(3):
        for micro in peaks:
            _C.memory_reset_peak()
            loss = model(x).square().mean()
            ActsInBackward.apply(loss, lambda: time.sleep(LATE_S * (me.rank >= 2))).backward()
            peaks[micro].append(_C.memory_peak_bytes() - empty)
            assert runtime_of(model).gathered_bytes() == 0
        optimizer.step()
        optimizer.zero_grad()
    state = STATES * sum(p.numel() * 4 for p in model.parameters())
    allowed = state + measured.activations + 3 * max(units_bytes(plan)) + SLACK_BYTES
    rows = -(-max(units_bytes(plan)) // 2)
    return {"peaks": peaks, "alone": allowed, "added": allowed + 2 * rows, "full": measured.full}


def test_rows_that_wait_take_no_memory_or_that_of_two_units(ranks):
    for result in ranks(peaks_with_a_late_line, world=4):
        for micro in ("alone", "added"):
            assert max(result["peaks"][micro]) <= result[micro], (micro, result)
        assert result["added"] < STATES * result["full"], result


# --- exceptions


class Refusal(Exception):
    pass


def refuse() -> None:
    raise Refusal("in the middle")


def exception_while_rows_wait(me: Member) -> None:
    """All ranks raise in the middle of backward, those of line 1 late: what is on its way ends, and training goes on."""
    pair = Pair(me, Workload(Doomed, vectors(8, 8)), hybrid, ranks_per_host=2)
    pair.train(steps=2)
    for _ in range(2):

        def act() -> None:
            time.sleep(LATE_S * (me.rank >= 2))
            refuse()

        pair.sharded.act, pair.sharded.where = act, "backward"
        with pytest.raises(Refusal):
            pair.forward(pair.data(7))[1].backward()
        pair.sharded.act = None
        assert runtime_of(pair.sharded).gathered_bytes() == 0
        for _, optimizer in pair.both:
            optimizer.zero_grad()
        pair.train(steps=2)


def test_an_exception_while_rows_wait(ranks):
    ranks(exception_while_rows_wait, world=4)


# --- faults


def sharded(me: Member, model: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    plan = hybrid(osdp.describe(model, torch.randn(2, 8)))
    dist.barrier()  # ranks start at different times; the group's timeout is short
    return osdp.fully_shard(model, plan, me.group, ranks_per_host=2)


def suffer(me: Member, act: str, where: str, link: str | None = None) -> tuple[str, list[str], float]:
    """Good steps, then the last rank acts: neighbour in its line of rank 2, in its column of rank 1, of rank 0 in none."""
    with only(link) if link else contextlib.nullcontext():
        model = sharded(me, Doomed())
    for _ in range(3):
        step(model)
    if me.rank == me.world - 1:
        model.act, model.where = ACTS[act], where
    return failed_step(model)


FAULTS = {
    ("kill", "forward"): "process has ended",
    ("exit", "backward"): "process has ended",
    ("stop", "backward"): "does not respond",
    ("sleep", "backward"): "hangs, although its process is alive",
    ("raise", "backward"): "rank 3 ended a forward or backward with.*the third batch is bad",
}


# How a rank exits that ends without a word is test_faults.py's.
IN_CI = [pytest.param(*f, marks=pytest.mark.extras) if f[0] == "exit" else f for f in FAULTS]


@pytest.mark.parametrize(("act", "where"), IN_CI)
def test_a_rank_that_fails_is_named_in_its_line_in_its_column_and_elsewhere(act, where):
    lost = 1 if act == "sleep" else 0
    timeout_s = PATIENT_S if act in ("kill", "exit") else TIMEOUT_S
    for message in judge(run_doomed(suffer, act, where, world=4, timeout_s=timeout_s, lost=lost), 3):
        assert re.search(FAULTS[act, where], message), message


@pytest.mark.parametrize("link", NO)
def test_a_rank_that_dies_is_named_over_each_link(link):
    for message in judge(run_doomed(suffer, "kill", "backward", link, world=4, timeout_s=PATIENT_S), 3):
        assert "process has ended" in message, message


def diverge(me: Member, others: list[int]) -> tuple[str, list[str], float]:
    model = sharded(me, Branching())
    for branch in ("left", "right", "left"):
        model.branch = branch
        step(model)
    if me.rank in others:
        model.branch = "right"
    return failed_step(model)


@pytest.mark.parametrize("others", [[1], [2, 3]], ids=["one rank", "a whole line"])
def test_ranks_that_run_different_modules(others):
    """A line that agrees in itself and not with the others is found out in the columns."""
    for ending in run_doomed(diverge, others, world=4, timeout_s=PATIENT_S):
        assert ending.error is None and ending.signal is None, ending
        message, kinds, seconds = ending.result
        assert kinds[:2] == ["OrderError", "DisagreementError"], message
        assert "ranks run different modules" in message and "'right " in message, message
        assert seconds < SOON_S, seconds


# --- the timeline


def recorded(me: Member) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    x = torch.randn(2, 8)
    osdp.fully_shard(model, hybrid(osdp.describe(model, x)), me.group, ranks_per_host=2)
    model(x).sum().backward()
    with profile(activities=[ProfilerActivity.CPU]) as recording:
        model(x).sum().backward()
    threads = {event.name: event.thread for event in recording.events()}
    for unit in ("0", "1"):
        assert threads[f"{unit} reduce-scatter"] == threads[f"{unit} all-gather"]
        assert threads[f"{unit} all-reduce between lines"] != threads[f"{unit} reduce-scatter"]


def test_both_halves_are_named_in_the_timeline(ranks):
    ranks(recorded, world=4)
