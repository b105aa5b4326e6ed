"""osdp.search with degrees: against brute force over degrees, cuts and small plans, each played; what it refuses."""

import dataclasses
import itertools
import json
import re
from typing import Any

import pytest

import osdp
from osdp import _search
from osdp.description.model_description import ModelDescription
from osdp.hardware.hardware import Collective, HostMemory
from osdp.planning.degrees.chain import Chain, for_stages
from osdp.planning.degrees.search_degrees import Search, search_degrees
from osdp.planning.degrees.stage_search import StageResult, most_bytes, times_of
from osdp.planning.degrees.styles import styles_of
from osdp.planning.search_problem import SearchProblem
from tests.unit.gpt_descriptions import gpt, linear, operator
from tests.unit.planning.degrees.problems import STYLES, hosts_machine, searched


def test_the_answer_is_data_that_verifies() -> None:
    plan = searched()
    assert osdp.verify(plan) == ""
    assert osdp.ParallelPlan.loads(plan.dumps()) == plan
    names = [o.name for s in plan.stages for o in s.plan.description.operators]
    assert sorted(names) == sorted(o.name for o in plan.description.operators)
    timeline = plan.simulate()
    assert timeline.step_time_s == plan.step_time_s and timeline.idle_share == pytest.approx(plan.idle_share)
    assert len(timeline.passes) == 2 * plan.pipeline_parallel * plan.micro_batches
    text = str(plan)
    for word in ("tensor", "stage", "FSDP", "3D", "ruled out"):
        assert word in text
    assert "> forward" in str(timeline)


@pytest.mark.parametrize(
    ("memory", "stages", "schedule"),
    [("3MiB", 2, "1f1b"), ("5MiB", 4, "1f1b"), ("7MiB", 2, "gpipe"), ("11MiB", 4, "gpipe")],
)
def test_plans_of_one_mode_verify_as_searched_ones_do(memory: str, stages: int, schedule: str) -> None:
    """Their peak with several micro-batches in flight is derived from that with one."""
    plan = searched(memory=memory, pipeline_parallel=stages, schedule=schedule, global_batch_size=32)
    assert osdp.verify(plan) == ""


def test_blocks_that_change_their_inputs_are_not_cut() -> None:
    """A model of transformers that is described with its cache: half a layer is no stage, since a residual passes by."""
    whole = gpt(3, 64)
    operators = tuple(dataclasses.replace(o, block=None) for o in whole.operators)
    names = tuple(b.name for b in whole.blocks)
    cached = dataclasses.replace(whole, operators=operators, blocks=(), blocks_changing_inputs=names)
    chains = [Chain(for_stages(d)) for d in (whole, cached)]
    assert [link.operators for link in chains[1].links] == [link.operators for link in chains[0].links]
    assert chains[1].stage(1, 3).blocks_changing_inputs == names[:2]


def test_with_more_means_nothing_is_slower() -> None:
    for memory in ("2500KiB", "4MiB"):
        plan = searched(memory=memory)
        steps = {a.name: a.step_time_s for a in plan.alternatives}
        own = [s for s in steps.values() if s is not None]
        assert own and plan.step_time_s <= min(own) * (1 + 1e-9)
        parts = [steps[n] for n in ("DP", "TP", "PP") if steps[n] is not None]
        assert all(steps["3D"] <= s for s in parts)


@pytest.mark.parametrize("hosts", [1, 2])
def test_what_only_slices_fit_is_among_the_alternatives(hosts: int) -> None:
    wide = gpt(1, 256, tokens=8, vocabulary=10)
    asked: dict[str, Any] = {"granularity": 4, "global_batch_size": 8, "hosts": hosts}
    plan = searched(wide, memory="3400KiB", tensor_parallel=1, tp_plan=None, **asked)
    steps = {a.name: a.step_time_s for a in plan.alternatives}
    assert steps["FSDP"] is None and steps["OSDP"] is not None and plan.step_time_s <= steps["OSDP"]


@pytest.mark.parametrize("memory", ["5MiB", "9MiB", "16MiB"])
def test_over_several_hosts_nothing_is_slower(memory: str) -> None:
    plan = searched(gpt(4, 128, tokens=8, vocabulary=10), memory=memory, hosts=2)
    own = [a.step_time_s for a in plan.alternatives if a.step_time_s is not None]
    assert own and plan.step_time_s <= min(own) * (1 + 1e-9)


def test_stages_may_offload_operators() -> None:
    """What is in host memory is not counted against the limit before a plan is made, and no other mode stands for it."""
    host = HostMemory(Collective(1e-5, 1e-10), 1e-9)
    machine = hosts_machine(host_memory=host)
    kept = ["NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD"]
    asked: dict[str, Any] = {"memory": "2500KiB", "hardware": machine}
    plan = searched(modes=[*kept, "FULL_SHARD_OFFLOAD"], **asked)
    assert osdp.verify(plan) == "" and plan.step_time_s < searched(modes=kept, **asked).step_time_s
    assert "FULL_SHARD_OFFLOAD" in {c.mode for s in plan.stages for c in s.plan.choices.values()}
    asked |= {"memory": "4MiB", "hosts": 2, "tensor_parallel": 1, "tp_plan": None}
    everything = searched(modes=["HYBRID_SHARD_OFFLOAD"], pipeline_parallel=1, **asked)
    assert osdp.verify(everything) == ""
    assert {c.mode for c in everything.stages[0].plan.choices.values()} == {"HYBRID_SHARD_OFFLOAD"}
    # Stages on one host each.
    several = searched(modes=["FULL_SHARD", "HYBRID_SHARD_OFFLOAD"], pipeline_parallel=2, **asked)
    assert {c.mode for s in several.stages for c in s.plan.choices.values()} == {"FULL_SHARD"}
    for mode in ("HYBRID_SHARD", "HYBRID_SHARD_OFFLOAD"):
        with pytest.raises(
            osdp.InvalidProblemError, match=f"{mode} needs several ranks on each of several hosts"
        ):
            searched(modes=mode, pipeline_parallel=2, **asked)


def test_only_modes_that_were_asked_for_are_returned() -> None:
    plan = searched(memory="1GiB", tensor_parallel=1, pipeline_parallel=2, tp_plan=None, modes=["FULL_SHARD"])
    assert {c.mode for s in plan.stages for c in s.plan.choices.values()} == {"FULL_SHARD"}
    assert str(plan).count("not asked for") == 1


def test_stages_differ_where_the_model_does() -> None:
    """A head as heavy as all blocks together gets a stage of its own, and an even cut would be slower."""
    blocks = gpt(3, 64, vocabulary=100)
    heavy = linear("head", 3000, 64, 128)
    model = dataclasses.replace(blocks, operators=(*blocks.operators[:-1], heavy))
    plan = searched(model, tensor_parallel=1, pipeline_parallel=2, memory="8MiB", tp_plan=None)
    assert plan.stages[-1].modules[-1] == "head" and len(plan.stages[-1].modules) < len(
        plan.stages[0].modules
    )
    work = [sum(o.flops_per_sample for o in s.plan.description.operators) for s in plan.stages]
    assert max(work) < 0.75 * sum(work)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"tensor_parallel": 3}, "tensor_parallel=3 does not divide the world size 8"),
        ({"pipeline_parallel": 3}, "pipeline_parallel=3 does not divide the world size 8"),
        ({"tensor_parallel": 4, "pipeline_parallel": 4}, "tensor_parallel=4 x pipeline_parallel=4 does not divide"),
        ({"tensor_parallel": 8, "hosts": 2}, "tensor_parallel=8: its ranks must divide a host's, 4"),
        ({"tensor_parallel": "all"}, "tensor_parallel must be 'auto' or a number of ranks, got 'all'"),
        ({"tensor_parallel": 2, "tp_plan": {"h.*.nothing": "colwise"}}, "tp_plan['h.*.nothing'] names no module"),
        ({"tensor_parallel": 2, "tp_plan": None}, "tensor_parallel=2 needs tp_plan="),
        ({"tensor_parallel": None, "pipeline_parallel": 2}, "tp_plan is given, but tensor_parallel is not"),
        ({"tensor_parallel": None, "pipeline_parallel": None}, "tp_plan is given, but tensor_parallel is not"),
        ({"global_batch_size": None}, "set global_batch_size="),
        ({"global_batch_size": 6, "tensor_parallel": 1, "pipeline_parallel": 2}, "global batch of 6 is not divided by 4"),
        ({"schedule": "zigzag"}, "schedule must be one of 'auto', '1f1b', 'gpipe'"),
        ({"pipeline_parallel": 8, "tensor_parallel": 1}, "pipeline_parallel=8: GPT can be cut into 7 parts"),
        ({"batch_size": 0}, "batch_size is 0; a micro-batch has"),
        ({"batch_size": 3, "pipeline_parallel": 1, "tensor_parallel": 1}, "micro-batches of 3 do not divide"),
        ({"objective": "batch"}, "degrees are searched with cost='osdp'"),
    ],
)  # fmt: skip
def test_bad_input_is_named(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(osdp.InvalidProblemError, match=re.escape(said)):
        searched(**asked)


def test_a_tied_weight_across_stages_is_named() -> None:
    model = gpt(3, 64)
    tied = dataclasses.replace(model.operators[0], gather_at=("wte", "head"), calls=2)
    model = dataclasses.replace(model, operators=(tied, *model.operators[1:-1]))
    untied = operator("head", "Head", {}, flops=1000)
    model = dataclasses.replace(model, operators=(*model.operators, untied))
    with pytest.raises(osdp.InvalidProblemError, match=r"wte\.weight"):
        searched(model, pipeline_parallel=2, tensor_parallel=1)
    assert searched(model, memory="16MiB").pipeline_parallel == 1


def test_what_fits_nowhere_is_an_error_that_names_the_smallest_limit() -> None:
    least = set()
    for memory, said in (("10KiB", "10.0 KiB"), ("1200KiB", "1.17 MiB")):
        with pytest.raises(osdp.InfeasibleError, match=said) as told:
            searched(memory=memory)
        least.add(told.value.smallest_limit)
    (limit,) = least  # whatever was asked for
    assert searched(memory=limit).peak_memory_bytes <= limit
    with pytest.raises(osdp.InfeasibleError) as told:
        searched(memory="10KiB", modes=["NO_SHARD"], checkpoint="none")
    assert told.value.smallest_limit is not None and told.value.smallest_limit > limit
    assert searched(memory=told.value.smallest_limit, modes=["NO_SHARD"], checkpoint="none")


def test_a_changed_answer_is_noticed() -> None:
    plan = searched(tensor_parallel=2, pipeline_parallel=2)
    data = json.loads(plan.dumps())

    def wrong(**changes: Any) -> str:
        try:
            return osdp.verify(osdp.ParallelPlan.loads(json.dumps({**data, **changes})))
        except osdp.FormatError as error:
            return str(error)

    assert wrong() == ""
    assert "step_time_s" in wrong(step_time_s=data["step_time_s"] * 0.99)
    assert "data_parallel" in wrong(data_parallel=4)
    assert "stages" in wrong(stages=data["stages"][:1])
    assert wrong(tp_plan={"h.*.mlp.fc": "colwise", "h.*.mlp.proj": "rowwise"}) != ""
    assert wrong(hosts=2) != ""
    assert wrong(schedule="gpipe") != ""
    other = json.loads(json.dumps(data["stages"]))
    other[0]["plan"]["searched"]["stage"]["in_flight"] = 1
    assert "stages[0]" in wrong(stages=other)
    swapped = json.loads(json.dumps(data["stages"]))
    swapped[0]["modules"], swapped[1]["modules"] = swapped[1]["modules"], swapped[0]["modules"]
    assert "its modules" in wrong(stages=swapped)


# --- brute force


def small(layers: int, width: int) -> ModelDescription:
    """Of blocks of two linear operators each, and a head."""
    whole = gpt(layers, width, tokens=16, vocabulary=64)
    keep = [o for o in whole.operators if o.name.endswith(("mlp.fc", "mlp.proj", "head"))]
    return dataclasses.replace(whole, operators=tuple(keep), input_bytes_per_sample=0)


def every_played_pipeline(search: Search) -> int:
    """The fastest step over all degrees, micro-batches, cuts, schedules, and plans of a mode for each operator."""
    best = 2**61
    modes = search.problem.searched.modes
    for candidate in search.candidates():
        pipelines = search.pipelines(candidate)
        links, p = pipelines.sharing.chain.most_stages, candidate.degrees.pipeline
        plans: dict[tuple[int, int, int], StageResult | None] = {}
        inside = itertools.combinations(range(1, links), p - 1)
        for inner, schedule in itertools.product(inside, _search.SCHEDULES):
            cuts = (0, *inner, links)
            results = []
            for i in range(p):
                flight = _search.most_in_flight(schedule, p, i, candidate.micro_batches)
                at = (cuts[i], cuts[i + 1], flight)
                if at not in plans:
                    plans[at] = fastest_plan(
                        pipelines.searches.problem(*at), modes, search.limit_bytes, candidate
                    )
                results.append(plans[at])
            if any(r is None for r in results):
                continue
            times = pipelines.pipelines(None).times(results, cuts)  # type: ignore[arg-type]
            played = pipelines.layout.played(
                search.problem.hardware, schedule, times, candidate.micro_batches
            )
            best = min(best, played.step_ps)
    return best


def fastest_plan(problem: SearchProblem, modes: Any, limit: int, candidate: Any) -> StageResult | None:
    d, best = problem.description, None
    batch = _search.Batch(candidate.batch, candidate.micro_batches)
    own = [i for i, o in enumerate(d.operators) if o.parameters]
    for way in problem.searched.checkpoint:
        for picked in itertools.product(modes if problem.ranks > 1 else ("NO_SHARD",), repeat=len(own)):
            choices = [_search.Choice() for _ in d.operators]
            for i, mode in zip(own, picked, strict=True):
                choices[i] = _search.Choice(mode, 1, 0 if mode == "NO_SHARD" else 1)
            plan = _search.Plan(batch, choices, [way] * len(d.blocks))
            peak = problem.planner.largest_peak(plan)
            if peak > most_bytes(limit):
                continue
            times = times_of(problem.planner.play(plan), candidate.micro_batches)
            result = StageResult(times, peak, plan, "listed")
            if best is None or result.step_ps(candidate.micro_batches) < best.step_ps(
                candidate.micro_batches
            ):
                best = result
    return best


@pytest.mark.parametrize(
    ("layers", "width", "memory", "modes", "faster"),
    [
        (2, 32, 180_000, ("NO_SHARD", "FULL_SHARD"), ()),
        (3, 32, 220_000, ("NO_SHARD", "FULL_SHARD"), ()),
        (3, 32, 220_000, ("NO_SHARD", "FULL_SHARD"), (2.0, 2.0)),
        (2, 64, 600_000, ("NO_SHARD", "FULL_SHARD"), ()),
        (2, 64, 330_000, ("NO_SHARD", "FULL_SHARD", "FULL_SHARD_OFFLOAD"), ()),
    ],
)
def test_no_listed_pipeline_is_faster_than_the_gap(
    layers: int,
    width: int,
    memory: int,
    modes: tuple[str, ...],
    faster: tuple[float, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caught: list[Search] = []

    def catch(search: Search) -> osdp.ParallelPlan:
        caught.append(search)
        return search_degrees(search)

    monkeypatch.setattr("osdp.planning.degrees.arguments.search_degrees", catch)
    model = small(layers, width)
    plan = searched(
        model,
        memory=memory,
        world_size=4,
        hardware=hosts_machine(
            4, host_memory=HostMemory(Collective(1e-5, 1e-10), 1e-9), fewer_ranks_speedup=faster
        ),
        global_batch_size=8,
        granularity=1,
        modes=modes,
        checkpoint=("none", "hold"),
        tp_plan={n: s for n, s in STYLES.items() if ".mlp." in n},
    )
    assert osdp.verify(plan) == ""
    best = every_played_pipeline(caught[0])
    assert plan.step_time_s * 1e12 <= best * 1.01


def test_the_loss_around_all_blocks_stands_at_the_end() -> None:
    model = gpt(2, 64)
    saved = sum(o.saved_bytes_per_sample for o in model.operators[1:])
    loss = operator("", "GPT", {}, saved=100, work=saved + 70)
    model = dataclasses.replace(model, operators=(model.operators[0], loss, *model.operators[1:]))
    first, *others, last = for_stages(model).operators
    assert first == model.operators[0]
    # In the description theirs is beside what the loss saves at the end.
    now = [o.work_bytes_per_sample - 100 for o in others]
    assert now == [o.work_bytes_per_sample for o in model.operators[2:]]
    assert (last.name, last.saved_bytes_per_sample, last.work_bytes_per_sample) == ("", 100, 70)
    assert for_stages(gpt(2, 64)) == gpt(2, 64)
    plan = searched(model, memory="16MiB", pipeline_parallel=2)
    assert osdp.verify(plan) == ""
    assert plan.stages[-1].plan.description.operators[-1].name == ""


def test_links_are_blocks_and_what_is_around_them() -> None:
    chain = Chain(gpt(2, 64))
    assert [link.name for link in chain.links] == ["wte", "h.0", "h.1", "ln_f", "head"]
    assert chain.links[1].boundary_bytes_per_sample == chain.description.blocks[0].input_bytes_per_sample
    first, second = chain.stage(0, 2), chain.stage(2, 5)
    assert [b.name for b in first.blocks] == ["h.0"] and [b.name for b in second.blocks] == ["h.1"]
    assert second.input_bytes_per_sample == first.output_bytes_per_sample == 4 * 128 * 64
    assert styles_of(first, {"h.*.mlp.fc": "colwise"}) == {"h.0.mlp.fc": "colwise"}
