"""osdp.verify: every field of a plan is changed, and the change is noticed, or the field is known to claim nothing."""

import copy
import dataclasses
import json
import random
import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import osdp
from osdp.description.model_description import Begin, Buffers, Kernel, Parameter, Read
from osdp.hardware.hardware import (
    Collective,
    DeviceMemory,
    HostMemory,
    InsideHosts,
    KernelRates,
    Measured,
    Protocol,
)
from osdp.plan.choice import MODES, RECOMPUTE, SPLITS
from osdp.plan.plan import Plan
from osdp.plan.precisions import PRECISIONS
from osdp.plan.searched import COST_VERSION, COSTS, METHODS, OBJECTIVES
from tests.unit.gpt_descriptions import gpt, machine, operator

PAGE = Path(__file__).parents[3] / "docs" / "plan.md"

CHECKED = "noticed: it follows from the rest, or is stated twice"
INPUT = (
    "an input of the search, or a decision: all figures are recomputed from it, so a change is noticed where a figure "
    "depends on it"
)
PROOF = "proves `checked_bound_ps`: another proof of the same bound is accepted"
BOUND = "a lower bound: a larger one is noticed, since what the prices do not prove is proven again; a smaller one holds"
OF_A_PIPELINE = "what a rank gains while other stages wait: `osdp.verify` of the pipeline notices it"
MESSAGE = "for the message of a search that finds no plan"
NOTHING = {
    "a name": (
        "description.name",
        "description.operators[].kind",
        "description.operators[].parameters[].name",
        "description.operators[].gather_at[]",
        "description.operators[].parameters[].aliases[]",
        "hardware.name",
        "hardware.protocols[].protocol",
        "hardware.source",
        "hardware.device",
    ),
    "the precision of the activations, with which `osdp.search` compares its own": ("description.precision",),
    "the device whose kernels were counted, with which `osdp.search` compares its machine": (
        "description.device",
    ),
    MESSAGE: ("description.blocks_changing_inputs[]",),
    "the profiled machine, with which `fully_shard` and `osdp.report` compare this one": (
        "hardware.measured.processor",
        "hardware.measured.cores",
        "hardware.measured.threads",
        "hardware.measured.torch",
        "hardware.measured.product_s",
        "hardware.measured.copy_s",
    ),
    "an explanation in words": ("predicted.operators.*.reason",),
    "the place of a stage, which is checked where the whole `ParallelPlan` is": ("searched.stage.index",),
    "how the search was run; no figure depends on it": (
        "searched.time_limit_s",
        "searched.small_unit_bytes",
        "searched.gap",
        "searched.method",
    ),
    "a default of `osdp.search`, which the plan states itself": (
        "hardware.memory_bytes",
        "hardware.world_size",
    ),
    "not part of the model of memory and time": ("description.sample_batch",),
    "`osdp.parallelize` refuses column-wise linears by it": ("description.operators[].output_cut",),
    "where a pipeline can be cut, which is checked where the whole `ParallelPlan` is": (
        "description.buffers[].modules[]",
        "description.operators[].reads[].parameter",
        "description.operators[].reads[].module",
        "description.operators[].reads[].after",
        "description.operators[].of_inputs",
        "description.begins[].module",
        "description.begins[].why_not",
    ),
    "for a person; what is counted follows from the shapes": ("description.operators[].parameter_bytes",),
    OF_A_PIPELINE: ("hardware.fewer_ranks_speedup[]",),
}
RING = Protocol("ring", "LL", 1e-6, 1e-7, 2e-6, 0.5, 1e10)
MANY = Protocol("ring", "Simple", 2e-6, 1e-6, 1e-5, 1.0)
TREE = Protocol("tree", "LL", 1e-6, 1e-7, 1e-6, 0.5, 1e10)
INPUTS = (
    "prefetch",
    "searched.prefetch",
    "gather_bytes",
    "world_size",
    "memory_limit_bytes",
    "separate_reductions",
    "recompute.*",
    "optimizer",
    "precision",
    "cost",
    "description.operators[].name",
    "description.operators[].traced",
    "description.operators[].calls",
    "description.operators[].block",
    "description.operators[].split_shape[]",
    "description.operators[].look_ups[]",
    "description.operators[].transposed",
    "description.operators[].kernel_places",
    "description.operators[].output_groups",
    "description.operators[].buffer_bytes",
    "description.buffers[].bytes",
    "description.operators[].saved_bytes_per_sample",
    "description.operators[].saved_bytes_fixed",
    "description.operators[].flops_per_sample",
    "description.operators[].work_bytes_per_sample",
    "description.operators[].work_bytes_fixed",
    "description.operators[].forward_work_bytes_per_sample",
    "description.operators[].forward_work_bytes_fixed",
    "description.operators[].backward_work_bytes_per_sample",
    "description.operators[].backward_work_bytes_fixed",
    "description.operators[].waiting_gradient_bytes",
    "description.operators[].parameters[].shape[]",
    "description.operators[].parameters[].dtype",
    "description.operators[].parameters[].trainable",
    "description.blocks[].name",
    "description.blocks[].input_bytes_per_sample",
    "description.input_bytes_per_sample",
    "description.output_bytes_per_sample",
    "hardware.all_gather.alpha_s",
    "hardware.all_gather.beta_s_per_byte",
    "hardware.reduce_scatter.alpha_s",
    "hardware.reduce_scatter.beta_s_per_byte",
    "hardware.all_reduce.alpha_s",
    "hardware.all_reduce.beta_s_per_byte",
    "hardware.between_hosts.alpha_s",
    "hardware.between_hosts.beta_s_per_byte",
    "hardware.inside_hosts.all_gather.alpha_s",
    "hardware.inside_hosts.all_gather.beta_s_per_byte",
    "hardware.inside_hosts.reduce_scatter.alpha_s",
    "hardware.inside_hosts.reduce_scatter.beta_s_per_byte",
    "hardware.inside_hosts.all_reduce.alpha_s",
    "hardware.inside_hosts.all_reduce.beta_s_per_byte",
    "hardware.flops_per_s",
    "hardware.optimizer_s_per_byte",
    "hardware.host_memory.copy.alpha_s",
    "hardware.host_memory.copy.beta_s_per_byte",
    "hardware.host_memory.optimizer_s_per_byte",
    "hardware.exposed_communication",
    "hardware.gamma_s.*",
    "hardware.gamma_fixed_s.*",
    "hardware.recompute_s.*",
    "hardware.recompute_slowdown",
    "hardware.communication_delay.alpha_s",
    "hardware.communication_delay.beta_s_per_byte",
    "hardware.stolen_computation",
    "hardware.flops_per_s_by_dtype.*",
    *(f"hardware.kernel_rates.{name}" for name in vars(KernelRates(1.0, 0.0, 0.0, 1.0))),
    *(f"hardware.protocols[].{name}" for name in vars(RING) if name != "protocol"),
    "description.operators[].forward_kernels",
    "description.operators[].backward_kernels",
    *(f"description.kernels[][].{name}" for name in vars(Kernel("other", 1, 0, 0, 0, 0))),
    "hardware.device_memory.context_bytes",
    "hardware.device_memory.communicator_bytes",
    "hardware.device_memory.workspace_bytes",
    "hardware.device_memory.tensor_rounding_bytes",
    "hardware.device_memory.small_block_bytes",
    "hardware.device_memory.large_block_bytes",
    "hardware.device_memory.unused_bytes",
    "searched.modes[]",
    "searched.granularity[]",
    "searched.checkpoint[]",
    "searched.batch_size",
    "searched.kernels_batch",
    "searched.global_batch_size",
    "searched.hosts",
    "searched.objective",
    "searched.at_least",
    "searched.cost_version",
    "searched.stage.stages",
    "searched.stage.in_flight",
    "searched.stage.micro_batches",
    "searched.stage.tensor_parallel",
    "searched.stage.collectives.*.forward_s",
    "searched.stage.collectives.*.backward_s",
)
BOUNDS = ("certificate.step_bound_ps",)
PROOFS = (
    "certificate.forward_share",
    "certificate.backward_share",
    "certificate.link_share",
    "certificate.averages_share",
    "certificate.reductions_share",
    "certificate.batches[].least_batch",
    "certificate.batches[].most_batch",
    "certificate.batches[].accumulation",
    "certificate.batches[].prices[].phase",
    "certificate.batches[].prices[].numerator",
    "certificate.price_denominator",
)


def fields_of(hint: Any, path: str = "") -> Iterator[str]:
    """The paths of all values that a dataclass of ours can hold: [] an item of a list, * a value of a mapping."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        yield from fields_of(inner[0], path)
    elif origin in (types.UnionType, typing.Union):
        yield from fields_of(next(t for t in inner if t is not types.NoneType), path)
    elif origin is tuple:
        yield from fields_of(inner[0], f"{path}[]")
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        yield from fields_of(inner[1], f"{path}.*")
    elif dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint, include_extras=True)
        for f in dataclasses.fields(hint):
            yield from fields_of(hints[f.name], f"{path}.{f.name}" if path else f.name)
    else:
        yield path


def why_of(field: str) -> str:
    """What a change of this field comes to."""
    for why, names in NOTHING.items():
        if field in names:
            return f"no claim: {why}"
    known = {INPUT: INPUTS, PROOF: PROOFS, BOUND: BOUNDS}
    return next((why for why, names in known.items() if field in names), CHECKED)


def table() -> str:
    rows: dict[str, list[str]] = {}
    for field in fields_of(Plan):
        rows.setdefault(why_of(field), []).append(f"`{field}`")
    ranked = [CHECKED, BOUND, PROOF, INPUT]
    order = sorted(rows, key=lambda why: (why.startswith("no claim"), why in ranked and ranked.index(why)))
    lines = [f"| {', '.join(rows[why])} | {why} |" for why in order]
    return "\n".join(["| fields | a change of one |", "|---|---|", *lines]) + "\n"


@cache
def plans() -> dict[str, Plan]:
    """Plans that together use everything a plan can say."""
    hardware = machine(
        4,
        communication_delay=Collective(1e-6, 1e-11),
        stolen_computation=0.1,
        fewer_ranks_speedup=(2.0,),
        gamma_s={"h.0.mlp.fc": 2e-5},
        gamma_fixed_s={"h.0.mlp.fc": 1e-5},
        recompute_s={"h.0.mlp.fc": 1e-5},
        recompute_slowdown=1.25,
        exposed_communication=0.75,
        flops_per_s_by_dtype={"bfloat16": 3e13},
        kernel_rates=KernelRates(1e12, 1e-6, 100.0, 0.5, 1e6),
        device_memory=DeviceMemory(4096, 1024, 512, 64, 2048, 8192, 1000),
        measured=Measured("a processor", 2, 1, "2.13.0", 2e-3, 1.6e-2),
    )
    small = gpt(2, 64)
    frozen = operator("frozen", "Embedding", {"weight": (64, 64)}, trainable=False, split=(64, 64))
    frozen = dataclasses.replace(frozen, look_ups=("frozen",))
    tied = dataclasses.replace(
        operator("tied", "Embedding", {"weight": (32, 64)}, saved=64, calls=2),
        parameters=(Parameter("tied.weight", ("readout.weight",), (32, 64), "float32", True),),
        gather_at=("tied", "h.1"),
        reads=(Read("tied.weight", "h.1", "tied"),),
    )
    rich = dataclasses.replace(small, operators=(frozen, tied, *small.operators), output_bytes_per_sample=400)
    kernels = (
        Kernel("product", 2, 10**9, 10**9, 100, 10, 64),
        Kernel("product", 2, 10**9, 10**9, 100, 10, 0, 64),
        Kernel("attention", 1, 10**9, 10**9, 100, 10),
        Kernel("other", 3, 0, 0, 10**8, 10**8),
    )
    priced = dataclasses.replace(rich.operators[-1], forward_kernels=0, backward_kernels=1)
    rich = dataclasses.replace(
        rich,
        operators=(*rich.operators[:-1], priced),
        blocks_changing_inputs=("h.7",),
        buffers=(Buffers(("h.0.attn", "h.1.attn"), 100),),
        begins=(Begin("h.0", ""),),
        kernels=(kernels, kernels[2:]),
    )
    least = least_memory(rich, hardware)
    dear = ["h.1.mlp.fc"]  # whole it takes memory that has a price
    found = {
        "tight": osdp.search(
            rich, memory=int(1.5 * least_memory(rich, hardware, dear)), world_size=4, hardware=hardware,
            whole=dear, granularity=(4, 8),
        ),
        "accumulating": osdp.search(
            small, memory=2 * least, world_size=4, hardware=hardware, global_batch_size=32,
            precision="bf16-reduce-fp32", objective="memory", at_least=1.0, granularity=1,
        ),
        "hosts": osdp.search(
            gpt(2, 128), memory="24MiB", world_size=8, hosts=2, batch_size=2,
            hardware=machine(
                8, between_hosts=Collective(1e-4, 2e-9), inside_hosts=InsideHosts(*3 * (Collective(1e-6, 1e-10),))
            ),
        ),
        "nccl": osdp.search(
            gpt(1, 64), memory="6MiB", world_size=8, hosts=2, batch_size=2,
            hardware=machine(8, protocols=(RING, MANY, TREE)),
        ),
        "offloaded": osdp.search(
            gpt(2, 128), memory="5MiB", world_size=4, batch_size=2,
            hardware=machine(4, host_memory=HostMemory(Collective(1e-5, 1e-10), 1e-9)),
            modes=("FULL_SHARD", "FULL_SHARD_OFFLOAD"),
        ),
        "paper": osdp.search(small, memory=2 * least, world_size=4, hardware=hardware, cost="paper", batch_size=1),
        "stage": osdp.search(
            gpt(4, 64), memory="3MiB", world_size=8, hardware=machine(8, device_memory=DeviceMemory(0, 1024)),
            global_batch_size=16, batch_size=1, tensor_parallel=2, pipeline_parallel=2,
            tp_plan={"h.*.mlp.fc": "colwise", "h.*.mlp.proj": "rowwise"},
        ).stages[0].plan,
    }  # fmt: skip
    assert all(osdp.verify(p) == "" for p in found.values())
    assert any(c.granularity > 1 for c in found["tight"].choices.values())
    assert found["tight"].recompute and found["tight"].price_of_memory_s_per_byte > 0
    assert found["accumulating"].accumulation > 1
    assert any(c.mode == "HYBRID_SHARD" for c in found["hosts"].choices.values())
    assert {c.mode for c in found["offloaded"].choices.values()} == {"FULL_SHARD", "FULL_SHARD_OFFLOAD"}
    return found


def least_memory(description: Any, hardware: Any, whole: Any = ()) -> int:
    with pytest.raises(osdp.InfeasibleError) as e:
        osdp.search(description, memory=1, world_size=4, hardware=hardware, whole=whole)
    assert e.value.smallest_limit is not None
    return e.value.smallest_limit


WORDS = (
    MODES,
    SPLITS,
    RECOMPUTE,
    OBJECTIVES,
    METHODS,
    COSTS,
    tuple(PRECISIONS),
    ("adamw", "sgd"),
    ("float32", "float16"),
    ("ring", "tree"),
)


def values(data: Any, path: str = "", place: tuple[Any, ...] = ()) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """(field, where) of everything in a plan's JSON: single values, and what holds them."""
    maps = (
        "choices",
        "recompute",
        "hardware.gamma_s",
        "hardware.gamma_fixed_s",
        "hardware.recompute_s",
        "hardware.flops_per_s_by_dtype",
        "predicted.operators",
        "searched.stage.collectives",
    )
    if path:
        yield path, place
    if isinstance(data, dict):
        for key, value in data.items():
            if path or key not in ("osdp", "version"):
                name = "*" if path in maps else key
                yield from values(value, f"{path}.{name}" if path else name, (*place, key))
    elif isinstance(data, list):
        for i, value in enumerate(data):
            yield from values(value, f"{path}[]", (*place, i))


def changed(value: Any) -> Iterator[Any]:
    """Other values of the same type: a little more or less, much more, and less of what holds several."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value - 1, 2 * value + 7)
    elif isinstance(value, float):
        yield from (value * (1 + 1e-12) if value else 1e-12, value * 0.5, value * 2 + 1e-3)
    elif isinstance(value, str):
        words = next((w for w in WORDS if value in w), ())
        yield from (w for w in (*words, value + "x") if w != value)
    elif value is None:
        yield from (1, 1.5, "hold", "h.0", "in")
    elif isinstance(value, list) and value:
        yield from (value[1:], value[:-1], [*value, value[0]])
        if len(value) > 1 and value[0] != value[-1]:
            yield [value[-1], *value[1:-1], value[0]]
    elif isinstance(value, dict) and value:
        yield {k: v for i, (k, v) in enumerate(value.items()) if i}
        yield {(k if i else k + "x"): v for i, (k, v) in enumerate(value.items())}
        first, last = next(iter(value)), [*value][-1]
        if value[first] != value[last]:
            yield {**value, first: value[last], last: value[first]}


def noticed(data: Any) -> bool:
    try:
        return osdp.verify(Plan.loads(json.dumps(data))) != ""
    except (osdp.FormatError, osdp.PlanMismatchError):
        return True


def with_value(data: Any, place: tuple[Any, ...], value: Any) -> Any:
    result = copy.deepcopy(data)
    at = result
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    return result


def try_changes(name: str, results: dict[str, list[tuple[bool, str]]]) -> None:
    """By field: whether each change of it in this plan was noticed. At two places, or one of a field that another plan
    has too; not where nothing more can be learned: it claims nothing, or was noticed and need not always be.
    """
    r = random.Random(7)
    everything = set(fields_of(Plan))
    data = json.loads(plans()[name].dumps())
    places: dict[str, list[tuple[Any, ...]]] = {}
    for field, place in values(data):
        places.setdefault(field, []).append(place)
    for field, where in places.items():
        known = results.setdefault(field, [])
        why = why_of(field) if field in everything else INPUT
        if why.startswith("no claim"):
            continue
        most = len(where) if why != CHECKED else 1 if known else 2
        for place in r.sample(where, min(most, len(where))):
            if why != CHECKED and any(was for was, _ in known):
                break
            old = data
            for key in place:
                old = old[key]
            others = [new for new in changed(old) if new != old]
            for new in others if not known else r.sample(others, min(1, len(others))):
                was = noticed(with_value(data, place, new))
                known.append((was, f"{name}: {place}: {old!r:.60} -> {new!r:.60}"))


def test_every_change_of_a_plan_is_noticed_or_known_to_claim_nothing():
    everything = set(fields_of(Plan))
    known = {name for names in NOTHING.values() for name in names} | set(INPUTS) | set(PROOFS) | set(BOUNDS)
    assert known <= everything, known - everything
    results: dict[str, list[tuple[bool, str]]] = {}
    for name in plans():
        try_changes(name, results)
    assert everything <= set(results), everything - set(results)
    wrong = []
    for field, changes in results.items():
        missed = [what for was, what in changes if not was]
        why = why_of(field) if field in everything else INPUT  # of what holds others
        if f"{field}[]" in (*NOTHING[MESSAGE], *NOTHING[OF_A_PIPELINE]):
            continue
        inside = [why_of(other) for other in everything if other.startswith(f"{field}[].")]
        if inside and all(other.startswith("no claim") for other in inside):
            continue
        if why == CHECKED and missed:
            wrong.append(f"{field}: not noticed: {missed[0]}")
        elif why in (INPUT, PROOF, BOUND) and len(missed) == len(changes):
            wrong.append(f"{field}: never noticed")
    assert not wrong, "\n".join(wrong)


def with_certificate(plan: Plan, **changes: Any) -> Plan:
    return dataclasses.replace(plan, certificate=dataclasses.replace(plan.certificate, **changes))


@pytest.mark.parametrize("name", ["tight", "accumulating", "nccl", "paper"])
def test_bounds_that_do_not_hold(name: str) -> None:
    plan = plans()[name]
    c = plan.certificate
    assert 0 < c.checked_bound_ps <= c.step_bound_ps <= c.step_ps and 0 <= c.gap <= c.checked_gap < 1
    for changed, said in (
        ({"checked_bound_ps": c.checked_bound_ps - 1}, "the prices prove"),
        ({"checked_bound_ps": c.checked_bound_ps // 2, "step_bound_ps": c.step_ps}, "the prices prove"),
        ({"step_bound_ps": c.checked_bound_ps}, ""),
        ({"step_ps": c.step_ps + 1}, "a step"),
        ({"batches": (), "checked_bound_ps": 0, "step_bound_ps": 0}, ""),  # nothing is claimed
    ):
        wrong = osdp.verify(with_certificate(plan, **changed))
        assert (said in wrong) if said else wrong == ""
    if c.step_bound_ps < c.step_ps:
        wrong = osdp.verify(with_certificate(plan, step_bound_ps=c.step_ps))
        assert "the bound on a step is" in wrong
    assert osdp.verify(plan, search=True) == ""


@pytest.mark.parametrize("name", ["tight", "accumulating", "hosts"])
def test_a_limit_that_the_proof_does_not_cover(name: str) -> None:
    """With more memory there are more plans, of which the prices prove less."""
    plan = plans()[name]
    more = dataclasses.replace(plan, memory_limit_bytes=10 * plan.memory_limit_bytes)
    if plan.price_of_memory_s_per_byte > 0:
        assert "the prices prove" in osdp.verify(more)


def test_batches_that_a_proof_leaves_out() -> None:
    plan = plans()["accumulating"]
    c = plan.certificate
    assert len(c.batches) > 1
    assert "leaves out plans of batch size" in osdp.verify(with_certificate(plan, batches=c.batches[1:]))


def test_the_page_says_what_is_checked():
    assert table() in PAGE.read_text(), f"docs/plan.md should have:\n{table()}"


def test_no_price_of_what_the_limit_does_not_bound():
    """Phase -1 is the paper's sum over the whole step; with memory a maximum over phases it bounds nothing."""
    plan = plans()["tight"]
    first, *others = plan.certificate.batches
    for price in (1, 10**6, 10**9):
        priced = dataclasses.replace(first, prices=(osdp.plan.plan_fields.PhasePrice(-1, price),))
        forged = (priced, *others)
        wrong = osdp.verify(with_certificate(plan, batches=forged, checked_bound_ps=0))
        assert "none that the limit bounds" in wrong


def test_a_bound_that_another_search_beats() -> None:
    """A worse plan, found in a part of the space, that says it is the best of all of it."""
    plan = plans()["tight"]
    part = osdp.search(
        plan.description, memory=plan.memory_limit_bytes * 4, world_size=plan.world_size, hardware=plan.hardware,
        batch_size=1, modes=("SHARD_GRAD_OP",),
    )  # fmt: skip
    searched = dataclasses.replace(part.searched, modes=plan.searched.modes)
    worse = dataclasses.replace(part, searched=searched)
    assert osdp.verify(worse) != ""
    claimed = with_certificate(worse, batches=(), checked_bound_ps=0, step_bound_ps=worse.certificate.step_ps)
    assert "the bound on a step is" in osdp.verify(claimed)


def test_a_plan_of_older_costs_is_searched_again() -> None:
    plan = plans()["tight"]
    older = dataclasses.replace(
        plan, searched=dataclasses.replace(plan.searched, cost_version=COST_VERSION - 1)
    )
    with pytest.raises(osdp.PlanMismatchError, match=f"version {COST_VERSION - 1}"):
        osdp.verify(older)


def test_a_plan_of_costs_that_are_yet_to_come_is_refused():
    plan = next(iter(plans().values()))
    newer = dataclasses.replace(
        plan, searched=dataclasses.replace(plan.searched, cost_version=COST_VERSION + 1)
    )
    with pytest.raises(osdp.FormatError, match="use a newer osdp") as caught:
        Plan.loads(newer.dumps())
    assert caught.value.field == "searched.cost_version"
