"""Ctrl-C during a search whose handler returns: the search ends with what it has."""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import pytest
import torch
from torch import nn

import osdp
from osdp import _search
from osdp.plan.plan import Plan
from osdp.planning.core_inputs import OperatorTimes
from osdp.planning.plan_builder import plan_of
from osdp.planning.search_problem import SearchProblem
from osdp.planning.verify import verify
from tests.unit.gpt_descriptions import gpt, machine

Handler = Callable[[int, FrameType | None], None]


class Handled:
    """Handlers of SIGINT, and which calls they had."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def returns(self, number: int, frame: FrameType | None) -> None:
        assert number == signal.SIGINT
        self.calls.append("first")

    def hands_over(self, number: int, frame: FrameType | None) -> None:
        self.calls.append("first")
        signal.signal(signal.SIGINT, self.second)

    def second(self, number: int, frame: FrameType | None) -> None:
        self.calls.append("second")


@pytest.fixture
def handled() -> Iterator[Handled]:
    before = signal.getsignal(signal.SIGINT)
    yield Handled()
    signal.signal(signal.SIGINT, before)


@functools.cache
def hard_problem() -> SearchProblem:
    """Many limits bind and every width is another kind: it has a plan at once, and no proof for a minute."""
    plan = osdp.search(
        gpt(5, 256),
        memory="17MiB",
        granularity=tuple(range(2, 65)),
        world_size=8,
        hardware=machine(),
        time_limit=0.05,
    )
    return SearchProblem.of(plan).changed(time_limit_s=None)


def long_search() -> tuple[SearchProblem, _search.Wish]:
    problem = hard_problem()
    wish = problem.wish(17 * 2**20)
    wish.work = 4_000_000_000
    return problem, wish


def search_until(interrupt: Callable[[], object]) -> tuple[Plan, int]:
    """The plan, and how often progress was reported: about five times a second until the search is over."""
    problem, wish = long_search()
    reports = 0

    def progress(_: float) -> None:
        nonlocal reports
        reports += 1
        if reports == 1:
            interrupt()

    answer = problem.planner.search(wish, progress)
    return plan_of(problem, answer), reports


def in_the_search() -> None:
    threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT)).start()


@pytest.mark.parametrize("interrupt", [lambda: signal.raise_signal(signal.SIGINT), in_the_search])
def test_a_handler_that_returns_ends_a_search_with_its_best_plan(
    handled: Handled, interrupt: Handler
) -> None:
    signal.signal(signal.SIGINT, handled.returns)
    plan, reports = search_until(interrupt)
    assert handled.calls == ["first"] and reports < 20
    assert plan.certificate is not None
    if interrupt is in_the_search:  # once: it repeats the proof, which takes as long as the proof
        assert verify(plan) == ""
    assert signal.getsignal(signal.SIGINT) == handled.returns


def test_a_handler_that_installs_another_leaves_that(handled: Handled) -> None:
    signal.signal(signal.SIGINT, handled.hands_over)
    search_until(lambda: signal.raise_signal(signal.SIGINT))
    signal.raise_signal(signal.SIGINT)
    assert handled.calls == ["first", "second"] and signal.getsignal(signal.SIGINT) == handled.second


# The only choice that fits is the last that Algorithm 1 comes to.
LAST = [[(1, 1), (2, 0)]] * 60 + [[(1, 1000)]]


def test_without_a_plan_there_is_nothing_to_return(handled: Handled) -> None:
    signal.signal(signal.SIGINT, handled.returns)
    signal.signal(signal.SIGVTALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    # Of its own time, so that it searches by then on any machine; again, if it did not.
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.3, 2.0)
    try:
        with pytest.raises(KeyboardInterrupt):
            osdp.solve(LAST, 1000, method="dfs", time_limit=250)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def test_other_threads_search_while_a_handler_is_installed(handled: Handled) -> None:
    """Python runs handlers in its main thread only, and lets only that install any."""
    signal.signal(signal.SIGINT, handled.returns)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(osdp.solve([[(1, 1), (2, 0)]], 0).time))
    thread.start()
    thread.join()
    assert found == [2] and signal.getsignal(signal.SIGINT) == handled.returns


def kernels_problem() -> SearchProblem:
    """Its operators' times depend on the batch by kernels, so a search asks for them."""
    layers = [nn.TransformerEncoderLayer(128, 4, 512, batch_first=True) for _ in range(3)]
    description = osdp.describe(nn.Sequential(*layers), torch.zeros(1, 16, 128), precision="bf16")
    plan = osdp.search(description, memory="1.5GiB", hardware="h100-8", precision="bf16")
    return SearchProblem.of(plan)


@pytest.mark.parametrize("call", [1, 2, 3])
def test_an_interrupt_while_times_of_a_batch_are_asked_for_ends_the_search_with_a_plan(
    call: int, handled: Handled
) -> None:
    problem = kernels_problem()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where pytest was started with it ignored
    times = OperatorTimes(problem.description, problem.hardware, problem.precision)
    asked: list[int] = []

    def at(batch: int) -> _search.Model:
        asked.append(batch)
        if len(asked) == call:
            signal.raise_signal(signal.SIGINT)  # the handler raises in this call, which is repeated
        return times.model_at(batch)

    planner = _search.Planner(problem.planner.model, problem.request(), problem.manner(), at)
    try:
        answer = planner.search(problem.wish(3 * 2**29))
    except KeyboardInterrupt:
        assert call == 1, "before there is a plan"
        return
    assert answer.feasible and asked[call] == asked[call - 1]
    assert planner.play(answer.plan).step_ps == answer.played.step_ps


def test_an_error_of_who_is_asked_for_times_is_raised() -> None:
    problem = kernels_problem()

    def at(batch: int) -> _search.Model:
        raise LookupError(f"no times for {batch}")

    planner = _search.Planner(problem.planner.model, problem.request(), problem.manner(), at)
    with pytest.raises(LookupError, match="no times for"):
        planner.search(problem.wish(3 * 2**29))
    fewer = _search.Planner(
        problem.planner.model, problem.request(), problem.manner(), lambda _: _search.Model([], [], 0, 0)
    )
    with pytest.raises(_search.InvalidProblem, match="0 operators"):
        fewer.search(problem.wish(3 * 2**29))
