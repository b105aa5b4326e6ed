"""osdp.search: from a description to a plan."""

import dataclasses
import itertools
import json
from pathlib import Path

import pytest

import osdp
from benchmarks.planner import transformer
from osdp import _search
from osdp.description.model_description import ModelDescription
from osdp.hardware.hardware import Collective
from osdp.planning.verify import verify
from tests.unit.gpt_descriptions import gpt, linear, machine, operator
from tests.unit.problems import problem_of

DATA = Path(__file__).parents[2] / "data"
MIB = 2**20


@pytest.mark.parametrize("index", range(22))
def test_cost_paper_rebuilds_the_papers_instances(index):
    """The instances were priced with the paper's formulas (N = 8, alpha 20 us, beta 1e-10 s/B, 16 bytes a
    parameter)."""
    instance = json.loads((DATA / "search_instances.json").read_text())["instances"][index]
    operators = []
    for i, options in enumerate(instance["operators"]):
        elements = options[0][1] // 16
        assert elements % 16 == 0
        shape = (16, elements // 16)
        operators.append(operator(f"op{i}", "Linear", {"weight": shape}, split=shape))
    description = ModelDescription("Paper", tuple(operators), (), 1, 0)
    plan = osdp.search(
        description, memory=instance["limit"], world_size=8, hardware=machine(8), batch_size=1, cost="paper"
    )
    assert plan.certificate.optimal and plan.certificate.step_ps == instance["best_time"]
    assert plan.predicted.peak_memory_bytes <= instance["limit"]
    assert verify(plan) == ""


def candidates(op, **changes):
    problem = problem_of(ModelDescription("One", (op,), (), 1, 0), machine(4, **changes), 4, checkpoint=False)
    found = _search.candidates(problem.planner.model, problem.planner.request(), 0, "none")
    return {(c.choice.mode, c.choice.granularity, c.choice.sharded_slices): c for c in found}


def figures(candidate):
    names = (n for n in dir(candidate) if n.endswith(("_bytes", "_ps")))
    return {name: getattr(candidate, name) for name in names}


def test_memory_follows_the_rows_that_ranks_hold():
    # 10 rows over 4 ranks: 3 each. 12 columns of fp32; a bias of 10: 3 elements each.
    found = candidates(linear("fc", 10, 12, 1))
    weight, bias = 10 * 12 * 4, 10 * 4
    assert found["NO_SHARD", 1, 0].state_bytes == 4 * (weight + bias)
    assert found["FULL_SHARD", 1, 1].state_bytes == 4 * (3 * 12 * 4 + 3 * 4)
    assert found["FULL_SHARD", 1, 1].transient_bytes == weight + bias
    assert found["FULL_SHARD", 1, 1].gradient_bytes == 3 * 12 * 4 + 3 * 4
    assert found["FULL_SHARD", 1, 1].whole_gradient_bytes == 0
    assert found["SHARD_GRAD_OP", 1, 1].state_bytes == 4 * (3 * 12 * 4 + 3 * 4)
    assert found["SHARD_GRAD_OP", 1, 1].gathered_bytes == weight + bias
    # Two slices of 5 rows, 2 rows of each at most on a rank; one sharded, one whole. The bias stays whole.
    assert found["FULL_SHARD", 2, 1].whole_gradient_bytes == 5 * 12 * 4 + bias
    assert found["FULL_SHARD", 2, 1].state_bytes == 4 * (2 * 12 * 4 + 5 * 12 * 4 + bias)
    assert found["FULL_SHARD", 2, 2].state_bytes == 4 * (2 * 2 * 12 * 4 + bias)
    assert found["FULL_SHARD", 2, 2].transient_bytes == weight // 2
    # 4 divides the 12 columns but not the 10 rows: input slices.
    assert found["FULL_SHARD", 4, 4].state_bytes == 4 * (4 * 3 * 3 * 4 + bias)
    # 8 divides neither: rows 1, 1, 1, 2, 1, 1, 1, 2. The last three are sharded, and the first six rows stay whole.
    assert found["FULL_SHARD", 8, 3].whole_gradient_bytes == 6 * 12 * 4 + bias
    assert found["FULL_SHARD", 8, 3].state_bytes == 4 * (3 * 12 * 4 + 6 * 12 * 4 + bias)
    assert found["FULL_SHARD", 8, 3].transient_bytes == 2 * 12 * 4
    assert not any(g == 16 for _, g, _ in found)


@pytest.mark.parametrize("places", [("wte", "head"), ("wte",)], ids=["tied", "called twice"])
def test_parameters_that_are_read_again_are_gathered_by_themselves(places):
    once = operator("wte", "Embedding", {"weight": (16, 4)})
    again = dataclasses.replace(once, gather_at=places, calls=2)
    size = 16 * 4 * 4
    whole, one = candidates(again)["NO_SHARD", 1, 0], candidates(once)["NO_SHARD", 1, 0]
    assert figures(whole) == figures(one)
    for mode in ("SHARD_GRAD_OP", "FULL_SHARD"):
        kept, one = candidates(again)[mode, 1, 1], candidates(once)[mode, 1, 1]
        assert (kept.gathered_bytes, kept.held_bytes) == (size if mode == "SHARD_GRAD_OP" else 0, 0)
        assert one.held_bytes == (0 if mode == "SHARD_GRAD_OP" else size)
        assert kept.transient_bytes == size
        assert kept.state_bytes == one.state_bytes == size
        if len(places) > 1:  # gathered at the first reader alone
            assert kept.communication_ps == one.communication_ps


def test_frozen_parameters_cost_no_state_and_no_gradient():
    found = candidates(operator("e", "Embedding", {"weight": (8, 4)}, trainable=False))
    assert found["NO_SHARD", 1, 0].state_bytes == 128
    assert found["NO_SHARD", 1, 0].communication_ps == 0
    gather = round(3 * (20e-6 + 32 * 1e-10) * 1e12)
    assert found["FULL_SHARD", 1, 1].communication_ps == 2 * gather
    assert found["FULL_SHARD", 1, 1].optimizer_ps == 0


def test_time_follows_the_collectives():
    mib = 4 * MIB
    found = candidates(
        operator("e", "Embedding", {"weight": (1024, 1024)}, calls=2),
        all_gather=Collective(1e-6, 1e-10),
        reduce_scatter=Collective(2e-6, 2e-10),
        all_reduce=Collective(3e-6, 3e-10),
        optimizer_s_per_byte=1e-11,
    )
    gather, scatter = 3 * (1e-6 + mib / 4 * 1e-10), 3 * (2e-6 + mib / 4 * 2e-10)
    reduce = 6 * (3e-6 + mib / 4 * 3e-10)

    def ps(seconds):
        return pytest.approx(seconds * 1e12, abs=1)

    assert found["NO_SHARD", 1, 0].communication_ps == ps(reduce)
    assert found["FULL_SHARD", 1, 1].communication_ps == ps(
        4 * gather + scatter
    )  # two calls, forward and backward
    assert found["SHARD_GRAD_OP", 1, 1].communication_ps == ps(gather + scatter)
    assert found["NO_SHARD", 1, 0].optimizer_ps == ps(mib * 1e-11)
    assert found["FULL_SHARD", 1, 1].optimizer_ps == ps(mib / 4 * 1e-11)


def test_one_rank_has_nothing_to_shard():
    plan = osdp.search(gpt(2, 64), memory="64MiB", world_size=1, hardware=machine(1), batch_size=2)
    assert {c.mode for c in plan.choices.values()} == {"NO_SHARD"}


def test_little_memory_shards_much_memory_does_not():
    description = gpt(4, 256)
    modes = {}
    for memory in ("17MiB", "24MiB", "8GiB"):
        plan = osdp.search(
            description,
            memory=memory,
            world_size=8,
            hardware=machine(),
            batch_size=1,
            modes=("NO_SHARD", "FULL_SHARD"),
        )
        modes[memory] = sum(c.mode == "FULL_SHARD" for c in plan.choices.values())
        assert plan.predicted.peak_memory_bytes <= plan.memory_limit_bytes
    assert modes["17MiB"] > modes["24MiB"] > 1 >= modes["8GiB"]  # what is hidden may be sharded


def test_wide_operators_are_split_when_their_full_tensor_is_the_trouble():
    description = gpt(2, 1024, vocabulary=100)
    plan = osdp.search(
        description, memory="70MiB", world_size=8, hardware=machine(), batch_size=1, checkpoint=False
    )
    assert any(c.granularity > 1 for c in plan.choices.values())
    with pytest.raises(osdp.InfeasibleError):
        osdp.search(
            description,
            memory="70MiB",
            world_size=8,
            hardware=machine(),
            batch_size=1,
            checkpoint=False,
            granularity=1,
        )


def test_recomputation_is_chosen_when_activations_are_the_trouble():
    description = gpt(8, 64, tokens=512)
    arguments = dict(memory="24MiB", world_size=2, hardware=machine(2), batch_size=4)
    with pytest.raises(osdp.InfeasibleError):
        osdp.search(description, checkpoint=False, **arguments)
    plan = osdp.search(description, **arguments)
    assert set(plan.recompute) <= {b.name for b in description.blocks} and len(plan.recompute) >= 6
    assert verify(plan) == ""


def test_the_batch_is_the_best_per_sample():
    description = gpt(2, 64)
    arguments = dict(memory="16MiB", world_size=4, hardware=machine(4))
    plan = osdp.search(description, **arguments)
    for b in itertools.count(1):
        try:
            p = osdp.search(description, batch_size=b, **arguments)
        except osdp.InfeasibleError:
            break
        c = plan.certificate  # of plans of all batch sizes
        assert p.certificate.step_ps * plan.batch_size >= c.step_bound_ps * b
        assert p.predicted.throughput * (1 - c.gap) <= plan.predicted.throughput
    assert b > plan.batch_size > 1


def test_a_global_batch_is_met_by_accumulation():
    description = gpt(2, 128, tokens=256)
    arguments = dict(memory="24MiB", world_size=4, hardware=machine(4), global_batch_size=96)
    plan = osdp.search(description, **arguments)
    assert 24 % plan.batch_size == 0
    assert plan.predicted.throughput * plan.predicted.step_time_s == pytest.approx(96)
    assert verify(plan) == "" and len(plan.certificate.batches) == 8
    for b in (1, 2, 3, 4, 6, 8, 12, 24):
        try:
            other = osdp.search(description, batch_size=b, **arguments)
        except osdp.InfeasibleError:
            continue
        assert other.certificate.step_ps >= plan.certificate.step_bound_ps


def test_the_papers_algorithm_finds_the_same_plan():
    description = gpt(1, 64)
    arguments = dict(memory="2MiB", world_size=4, hardware=machine(4), cost="paper", granularity=1)
    exact = osdp.search(description, **arguments)
    dfs = osdp.search(description, method="dfs", **arguments)
    assert dfs.certificate.optimal and dfs.batch_size == exact.batch_size
    assert dfs.certificate.step_ps == exact.certificate.step_ps


@pytest.mark.parametrize("method", ["dfs", "dfs-smallest-first"])
def test_the_papers_algorithm_ends_at_the_first_batch_that_does_not_fit(method):
    """Also where what no choice changes is over the limit by itself."""
    one = operator("e", "Linear", {"weight": (8, 8)}, flops=10, saved=2**20)
    description = ModelDescription("One", (one,), (), 1, 0)
    arguments = dict(world_size=4, hardware=machine(4), cost="paper", method=method)
    plan = osdp.search(description, memory="3.5MiB", **arguments)
    assert plan.batch_size == 3 and plan.certificate.optimal
    with pytest.raises(osdp.InfeasibleError) as e:
        osdp.search(description, memory="0.5MiB", **arguments)
    assert e.value.smallest_limit > 2**20


def test_infeasible_says_what_would_fit():
    description = gpt(4, 256)
    with pytest.raises(
        osdp.InfeasibleError,
        match=r"4\.00 MiB; .* MiB: batch 1, .*granularity",
    ) as e:
        osdp.search(description, memory="4MiB", world_size=8, hardware=machine())
    smallest = e.value.smallest_limit
    plan = osdp.search(description, memory=smallest, world_size=8, hardware=machine())
    assert plan.predicted.peak_memory_bytes <= smallest
    with pytest.raises(osdp.InfeasibleError):
        osdp.search(description, memory=smallest - 1, world_size=8, hardware=machine())


def test_a_search_that_its_time_ended_does_not_say_that_nothing_fits():
    with pytest.raises(osdp.InfeasibleError, match=r"1e-06 s.*time_limit"):
        osdp.search(gpt(4, 256), memory="4MiB", world_size=8, hardware=machine(), time_limit=1e-6)


def test_a_batch_whose_sum_and_least_plan_do_not_fit_may_have_a_plan():
    """A search over all batches returns it: it can be asked for, too."""
    description = transformer([8192] * 4)
    plan = osdp.search(description, memory=8 * 10**9, world_size=16, hardware="rtx-titan-8", batch_size=8)
    assert plan.batch_size == 8 and plan.predicted.peak_memory_bytes <= 8 * 10**9


def test_the_proof_counts_computation_where_a_profiles_lines_cross():
    """Forward with backward is two figures of a profile, a forward one: for each sample."""
    description = gpt(4, 256)
    measured = dataclasses.replace(
        machine(),
        gamma_s={o.name: 1e-5 for o in description.operators},
        gamma_fixed_s={o.name: 1e-3 for o in description.operators},
        recompute_s={o.name: 3e-5 for o in description.operators},
    )
    plan = osdp.search(description, memory="200MiB", world_size=8, hardware=measured, batch_size=16)
    assert plan.certificate.gap < 0.05 and plan.certificate.checked_gap < 0.05


def test_every_operator_has_a_reason():
    plan = osdp.search(gpt(4, 256), memory="40MiB", world_size=8, hardware=machine(), batch_size=1)
    operators = plan.predicted.operators
    assert set(operators) == {o.name for o in plan.description.operators}
    for name, choice in plan.choices.items():
        reason = operators[name].reason
        assert ("kept whole" in reason) == (choice.mode == "NO_SHARD")
        assert ("save" in reason and " before overlap" in reason) or ("is " in reason and "faster" in reason)
    assert "nothing to shard" in operators["h.0.attn"].reason


def test_predictions_add_up():
    plan = osdp.search(gpt(4, 256), memory="40MiB", world_size=8, hardware=machine(), batch_size=2)
    p = plan.predicted
    step = plan.simulate()
    assert p.step_time_s == pytest.approx(step.step_time_s)
    parts = p.communication_s + p.compute_s + p.optimizer_s - step.overlap_s
    assert p.step_time_s == pytest.approx(parts, abs=1e-9)
    assert p.throughput == pytest.approx(16 / p.step_time_s)
    assert p.compute_s == pytest.approx(sum(o.compute_s for o in p.operators.values()))
    assert plan.certificate.step_ps * 1e-12 == pytest.approx(p.step_time_s)
    state = sum(o.state_bytes for o in p.operators.values())
    assert state * 3 // 4 < p.peak_memory_bytes <= plan.memory_limit_bytes


def unit_bytes(plan):
    """The full tensors that using each unit needs, in fp32: 0 where nothing is gathered, one slice of a split operator."""
    operators = {o.name: o for o in plan.description.operators}
    for unit in plan.units:
        choice, first = plan.choices[unit[0]], operators[unit[0]]
        if choice.mode == "NO_SHARD":
            yield 0
        elif choice.granularity > 1:
            yield 4 * first.split_shape[0] * first.split_shape[1] // choice.granularity
        else:
            yield sum(operators[name].parameter_bytes for name in unit)


def test_units_stay_within_the_room_that_was_reserved():
    for memory in ("17MiB", "20MiB", "30MiB"):
        plan = osdp.search(
            gpt(4, 256), memory=memory, world_size=8, hardware=machine(), batch_size=1, modes="FULL_SHARD"
        )
        largest = max(o.transient_bytes for o in plan.predicted.operators.values())
        assert max(unit_bytes(plan)) <= largest
        assert sorted(n for u in plan.units for n in u) == sorted(plan.choices)


def test_verify_catches_another_choice():
    plan = osdp.search(gpt(4, 256), memory="40MiB", world_size=8, hardware=machine(), batch_size=1)
    name = next(n for n, c in plan.choices.items() if c.mode != "NO_SHARD")
    other = {**plan.choices, name: osdp.Choice("NO_SHARD")}
    assert verify(dataclasses.replace(plan, choices=other)) != ""
    with pytest.raises(osdp.PlanMismatchError, match="no certificate"):
        verify(dataclasses.replace(plan, certificate=None))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"memory": "8"}, "not a size"),
        ({"memory": -1}, "not a size|between 0"),
        ({"world_size": 0}, "world_size"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": "big"}, "batch_size"),
        ({"global_batch_size": 7}, "global_batch_size is 7; it must be a multiple of the world size 8"),
        ({"global_batch_size": 16, "batch_size": 3}, "does not divide"),
        ({"optimizer": "magic"}, "optimizer must be .*, got 'magic'"),
        ({"precision": "int1"}, "precision"),
        ({"granularity": (0,)}, "granularity"),
        ({"granularity": "huge"}, "granularity"),
        ({"modes": ("HALF_SHARD",)}, "HALF_SHARD"),
        ({"modes": ()}, "modes is empty"),
        ({"checkpoint": "maybe"}, "checkpoint"),
        ({"cost": "guess"}, "cost must be .*, got 'guess'"),
        ({"method": "guess"}, "method must be .*, got 'guess'"),
        ({"time_limit": -1}, "time_limit"),
        ({"cost": "paper", "checkpoint": "hold"}, "does not model recomputation"),
    ],
)
def test_bad_arguments_are_refused(changes, message):
    arguments = {"memory": "1GiB", "world_size": 8, "hardware": machine(), **changes}
    with pytest.raises(osdp.InvalidProblemError, match=message):
        osdp.search(gpt(1, 64), **arguments)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_a_time_that_means_nothing_is_named(value):
    with pytest.raises(osdp.InvalidProblemError, match=r"gamma_s\.head"):
        osdp.search(gpt(1, 64), memory="1GiB", world_size=8, hardware=machine(gamma_s={"head": value}))
    with pytest.raises(osdp.InvalidProblemError, match="all_gather"):
        osdp.search(
            gpt(1, 64), memory="1GiB", world_size=8, hardware=machine(all_gather=Collective(value, 1e-10))
        )


def test_zero_memory_is_infeasible_and_an_empty_model_is_refused():
    with pytest.raises(osdp.InfeasibleError):
        osdp.search(gpt(1, 64), memory=0, world_size=8, hardware=machine())
    with pytest.raises(osdp.InvalidProblemError, match="no operators"):
        osdp.search(ModelDescription("Empty", (), (), 1, 0), memory="1GiB", world_size=8, hardware=machine())


def test_a_plan_is_the_same_every_time():
    arguments = dict(memory="40MiB", world_size=8, hardware=machine())
    assert osdp.search(gpt(3, 128), **arguments) == osdp.search(gpt(3, 128), **arguments)


def test_a_found_plan_can_be_saved_and_loaded(tmp_path):
    plan = osdp.search(gpt(3, 128), memory="40MiB", world_size=8, hardware=machine())
    plan.save(tmp_path / "plan.json")
    assert osdp.Plan.load(tmp_path / "plan.json") == plan


def test_a_model_is_described_first_and_known_machines_have_names():
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    plan = osdp.search(model, (torch.zeros(2, 64),), memory="1MiB", world_size=4, hardware="rtx-titan-8")
    assert set(plan.choices) == {"0", "2"}
    assert osdp.search(model, (torch.zeros(2, 64),), world_size=4).hardware.name == "a100-8"
    with pytest.raises(osdp.InvalidProblemError, match="sample"):
        osdp.search(model, memory="1MiB", world_size=4, hardware="rtx-titan-8")


def test_the_batch_is_the_samples_unless_another_is_said() -> None:
    import torch
    from torch import nn

    model, sample = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)), (torch.zeros(3, 64),)
    given = {"memory": "1MiB", "world_size": 4, "hardware": "rtx-titan-8"}
    assert osdp.search(model, sample, **given).batch_size == 3
    auto = osdp.search(model, sample, batch_size="auto", **given)
    assert auto.batch_size > 3 and "(auto)" in str(auto) and "rtx-titan-8 (assumed)" in str(auto)
    assert osdp.search(osdp.describe(model, *sample), **given).batch_size == auto.batch_size
    assert osdp.search(model, sample, global_batch_size=48, **given).batch_size in (1, 2, 3, 4, 6, 12)
    assert "(auto)" not in str(osdp.search(model, sample, **given))


def test_auto_that_stops_at_the_largest_batch_that_is_tried_says_so() -> None:
    import torch
    from torch import nn

    description = osdp.describe(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), torch.zeros(3, 8))
    plan = osdp.search(description, memory="4GiB", world_size=2, hardware="rtx-titan-8")
    assert plan.batch_size == _search.MOST_BATCH == 65536
    assert "batch 65536 per rank (auto: the largest that is tried)" in " ".join(str(plan).split())
    assert "batch 65536 per rank," in " ".join(str(dataclasses.replace(plan, searched=None)).split())


def test_this_machine_is_measured() -> None:
    import torch
    from torch import nn

    model, sample = nn.Linear(8, 8), (torch.zeros(3, 8),)
    plan = osdp.search(model, sample, memory="8MiB", world_size=1, hardware="this")
    assert plan.hardware is not None and plan.hardware.measured is not None and "(measured)" in str(plan)
