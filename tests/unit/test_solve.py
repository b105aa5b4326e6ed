"""osdp.solve: the bare problem."""

import json
import signal
import threading
from pathlib import Path

import pytest

import osdp
from osdp.searching import check_solution

DATA = Path(__file__).parent.parent / "data"
INSTANCES = json.loads((DATA / "search_instances.json").read_text())["instances"]
BLOCKS = json.loads((DATA / "rtx_titan_8gpu_blocks.json").read_text())["blocks"]
# 12^30 plans, none dominated: the plain depth-first search will not end.
ENDLESS = [[(1000 - 7 * k * k - i, 50 + 37 * k + i % 5) for k in range(12)] for i in range(30)]


def options_of(instance):
    return [[tuple(o) for o in options] for options in instance["operators"]]


@pytest.mark.parametrize("instance", INSTANCES, ids=lambda i: i["name"])
def test_known_instances_are_solved_to_their_proven_optimum(instance):
    options = options_of(instance)
    s = osdp.solve(options, instance["limit"])
    assert s.optimal and s.time == s.lower_bound == instance["best_time"]
    assert sum(options[i][k][0] for i, k in enumerate(s.choices)) == s.time
    assert sum(options[i][k][1] for i, k in enumerate(s.choices)) == s.memory <= instance["limit"]
    assert check_solution(options, instance["limit"], s) == ""


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
        dfs = osdp.solve(options, instance["limit"], method="dfs")
        assert dfs.optimal and dfs.time == exact.time == dfs.lower_bound
        assert dfs.nodes > exact.nodes


def test_a_time_limit_returns_the_best_so_far_with_a_valid_bound():
    best = osdp.solve(ENDLESS, 9000)
    s = osdp.solve(ENDLESS, 9000, method="dfs", time_limit=0.05)
    assert not s.optimal and s.lower_bound <= best.time <= s.time and s.memory <= 9000


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
        ([[(float("nan"), 1)]], 5, "operator 0, option 0: time is nan"),
        ([[(1.5, 1)]], 5, "operator 0, option 0: time is 1.5"),
        ([[(2**70, 1)]], 5, "operator 0, option 0: time .* overflows"),
        ([[(2**60, 1)]] * 3, 5, "operator 2: the total time overflows"),
        ([[(1, 2**61 + 1)]], 5, "operator 0: the total memory overflows"),
        ([[(1, 1)]], -1, "limit is negative"),
        ([[(1, 1)]], 1e9, "limit is 1000000000.0; it must be an integer"),
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
    with pytest.raises(osdp.InvalidProblemError, match=r"operator 'h\.1\.fc' has no options"):
        osdp.solve([[(1, 1)], []], 5, names=["h.0.fc", "h.1.fc"])


@pytest.mark.parametrize("bad", [{"method": "magic"}, {"time_limit": 0}, {"time_limit": float("nan")}])
def test_bad_arguments_are_refused(bad):
    with pytest.raises(osdp.InvalidProblemError, match=next(iter(bad))):
        osdp.solve([[(1, 1)]], 5, **bad)


def test_results_do_not_depend_on_the_order_of_operators_and_repeat():
    options = options_of(INSTANCES[16])
    limit = INSTANCES[16]["limit"]
    first, again = osdp.solve(options, limit), osdp.solve(options, limit)
    assert first.choices == again.choices
    backward = osdp.solve(options[::-1], limit)
    assert (backward.time, backward.memory, backward.nodes) == (first.time, first.memory, first.nodes)


@pytest.mark.parametrize("broken", ["time", "memory", "choices", "multiplier", "limit"])
def test_a_broken_solution_is_caught(broken):
    import dataclasses

    options, limit = options_of(INSTANCES[0]), INSTANCES[0]["limit"]
    s = osdp.solve(options, limit)
    if broken == "limit":
        assert "over the limit" in check_solution(options, s.memory - 1, s)
        return
    value = {
        "time": s.time - 1,
        "memory": s.memory - 1,
        "choices": (*s.choices[:-1], s.choices[-1] + 1),
        "multiplier": (-1, 1),
    }[broken]
    assert_caught = dataclasses.replace(s, **{broken: value})
    if broken == "multiplier":
        with pytest.raises(ValueError, match="multiplier"):
            check_solution(options, limit, assert_caught)
    else:
        assert check_solution(options, limit, assert_caught) != ""


def test_ctrl_c_stops_a_search():
    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
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
