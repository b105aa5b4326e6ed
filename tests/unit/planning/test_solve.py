"""osdp.solve: the bare problem."""

import dataclasses
import itertools
import json
import random
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import osdp
from osdp import _search
from osdp.planning.solve import check_solution

DATA = Path(__file__).parents[2] / "data"
INSTANCES = json.loads((DATA / "search_instances.json").read_text())["instances"]
BLOCKS = json.loads((DATA / "rtx_titan_8gpu_blocks.json").read_text())["blocks"]
# 12^30 plans, none dominated: the plain depth-first search will not end.
ENDLESS = [[(1000 - 7 * k * k - i, 50 + 37 * k + i % 5) for k in range(12)] for i in range(30)]

TOO_LARGE_TO_CHECK = ("I&C 96 12sizes @0.25", "118 distinct @0.75")


def options_of(instance):
    return [[tuple(o) for o in options] for options in instance["operators"]]


@pytest.mark.parametrize("instance", INSTANCES, ids=lambda i: i["name"])
def test_known_instances_are_solved_to_their_proven_optimum(instance):
    options = options_of(instance)
    s = osdp.solve(options, instance["limit"])
    assert s.optimal and s.time == s.lower_bound == instance["best_time"]
    assert sum(options[i][k][0] for i, k in enumerate(s.choices)) == s.time
    assert sum(options[i][k][1] for i, k in enumerate(s.choices)) == s.memory <= instance["limit"]
    said = check_solution(options, instance["limit"], s)
    # The check is a dynamic program of bounded size: of the hardest it says that it cannot tell.
    assert said == "" or (instance["name"] in TOO_LARGE_TO_CHECK and "could not be shown" in said)


# Proven optima over the authors' measurements: layers, hidden, batch, layers per level, seconds, MB.
KNOWN = [
    (48, 1024, 1, (39, 1, 8, 0), 1.137316210, 7375.80),
    (48, 1024, 2, (33, 0, 15, 0), 1.312350486, 7388.06),
    (48, 1024, 3, (0, 0, 38, 10), 1.590016520, 7386.91),
    (24, 2048, 2, (0, 0, 22, 2), 2.815117652, 7350.95),
    (2, 8192, 3, (0, 0, 2, 0), 3.859800656, 7168.90),
]
MB = 10**8  # the file states MB with up to 9 digits after the point


@pytest.mark.parametrize("layers, hidden, batch, levels, seconds, mb", KNOWN)
def test_the_authors_measurements_have_their_known_best_plans(layers, hidden, batch, levels, seconds, mb):
    block = next(b for b in BLOCKS if b["hidden"] == hidden)
    options = [
        (round(t * 1e12), round(m * MB))
        for t, m in zip(block["time_s"][batch], block["memory_mb"][batch], strict=True)
    ]
    s = osdp.solve([options] * layers, (8192 - 800) * MB)
    assert tuple(s.choices.count(k) for k in range(4)) == levels
    assert s.optimal
    assert s.time / 1e12 == pytest.approx(seconds, abs=1e-9)
    assert s.memory / MB == pytest.approx(mb, abs=0.01)


def test_the_best_batch_per_sample_on_the_authors_measurements():
    def best(layers, hidden):
        block = next(b for b in BLOCKS if b["hidden"] == hidden)
        per_sample = {}
        for batch in range(1, 5):
            rows = zip(block["time_s"][batch], block["memory_mb"][batch], strict=True)
            options = [(round(t * 1e12), round(m * MB)) for t, m in rows]
            per_sample[batch] = osdp.solve([options] * layers, (8192 - 800) * MB).time / batch
        return min(per_sample, key=per_sample.__getitem__)

    assert best(2, 8192) == 4


def test_the_papers_search_and_the_exact_one_agree():
    for instance in INSTANCES:
        if len(instance["operators"]) > 6:
            continue
        # Every second option: 16^6 plans are a few million nodes.
        options = [o[::3] for o in options_of(instance)]
        exact = osdp.solve(options, instance["limit"])
        for method in ("dfs", "dfs-smallest-first"):
            dfs = osdp.solve(options, instance["limit"], method=method)
            assert dfs.optimal and dfs.time == exact.time == dfs.lower_bound
            assert dfs.nodes > exact.nodes


def test_a_time_limit_returns_the_best_so_far_with_a_valid_bound():
    best = osdp.solve(ENDLESS, 9000)
    s = osdp.solve(ENDLESS, 9000, method="dfs", time_limit=0.05)
    assert not s.optimal and s.lower_bound <= best.time <= s.time and s.memory <= 9000


def test_smallest_first_finds_a_plan_where_the_order_given_finds_none():
    instance = next(i for i in INSTANCES if i["name"] == "118 distinct @0.25")
    options, limit = options_of(instance), instance["limit"]
    with pytest.raises(osdp.InfeasibleError, match="'dfs-smallest-first'"):
        osdp.solve(options, limit, method="dfs", time_limit=0.2)
    s = osdp.solve(options, limit, method="dfs-smallest-first", time_limit=0.2)
    assert s.memory <= limit and s.time >= instance["best_time"]


def test_a_search_keeps_to_its_memory_and_says_what_it_proved():
    instance = next(i for i in INSTANCES if i["name"] == "118 distinct @0.75")
    options, limit = options_of(instance), instance["limit"]
    small = osdp.solve(options, limit, state="1MiB")
    assert not small.optimal and small.lower_bound <= instance["best_time"] <= small.time
    assert small.memory <= limit
    with pytest.raises(osdp.InvalidProblemError, match="state"):
        osdp.solve(options, limit, state=0)


def test_an_infeasible_limit_names_the_smallest_one_that_works():
    options = [[(5, 10), (9, 4)], [(1, 3)]]
    with pytest.raises(osdp.InfeasibleError, match="smallest limit that fits is 7") as e:
        osdp.solve(options, 6)
    assert e.value.smallest_limit == 7
    assert osdp.solve(options, 7).choices == (1, 0)


@pytest.mark.parametrize(
    "options, limit, message",
    [
        ([], 5, "no operators"),
        ([[(1, 1)], []], 5, "operator 1 has no options"),
        ([[(1, 1)], [(1, 1), (-3, 1)]], 5, "operator 1, option 1: negative time"),
        ([[(1, -1)]], 5, "operator 0, option 0: negative memory"),
        ([[(float("nan"), 1)]], 5, "operator 0, option 0: time must be an integer, got nan"),
        ([[(1.5, 1)]], 5, "operator 0, option 0: time must be an integer, got 1.5"),
        ([[(2**70, 1)]], 5, "operator 0, option 0: time .* overflows"),
        ([[(2**60, 1)]] * 3, 5, "operator 2: the total time overflows"),
        ([[(1, 2**61 + 1)]], 5, "operator 0: the total memory overflows"),
        ([[(1, 1)]], -1, "limit is negative"),
        ([[(1, 1)]], 1e9, "limit must be an integer, got 1000000000.0"),
        ([[1, 2]], 5, "operator 0: options must be"),
        ([[(1, 2, 3)]], 5, "operator 0: options must be"),
        ([[(True, 1)]], 5, "must be an integer"),
    ],
)
def test_a_problem_that_means_nothing_is_refused(options, limit, message):
    for method in ("exact", "dfs"):
        with pytest.raises(osdp.InvalidProblemError, match=message):
            osdp.solve(options, limit, method=method)


def test_names_stand_in_messages():
    with pytest.raises(osdp.InvalidProblemError, match=r"'h\.1\.fc'"):
        osdp.solve([[(1, 1)], []], 5, names=["h.0.fc", "h.1.fc"])


@pytest.mark.parametrize("bad", [{"method": "magic"}, {"time_limit": 0}, {"time_limit": float("nan")}])
def test_bad_arguments_are_refused(bad):
    with pytest.raises(osdp.InvalidProblemError, match=next(iter(bad))):
        osdp.solve([[(1, 1)]], 5, **bad)


@pytest.mark.parametrize("instance", INSTANCES, ids=lambda i: i["name"])
def test_results_do_not_depend_on_the_order_of_operators_and_repeat(instance):
    options, limit = options_of(instance), instance["limit"]
    first, again = osdp.solve(options, limit), osdp.solve(options, limit)
    assert dataclasses.replace(first, seconds=0) == dataclasses.replace(again, seconds=0)
    order = random.Random(7).sample(range(len(options)), len(options))
    shuffled = osdp.solve([options[i] for i in order], limit)
    assert (shuffled.time, shuffled.memory, shuffled.nodes) == (first.time, first.memory, first.nodes)


def test_an_array_is_solved_as_lists_are():
    instance = INSTANCES[16]
    options, limit = options_of(instance), instance["limit"]
    array = np.array(options, dtype=np.int64)
    from_array = osdp.solve(array, limit)
    assert dataclasses.replace(from_array, seconds=0) == dataclasses.replace(
        osdp.solve(options, limit), seconds=0
    )
    assert check_solution(array, limit, from_array) == ""
    assert "over the limit" in check_solution(array, from_array.memory - 1, from_array)


@pytest.mark.parametrize(
    "array, message",
    [
        (np.zeros((2, 2)), r"shape \(operators, options, 2\), got \(2, 2\)"),
        (np.zeros((2, 3, 2)), "must be int64, got format 'd'"),
        (np.zeros((2, 3, 2), dtype=np.int32), "must be int64"),
        (np.zeros((4, 3, 2), dtype=np.int64)[::2], "contiguous"),
        (np.zeros((0, 3, 2), dtype=np.int64), "no operators"),
        (np.zeros((2, 0, 2), dtype=np.int64), "operator 0 has no options"),
        (np.array([[[1, 1]], [[1, -1]]]), "operator 1, option 0: negative memory"),
        (np.array([[[1, 1]], [[2**62, 1]]]), "operator 1: the total time overflows"),
    ],
)
def test_a_bad_array_is_refused(array, message):
    with pytest.raises(osdp.InvalidProblemError, match=message):
        osdp.solve(array, 5)


@pytest.mark.parametrize("gap", [-0.1, 1.0, float("nan")])
def test_a_gap_is_a_fraction(gap):
    with pytest.raises(osdp.InvalidProblemError, match="gap"):
        osdp.solve([[(1, 1)]], 5, gap=gap)


def test_a_gap_ends_the_search_early_and_holds():
    instance = next(i for i in INSTANCES if i["name"] == "118 distinct @0.75")
    s = osdp.solve(options_of(instance), instance["limit"], gap=2e-8)
    assert s.time - s.lower_bound <= 2e-8 * s.time
    assert s.lower_bound <= instance["best_time"] <= s.time
    proven = osdp.solve(options_of(instance), instance["limit"])
    assert s.nodes < proven.nodes


problems = st.lists(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=4),
    min_size=1,
    max_size=6,
)


@given(problems, st.data())
@settings(max_examples=200, deadline=None)
def test_every_broken_solution_is_caught(options, data):
    least = sum(min(m for _, m in o) for o in options)
    limit = least + data.draw(st.integers(0, 60), label="room")
    s = osdp.solve(options, limit)
    assert check_solution(options, limit, s) == ""
    i = data.draw(st.integers(0, len(options) - 1), label="operator")
    off = data.draw(st.integers(-20, 20).filter(bool), label="off")
    which = data.draw(st.sampled_from(["time", "memory", "index", "choice", "short", "limit"]))
    if which == "limit":
        if s.memory >= abs(off):
            assert "over the limit" in check_solution(options, s.memory - abs(off), s)
        return
    if which == "choice":  # another option of one operator, which costs something else
        other = data.draw(st.integers(0, len(options[i]) - 1))
        if options[i][other] == options[i][s.choices[i]]:
            return
        choices = (*s.choices[:i], other, *s.choices[i + 1 :])
    elif which == "index":
        choices = (*s.choices[:i], -1 if off < 0 else len(options[i]), *s.choices[i + 1 :])
    else:
        choices = s.choices[:-1]
    broken = {
        "time": {"time": s.time + off},
        "memory": {"memory": s.memory + off},
    }.get(which, {"choices": choices})
    assert check_solution(options, limit, dataclasses.replace(s, **broken)) != ""


@given(problems, st.integers(0, 30), st.integers(1, 30), st.integers(0, 60))
@settings(max_examples=200, deadline=None)
def test_no_multiplier_proves_more_than_the_optimum(options, numerator, denominator, room):
    limit = sum(min(m for _, m in o) for o in options) + room
    s = osdp.solve(options, limit)
    proven = _search.proven_lower_bound(options, limit, (numerator, denominator))
    assert proven <= s.time
    best = _search.proven_lower_bound(options, limit, s.multiplier)
    wrong = check_solution(options, limit, dataclasses.replace(s, multiplier=(numerator, denominator)))
    assert wrong == "" if proven == best else "another one" in wrong


@pytest.mark.parametrize("multiplier", [(-1, 1), (1, 0), (1, -2)])
def test_a_multiplier_is_a_fraction(multiplier):
    options, limit = options_of(INSTANCES[0]), INSTANCES[0]["limit"]
    s = osdp.solve(options, limit)
    wrong = check_solution(options, limit, dataclasses.replace(s, multiplier=multiplier))
    assert "multiplier is not a fraction" in wrong


def every_solution(options, limit):
    """(time, memory, choices) of all that fits, the fastest first."""
    found = []
    for choices in itertools.product(*(range(len(o)) for o in options)):
        time, memory = (sum(o[k][x] for o, k in zip(options, choices, strict=True)) for x in (0, 1))
        if memory <= limit:
            found.append((time, memory, choices))
    return sorted(found)


@given(problems, st.integers(0, 60), st.data())
@settings(max_examples=200, deadline=None)
def test_an_answer_that_is_not_the_best_is_not_taken_for_the_best(options, room, data):
    limit = sum(min(m for _, m in o) for o in options) + room
    for method in ("exact", "dfs", "dfs-smallest-first"):
        s = osdp.solve(options, limit, method=method)
        assert check_solution(options, limit, s) == ""
        fits = every_solution(options, limit)
        assert s.time == fits[0][0]
        time, memory, choices = data.draw(st.sampled_from(fits), label="another")
        other = dataclasses.replace(s, choices=choices, time=time, memory=memory, lower_bound=time)
        assert (check_solution(options, limit, other) == "") == (time == s.time)
        # The same without the claim that it is the best: then the bound alone is what may be wrong.
        bound = data.draw(st.integers(0, time), label="bound")
        other = dataclasses.replace(other, lower_bound=bound, optimal=bound == time)
        assert (check_solution(options, limit, other) == "") == (bound <= s.time)
        # What is said twice agrees.
        assert "optimal is" in check_solution(options, limit, dataclasses.replace(s, optimal=False))


def test_ctrl_c_returns_the_best_plan_so_far_with_its_gap():
    program = textwrap.dedent(f"""
        import os, signal
        import osdp
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job begins with it ignored
        # Half a second of its own later, so that it searches by then on any machine.
        signal.signal(signal.SIGVTALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
        options = {ENDLESS!r}
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.5)
        s = osdp.solve(options, 9000, method="dfs", time_limit=250)
        print(s.optimal, s.lower_bound, s.time, s.memory, round(s.seconds), flush=True)
    """)
    process = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=300)
    assert process.returncode == 0
    optimal, bound, found, memory, seconds = process.stdout.split()
    assert optimal == "False"
    best = osdp.solve(ENDLESS, 9000)
    assert int(bound) <= best.time <= int(found) and int(memory) <= 9000 and int(seconds) < 200


def test_other_exceptions_of_signal_handlers_stop_a_search_and_are_raised():
    def interrupt(*_):
        raise ConnectionError("lost")

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(ConnectionError, match="lost"):
            osdp.solve(ENDLESS, 9000, method="dfs", time_limit=60)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert osdp.solve([[(1, 1)]], 1).time == 1


def test_a_search_lets_other_threads_run():
    done = threading.Event()
    thread = threading.Thread(
        target=lambda: (osdp.solve(ENDLESS, 9000, method="dfs", time_limit=1.0), done.set())
    )
    thread.start()
    steps = 0
    while not done.is_set():
        steps += 1
    thread.join()
    assert steps > 1000  # with the GIL held, the loop would start after the search
