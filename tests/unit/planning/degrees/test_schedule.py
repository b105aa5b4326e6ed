"""Schedules of pipelines, played: known steps, and what a schedule can never beat."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osdp import _search
from osdp.planning.degrees.candidates import bound_s


def times(forward: int, backward: int, optimizer: int = 0, send: int = 0) -> _search.StageTimes:
    return _search.StageTimes(
        first_forward_ps=forward,
        forward_ps=forward,
        backward_ps=backward,
        last_backward_ps=backward,
        optimizer_ps=optimizer,
        send_activations_ps=send,
        send_gradients_ps=send,
    )


@pytest.mark.parametrize("schedule", _search.SCHEDULES)
def test_equal_stages_take_the_known_step(schedule: str) -> None:
    for stages in (1, 2, 5):
        for micro_batches in (1, 2, 9):
            played = _search.play_schedule(schedule, [times(10, 20, 3)] * stages, micro_batches)
            assert played.step_ps == (micro_batches + stages - 1) * 30 + 3
            assert played.busy_ps == [micro_batches * 30 + 3] * stages


def test_what_is_sent_delays_the_next_stage() -> None:
    # The forward arrives after 10 + 4; the gradient, sent at 44, after 4 more.
    played = _search.play_schedule("1f1b", [times(10, 20, send=4), times(10, 20, send=4)], 1, True)
    assert played.step_ps == 10 + 4 + 30 + 4 + 20
    assert [(e.stage, e.forward, e.begin_ps) for e in played.events] == [
        (0, True, 0), (1, True, 14), (1, False, 24), (0, False, 48),
    ]  # fmt: skip


def test_the_first_forward_and_the_last_backward_have_times_of_their_own() -> None:
    stage = _search.StageTimes(
        first_forward_ps=100, forward_ps=10, backward_ps=20, last_backward_ps=200, optimizer_ps=0
    )
    assert _search.play_schedule("1f1b", [stage], 4).step_ps == 100 + 3 * 10 + 3 * 20 + 200


def test_a_stage_that_waits_for_its_reductions_has_sent_its_gradients() -> None:
    stage = _search.StageTimes(
        first_forward_ps=10, forward_ps=10, backward_ps=20, last_backward_ps=50, optimizer_ps=0,
        last_backward_tail_ps=30,
    )  # fmt: skip
    # Forwards end at 20; backward of the second stage computes until 40, of the first until 60, and waits until 90.
    assert _search.play_schedule("1f1b", [stage, stage], 1).step_ps == 90
    with pytest.raises(_search.InvalidProblem):
        _search.play_schedule("1f1b", [_search.StageTimes(
            first_forward_ps=1, forward_ps=1, backward_ps=1, last_backward_ps=1, optimizer_ps=0, backward_tail_ps=2,
        )], 1)  # fmt: skip


STAGE = st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 9), st.integers(0, 20))


@given(st.lists(STAGE, min_size=1, max_size=6), st.integers(1, 9), st.sampled_from(_search.SCHEDULES))
def test_every_pass_has_its_input_and_no_stage_does_two_things_at_once(
    stages: list[tuple[int, int, int, int]], micro_batches: int, schedule: str
) -> None:
    given_times = [times(*s) for s in stages]
    played = _search.play_schedule(schedule, given_times, micro_batches, True)
    p = len(stages)
    end = {(e.stage, e.micro_batch, e.forward): e.end_ps for e in played.events}
    assert len(end) == 2 * p * micro_batches
    held = most = 0
    for i in range(p):
        own = [e for e in played.events if e.stage == i]
        own.sort(key=lambda e: (e.begin_ps, e.end_ps))
        assert all(a.end_ps <= b.begin_ps for a, b in itertools.pairwise(own))
        for e in own:
            if e.forward and i > 0:
                assert e.begin_ps >= end[i - 1, e.micro_batch, True] + stages[i - 1][3]
            if not e.forward:
                assert e.begin_ps >= end[i, e.micro_batch, True]
                if i + 1 < p:
                    assert e.begin_ps >= end[i + 1, e.micro_batch, False] + stages[i + 1][3]
    # What is in flight at most, in the order of the first stage's passes.
    order = sorted((e for e in played.events if e.stage == 0), key=lambda e: (e.end_ps, not e.forward))
    for e in order:
        held += 1 if e.forward else -1
        most = max(most, held)
    if all(s[0] and s[1] for s in stages):
        assert most <= _search.most_in_flight(schedule, p, 0, micro_batches)
        assert most == micro_batches or micro_batches >= p  # torch has no 1F1B then: GPipe
    # The bound of candidates: before and after a stage's passes, those of the stages before it.
    before = 0
    for forward, backward, _, _ in stages:
        assert played.step_ps >= before + micro_batches * (forward + backward)
        before += forward + backward


def test_bad_times_are_refused() -> None:
    for stages, micro_batches in (([], 1), ([times(1, 1)], 0), ([times(-1, 1)], 1), ([times(2**61, 1)], 2)):
        with pytest.raises(_search.InvalidProblem):
            _search.play_schedule("1f1b", stages, micro_batches)


# --- stages that share cores


def test_a_host_whose_cores_are_shared_has_no_bubble() -> None:
    """What a stage leaves while it waits the others get: the step is all work, as if they computed one after the other."""
    for schedule in _search.SCHEDULES:
        for stages, micro_batches in ((2, 4), (4, 8)):
            given_times = [times(1000, 2000)] * stages
            shared = [1000 * stages // k for k in range(1, stages + 1)]  # one core
            played = _search.play_schedule(schedule, given_times, micro_batches, False, shared)
            assert played.step_ps == pytest.approx(micro_batches * 3000, rel=0.01)
            half = [min(1500, s) for s in shared]
            slower = _search.play_schedule(schedule, given_times, micro_batches, False, half)
            whole = _search.play_schedule(schedule, given_times, micro_batches)
            assert played.step_ps < slower.step_ps < whole.step_ps
    # Two hosts of two stages each.
    apart = _search.play_schedule("1f1b", [times(1000, 2000)] * 4, 8, False, [2000, 1000])
    assert played.step_ps < apart.step_ps < whole.step_ps


@given(
    st.lists(STAGE, min_size=1, max_size=3),
    st.integers(1, 9),
    st.sampled_from(_search.SCHEDULES),
    st.integers(2, 3),
    st.sampled_from((1001, 1700, 4000)),
)
def test_shared_cores_do_no_more_than_all_of_them(
    stages: list[tuple[int, int, int, int]], micro_batches: int, schedule: str, on_a_host: int, alone: int
) -> None:
    stages = stages * on_a_host
    speeds = [min(alone, 1000 * on_a_host // k) for k in range(1, on_a_host + 1)]
    given_times = [times(*(1000 * ps for ps in s)) for s in stages]
    whole = _search.play_schedule(schedule, given_times, micro_batches, True)
    played = _search.play_schedule(schedule, given_times, micro_batches, True, speeds)
    rounded = len(played.events) + len(stages)
    assert played.step_ps <= whole.step_ps + rounded
    work = [micro_batches * 1000 * (s[0] + s[1]) + 1000 * s[2] for s in stages]
    for first in range(0, len(stages), on_a_host):
        assert played.step_ps * on_a_host + rounded >= sum(work[first : first + on_a_host])
    assert all(1000 * work[i] <= alone * busy + 1000 * rounded for i, busy in enumerate(played.busy_ps))
    seconds = [float(1000 * (s[0] + s[1])) for s in stages]  # of links, a stage each
    bound = bound_s(seconds, len(stages), micro_batches, [s / 1000 for s in speeds])
    assert bound - rounded <= played.step_ps
    assert all(e.begin_ps <= e.end_ps for e in played.events)
    passes = [sorted((e.stage, e.micro_batch, e.forward) for e in p.events) for p in (played, whole)]
    assert passes[0] == passes[1]
    # Where none is faster while others wait, nothing is shared.
    same = _search.play_schedule(schedule, given_times, micro_batches, False, [1000] * on_a_host)
    assert same.step_ps == whole.step_ps


def test_speeds_below_that_of_all_are_refused() -> None:
    for speeds in ([], [999], [999, 1000], [2000, 1001], [10**7, 1000]):
        with pytest.raises(_search.InvalidProblem, match="speed"):
            _search.play_schedule("1f1b", [times(1, 1)], 1, False, speeds)
