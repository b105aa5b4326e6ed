"""osdp.search: objectives, hosts, prefetch, interruption; and searching again from a plan."""

import dataclasses
import itertools
import signal

import pytest

import osdp
from osdp.hardware.hardware import Collective
from osdp.planning.search import search_again
from osdp.planning.verify import verify
from tests.unit.gpt_descriptions import gpt, machine

HERE = dict(world_size=8, hardware=machine())


def test_the_smallest_memory_at_a_throughput():
    description = gpt(2, 128)
    best = osdp.search(description, memory="64MiB", **HERE)
    wanted = best.predicted.throughput * 0.8
    # It ends by its time, which other work on the machine must not decide.
    plan = osdp.search(
        description, memory="64MiB", objective="memory", at_least=wanted, time_limit=100, **HERE
    )
    assert plan.predicted.throughput >= wanted
    assert plan.memory_limit_bytes < best.predicted.peak_memory_bytes
    less = osdp.search(description, memory=plan.memory_limit_bytes - 1, **HERE)
    assert less.predicted.throughput < wanted
    assert verify(plan) == ""
    with pytest.raises(osdp.InfeasibleError, match="the best gives") as e:
        osdp.search(description, memory="64MiB", objective="memory", at_least=wanted * 10, **HERE)
    assert e.value.plan.predicted.throughput == pytest.approx(best.predicted.throughput)


def test_the_largest_batch():
    description = gpt(3, 128)
    plan = osdp.search(description, memory="24MiB", objective="batch", **HERE)
    assert plan.batch_size > osdp.search(description, memory="24MiB", **HERE).batch_size
    with pytest.raises(osdp.InfeasibleError):
        osdp.search(description, memory="24MiB", batch_size=plan.batch_size + 1, **HERE)
    whole = osdp.search(description, memory="24MiB", objective="batch", global_batch_size=8 * 60, **HERE)
    assert 60 % whole.batch_size == 0 and whole.batch_size * whole.accumulation == 60
    assert not any(
        whole.batch_size < d <= plan.batch_size for d in (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60)
    )


def test_gathers_stay_inside_hosts_where_links_between_them_are_slow():
    hardware = machine(8, between_hosts=Collective(1e-4, 2e-9))
    arguments = dict(memory="24MiB", world_size=8, hardware=hardware, batch_size=2)
    flat = ("NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD")
    modes = (flat, (*flat, "HYBRID_SHARD"), "auto", (*flat, "HYBRID_SHARD", "FULL_SHARD_HIERARCHICAL"))
    plans = [osdp.search(gpt(4, 256), hosts=2, modes=allowed, **arguments) for allowed in modes]
    for plan, mode in zip(plans[1:3], ("HYBRID_SHARD", "FULL_SHARD_HPZ"), strict=True):
        assert mode in {c.mode for c in plan.choices.values()}
    steps = [plan.predicted.step_time_s for plan in plans]
    assert steps[2] <= steps[1] < steps[0] and steps[3] < steps[0]
    assert [verify(plan) for plan in plans] == [""] * 4 and plans[1].searched.hosts == 2
    with pytest.raises(osdp.InvalidProblemError, match="HYBRID_SHARD needs several hosts"):
        osdp.search(gpt(1, 64), modes="HYBRID_SHARD", **arguments)
    with pytest.raises(osdp.InvalidProblemError, match="hosts is 3"):
        osdp.search(gpt(1, 64), hosts=3, **arguments)


def test_hybrid_shard_holds_a_hosts_share_and_pays_both_links():
    from osdp import _search
    from osdp.description.model_description import ModelDescription
    from tests.unit.gpt_descriptions import operator
    from tests.unit.problems import problem_of

    hardware = machine(
        8,
        all_gather=Collective(1e-6, 1e-10),
        reduce_scatter=Collective(2e-6, 2e-10),
        between_hosts=Collective(5e-6, 5e-10),
    )
    description = ModelDescription("One", (operator("e", "Embedding", {"weight": (64, 64)}),), (), 1, 0)
    problem = problem_of(
        description, hardware, 8, hosts=2, modes="HYBRID_SHARD", granularity=1, checkpoint=False
    )
    [c] = _search.candidates(problem.planner.model, problem.planner.request(), 0, "none")
    size = 64 * 64 * 4
    assert c.state_bytes == 4 * size // 4  # 4 ranks a host
    gather, scatter = 3 * (1e-6 + size / 4 * 1e-10), 3 * (2e-6 + size / 4 * 2e-10)
    across = 2 * (5e-6 + 4 * (size / 4) / 2 * 5e-10)  # the 4 ranks of a host share its links
    assert c.communication_ps == pytest.approx((2 * gather + scatter + across) * 1e12, abs=1)


def test_more_prefetch_takes_more():
    peaks = []
    for prefetch in (0, 1, 2):
        plan = osdp.search(
            gpt(4, 256), memory="1GiB", modes="FULL_SHARD", granularity=1, batch_size=1, prefetch=prefetch,
            checkpoint=False, **HERE
        )  # fmt: skip
        assert verify(plan) == ""
        peaks.append(plan.predicted.peak_memory_bytes)
    assert peaks[0] < peaks[1] < peaks[2]


def test_units_are_gathered_as_far_ahead_as_is_faster():
    arguments = dict(memory="1GiB", modes="FULL_SHARD", granularity=1, batch_size=8, **HERE)
    one, chosen = (osdp.search(gpt(4, 256), checkpoint=True, prefetch=p, **arguments) for p in (1, "auto"))
    assert verify(chosen) == ""
    assert chosen.predicted.step_time_s < 0.95 * one.predicted.step_time_s
    # Recomputing a block, its units wait for the reductions of the block before, unless they were gathered earlier.
    steps = [dataclasses.replace(chosen, prefetch=p).simulate().step_time_s for p in (1, 2, 4, 8)]
    assert chosen.prefetch == min(p for p, s in zip((1, 2, 4, 8), steps, strict=True) if s == min(steps)) > 1
    assert osdp.search(gpt(4, 256), checkpoint=False, **arguments).prefetch == 1  # no gain, no memory


def test_exposed_communication_scales_the_communication():
    arguments = dict(
        memory="20MiB", world_size=8, batch_size=1, modes="FULL_SHARD", granularity=1, checkpoint=False
    )
    one = osdp.search(gpt(2, 128), hardware=machine(), **arguments)
    half = osdp.search(gpt(2, 128), hardware=machine(exposed_communication=0.5), **arguments)
    both = [sum(o.communication_s for o in plan.predicted.operators.values()) for plan in (one, half)]
    assert both[1] == pytest.approx(both[0] / 2)
    # Played, communication is what it is.
    assert half.predicted.communication_s == pytest.approx(one.predicted.communication_s)


def test_ctrl_c_gives_the_best_plan_so_far():
    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        # Hard on purpose: many limits bind and every width is another kind.
        plan = osdp.search(gpt(5, 256), memory="17MiB", granularity=tuple(range(2, 65)), **HERE)
    except KeyboardInterrupt:
        return  # before the first plan was found, or after the search
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert verify(plan) == ""
    assert 0 <= plan.certificate.gap <= 1


def test_an_infeasible_limit_of_a_large_model_is_answered_with_one_that_works():
    description = gpt(48, 1600, tokens=1024, vocabulary=50257)
    arguments = dict(world_size=8, hardware=machine(), time_limit=20.0)
    with pytest.raises(osdp.InfeasibleError) as e:
        osdp.search(description, memory="2GiB", **arguments)
    least = e.value.smallest_limit
    assert e.value.plan.memory_limit_bytes == least > 2 * 2**30
    assert osdp.verify(e.value.plan) == ""
    # Just enough is enough, however little time there is; a little less is not.
    plan = osdp.search(description, memory=least + 2**20, world_size=8, hardware=machine(), time_limit=0.2)
    assert plan.predicted.peak_memory_bytes <= least + 2**20
    assert osdp.verify(plan) == ""
    with pytest.raises(osdp.InfeasibleError, match="no plan fits") as e:
        osdp.search(description, memory=least - 2**20, **arguments)
    assert e.value.smallest_limit == least


def test_a_time_limit_gives_a_plan_with_its_gap():
    plan = osdp.search(gpt(5, 256), memory="20MiB", time_limit=0.3, **HERE)
    full = osdp.search(gpt(5, 256), memory="20MiB", **HERE)
    per_sample = [p.certificate.step_ps / p.batch_size for p in (plan, full)]
    assert per_sample[1] >= per_sample[0] * (1 - plan.certificate.gap) * (1 - 1e-12)


def test_search_again_is_the_same_search():
    plan = osdp.search(
        gpt(3, 128), memory="24MiB", global_batch_size=64, granularity=(2, 3), checkpoint="hold", **HERE
    )
    assert search_again(plan, "24MiB") == plan
    assert search_again(plan, "16MiB").predicted.step_time_s > plan.predicted.step_time_s


def test_a_frontier_rises_from_the_least_to_what_gains_nothing():
    plan = osdp.search(gpt(3, 128), memory="20MiB", batch_size=4, **HERE)
    points = plan.frontier(points=6).points
    assert len(points) >= 5
    for a, b in itertools.pairwise(points):
        assert a.memory_limit_bytes < b.memory_limit_bytes and a.throughput <= b.throughput * (1 + 1e-12)
    assert points[-1].throughput == pytest.approx(
        osdp.search(gpt(3, 128), memory="8GiB", batch_size=4, **HERE).predicted.throughput, rel=1e-3
    )
    with pytest.raises(osdp.InfeasibleError):
        search_again(plan, points[0].memory_limit_bytes - 1)
    prices = [
        search_again(plan, p.memory_limit_bytes).price_of_memory_s_per_byte for p in (points[0], points[-1])
    ]
    assert prices[0] > 0 == prices[1]  # memory does not bind where the limit is large


def test_the_smallest_limit_is_found_only_where_it_is_asked_for():
    from tests.unit.problems import problem_of

    problem = problem_of(gpt(4, 256), machine(8), 8, batch_size=1)
    wish = problem.wish(4 << 20)
    answer = problem.planner.search(wish)
    assert not answer.feasible and answer.smallest_limit_bytes > 4 << 20
    wish.find_smallest = False
    answer = problem.planner.search(wish)
    assert not answer.feasible and answer.smallest_limit_bytes == 0
