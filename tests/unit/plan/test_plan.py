"""Plans: made by hand, grouped in units, checked, written and read back."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import osdp
from osdp.base import file_versions, json_files
from osdp.description.model_description import ModelDescription, Operator, Parameter
from osdp.errors import FormatError, InvalidProblemError, PlanMismatchError
from osdp.hardware.hardware import Collective, Hardware
from osdp.plan.choice import Choice
from osdp.plan.plan import Plan
from osdp.plan.plan_fields import BatchProof, Certificate, OperatorPrediction, PhasePrice, Prediction
from osdp.plan.searched import Searched
from osdp.plan.unit_grouping import group_units, small_unit_bytes
from osdp.plan.validation import check_same_model, validate
from tests.unit.description.nasty_models import GPT, Scaled


@pytest.fixture(scope="module")
def description() -> ModelDescription:
    return osdp.describe(GPT(), torch.zeros(2, 16, dtype=torch.long))


def full_plan(description: ModelDescription) -> Plan:
    """A plan with every field set."""
    link = Collective(1e-5, 1 / 3e9)
    hardware = Hardware(
        "here",
        "measured",
        "cpu",
        4,
        2**34,
        link,
        link,
        link,
        1.5e11,
        2e-10,
        None,
        0.5,
        {"norm": 1e-7},
        {"norm": 0.0},
        {},
    )
    plan = Plan.uniform(description, "FULL_SHARD").replace(
        {
            "blocks.0.up": Choice("FULL_SHARD", 4, 2, "out"),
            "blocks.1.up": Choice("FULL_SHARD", 2, None, "in"),
            "norm": Choice("NO_SHARD"),
        },
        recompute={"blocks.1": "regather"},
    )
    predicted = Prediction(
        0.1, 40.0, 2**30, 0.05, 0.07, 0.01, {"norm": OperatorPrediction(1, 2, 3, 0.1, 0.2, "fits")}
    )
    return dataclasses.replace(
        plan,
        hardware=hardware,
        world_size=4,
        batch_size=2,
        memory_limit_bytes=2**33,
        accumulation=2,
        searched=Searched(
            ("NO_SHARD", "FULL_SHARD"), (2, 4), ("none", "hold"), 2, 16, at_least=1.5, time_limit_s=0.5
        ),
        predicted=predicted,
        certificate=Certificate(
            10**12, 10**12, 10**11, 5, 6, 7, 8, 9, (BatchProof(2, 2, 2, (PhasePrice(3, 1),)),), 3
        ),
    )


def test_uniform_slices_only_what_can_be_sliced(description: ModelDescription) -> None:
    plan = Plan.uniform(description, "FULL_SHARD", granularity=4, split="in", sharded_slices=3)
    assert plan.choices["blocks.0.up"] == Choice("FULL_SHARD", 4, 3, "in")
    assert plan.choices["tokens"] == plan.choices["blocks.0.up"]  # a table
    assert plan.choices["blocks.0.norm1"] == Choice("FULL_SHARD")
    assert validate(plan) is plan
    odd = Plan.uniform(description, "FULL_SHARD", granularity=3, split="in")
    assert odd.choices["blocks.0.proj"].granularity == 1  # 32 columns
    rows = Plan.uniform(description, "FULL_SHARD", granularity=3)
    assert rows.choices["blocks.0.proj"].granularity == 3  # 32 rows: 10, 11 and 11
    many = Plan.uniform(description, "FULL_SHARD", granularity=33)
    assert many.choices["blocks.0.qkv"].granularity == 33 and many.choices["blocks.0.proj"].granularity == 1


@pytest.mark.parametrize("mode", ["NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD"])
def test_uniform_of_a_bare_model_is_valid(mode: str) -> None:
    for model in (GPT(), Scaled()):
        plan = Plan.uniform(model, mode)
        assert validate(plan).world_size is None and {c.mode for c in plan.choices.values()} == {mode}
        assert sorted(n for unit in plan.units for n in unit) == sorted(plan.choices)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("SHARDED",), "SHARDED"),
        (("NO_SHARD", 2), "NO_SHARD"),
        (("FULL_SHARD", 0), "at least 1"),
        (("FULL_SHARD", True), "an integer of at least 1"),
        (("FULL_SHARD", 2, "rows"), "rows"),
        (("FULL_SHARD", 2, "out", 3), "sharded_slices"),
    ],
)
def test_uniform_refuses_what_cannot_be(description: ModelDescription, arguments: Any, match: str) -> None:
    with pytest.raises(InvalidProblemError, match=match):
        Plan.uniform(description, *arguments)


@pytest.mark.parametrize(
    ("name", "choice", "match"),
    [
        ("blocks.0.upp", Choice("NO_SHARD"), "did you mean 'blocks.0.up'"),
        ("blocks.0.norm1", Choice("FULL_SHARD", 2, None, "out"), "cannot be computed in slices"),
        ("blocks.0.up", Choice("FULL_SHARD", 3, None, "in"), "does not divide 32"),
        ("blocks.0.up", Choice("FULL_SHARD", 129, None, "out"), "is more than 128"),
        ("blocks.0.up", Choice("FULL_SHARD", 4), "needs split"),
        ("blocks.0.up", Choice("SHARD_GRAD_OP", 2, None, "out"), "needs slices of FULL_SHARD or"),
        ("blocks.0.up", Choice("FULL_SHARD_OFFLOAD", 4, 3, "out"), "3 of 4, .* all slices are sharded"),
        ("blocks.0.up", Choice("FULL_SHARD", 4, -1, "out"), "between 0 and"),
        ("norm", Choice("FULL_SHARD", 1, 0), "which is NO_SHARD"),
    ],
)
def test_replace_names_the_operator_and_the_reason(
    description: ModelDescription, name: str, choice: Choice, match: str
) -> None:
    with pytest.raises(InvalidProblemError, match=match) as caught:
        Plan.uniform(description).replace({name: choice})
    assert f"choices.{name}" in str(caught.value)


def test_replace_regroups_and_forgets_what_was_predicted(description: ModelDescription) -> None:
    plan = full_plan(description)
    other = plan.replace({"norm": Choice("FULL_SHARD")}, recompute={"blocks.1": None, "blocks.0": "hold"})
    assert other.predicted is None and other.certificate is None
    assert other.recompute == {"blocks.0": "hold"}
    assert plan.choices["norm"].mode == "NO_SHARD", "the old plan stays"
    assert ("blocks.0.up",) in other.units
    with pytest.raises(InvalidProblemError, match=r"recompute\.norm"):
        plan.replace(recompute={"norm": "hold"})
    with pytest.raises(InvalidProblemError, match=r"recompute\.blocks\.0"):
        plan.replace(recompute={"blocks.0": "always"})


def operator(name: str, kib: int, **changes: Any) -> Operator:
    dtype = changes.pop("dtype", "float32")
    p = Parameter(f"{name}.weight", (), (kib * 256,), dtype, True)
    defaults: dict[str, Any] = dict(
        name=name, kind="Linear", parameters=(p,), gather_at=(name,), traced=True, calls=1, block=None,
        split_shape=None, parameter_bytes=kib * 1024, buffer_bytes=0,
        saved_bytes_per_sample=0, saved_bytes_fixed=0, flops_per_sample=0,
    )  # fmt: skip
    return Operator(**(defaults | changes))


def units_of(*operators: Operator, **modes: str) -> tuple[tuple[str, ...], ...]:
    description = ModelDescription("M", operators, (), 1, 0)
    return group_units(description, {o.name: Choice(modes.get(o.name, "FULL_SHARD")) for o in operators})


def test_small_neighbours_are_gathered_together() -> None:
    assert units_of(operator("a", 8), operator("b", 600), operator("c", 300)) == (("a", "b"), ("c",))
    assert units_of(operator("a", 300), operator("b", 300)) == (("a",), ("b",))
    assert units_of(operator("a", 800), operator("b", 255)) == (("a",), ("b",))  # 1055 KiB: more than 1 MiB
    assert units_of(operator("a", 800), operator("b", 255), operator("c", 2000)) == (("a", "b"), ("c",))


def test_units_are_as_large_as_the_machine_needs_and_the_search_has_room_for() -> None:
    pcie, nvlink = Hardware.load("rtx-titan-8"), Hardware.load("h100-8")
    assert 3.5 * 2**20 < small_unit_bytes(pcie, 8) < 4 * 2**20
    assert small_unit_bytes(nvlink, 8) == 9_792_000
    assert small_unit_bytes(nvlink, 2) == 9_792_000 // 4
    assert small_unit_bytes(Hardware.load("h100-2x8"), 16, hosts=2) == 32 * 2**20  # the most
    slow = dataclasses.replace(pcie, all_gather=Collective(1e-9, 1.0))
    assert small_unit_bytes(slow, 8) == 256 * 2**10

    operators = tuple(operator(name, 3000) for name in "abcd")
    description = ModelDescription("M", operators, (), 1, 0)
    choices = {o.name: Choice("FULL_SHARD") for o in operators}
    small = small_unit_bytes(nvlink, 8)
    assert group_units(description, choices, small, most=6000 * 2**10) == (("a", "b"), ("c", "d"))
    assert group_units(description, choices, small, most=5000 * 2**10) == tuple((o.name,) for o in operators)
    halves = {o.name: o.parameter_bytes // 2 for o in operators}
    assert group_units(description, choices, small, 6000 * 2**10, halves) == (("a", "b", "c", "d"),)


def test_sharded_units_keep_mode_dtype_and_block_apart() -> None:
    a, b = operator("a", 8), operator("b", 8)
    assert units_of(a, b, b="SHARD_GRAD_OP") == (("a",), ("b",))
    assert units_of(a, operator("b", 8, dtype="float64")) == (("a",), ("b",))
    assert units_of(a, operator("b", 8, block="x")) == (("a",), ("b",))
    assert units_of(a, operator("n", 8), b, n="NO_SHARD") == (("a", "b"), ("n",))


def test_unsharded_operators_fill_buckets_whatever_stands_between() -> None:
    operators = [operator(f"o{i}", 1500, block=str(i)) for i in range(4)]
    operators.insert(1, operator("sharded", 2000))
    modes = {f"o{i}": "NO_SHARD" for i in range(4)}
    assert units_of(*operators, **modes) == (("o0", "o1"), ("sharded",), ("o2", "o3"))
    assert units_of(operator("huge", 9000), operator("small", 1), huge="NO_SHARD", small="NO_SHARD") == (
        ("huge",),
        ("small",),
    )


def test_untraced_operators_are_gathered_with_their_place_and_tied_ones_alone() -> None:
    operators = [operator(n, 900, traced=False, gather_at=("block",)) for n in "abc"]
    assert units_of(*operators) == (("a", "b", "c"),)
    tied = operator("t", 1, gather_at=("t", "head"))
    assert units_of(operator("a", 1), tied, operator("b", 1)) == (("a",), ("t",), ("b",))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 100, 255, 257, 1024, 5000]),
            st.sampled_from(["NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD"]),
            st.sampled_from(["float32", "bfloat16"]),
            st.booleans(),
        ),
        max_size=12,
    )
)
def test_any_grouping_keeps_the_rules(parts: list[tuple[int, str, str, bool]]) -> None:
    operators = tuple(
        operator(f"o{i}", kib, dtype=dtype, traced=traced, gather_at=("",) if not traced else (f"o{i}",))
        for i, (kib, _, dtype, traced) in enumerate(parts)
    )
    description = ModelDescription("M", operators, (), 1, 0)
    choices = {f"o{i}": Choice(mode) for i, (_, mode, _, _) in enumerate(parts)}
    validate(Plan(description, None, None, choices, group_units(description, choices)))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda p: {"units": p.units[1:]}, "is in no unit"),
        (lambda p: {"units": (*p.units, ("norm",))}, "already in another unit"),
        (lambda p: {"units": (*p.units, ("ghost",))}, "no operator with parameters 'ghost'"),
        (lambda p: {"units": (*p.units, ())}, "is empty"),
        (lambda p: {"units": (tuple(p.choices),)}, "several modes"),
        (lambda p: {"choices": {**p.choices, "ghost": Choice("NO_SHARD")}}, r"choices\.ghost"),
        (
            lambda p: {"choices": {k: v for k, v in p.choices.items() if k != "norm"}},
            r"choices\.norm: missing",
        ),
        (lambda p: {"recompute": {"blocks.9": "hold"}}, r"recompute\.blocks\.9"),
        (lambda p: {"world_size": 0}, "world_size"),
        (lambda p: {"batch_size": -1}, "batch_size"),
    ],
)
def test_every_broken_rule_is_named(description: ModelDescription, change: Any, match: str) -> None:
    plan = full_plan(description)
    with pytest.raises(InvalidProblemError, match=match):
        validate(dataclasses.replace(plan, **change(plan)))


def test_a_gathered_unit_does_not_cross_the_edge_of_a_recomputed_block(description: ModelDescription) -> None:
    plan = Plan.uniform(description, "FULL_SHARD")
    crossing = dataclasses.replace(plan, units=(tuple(plan.choices),))
    validate(crossing)  # nothing is recomputed
    with pytest.raises(InvalidProblemError, match="crosses the boundary"):
        validate(dataclasses.replace(crossing, recompute={"blocks.0": "hold"}))
    bucket = Plan.uniform(description, "NO_SHARD")
    assert len(bucket.units) == 1
    validate(dataclasses.replace(bucket, recompute={"blocks.0": "hold"}))  # nothing gathers a bucket


def test_a_plan_comes_back_from_its_file_equal(description: ModelDescription, tmp_path: Path) -> None:
    plan = full_plan(description)
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]
    assert Plan.loads(Plan.uniform(description).dumps()) == Plan.uniform(description)
    description.save(tmp_path / "model.json")
    assert ModelDescription.load(tmp_path / "model.json") == description


def test_a_failed_save_leaves_the_old_file(description: ModelDescription, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan = full_plan(description)
    plan.save(path)
    assert plan.predicted is not None
    broken = dataclasses.replace(
        plan, predicted=dataclasses.replace(plan.predicted, step_time_s=float("nan"))
    )
    with pytest.raises(FormatError, match=r"predicted\.step_time_s"):
        broken.save(path)
    assert Plan.load(path) == plan


def damaged(plan: Plan, *where: Any, value: Any) -> str:
    data = json.loads(plan.dumps())
    node = data
    for step in where[:-1]:
        node = node[step]
    if value is KeyError:
        del node[where[-1]]
    else:
        node[where[-1]] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("where", "value", "field"),
    [
        (("choices", "norm", "granularity"), "2", "choices.norm.granularity"),
        (("choices", "norm", "granularity"), True, "choices.norm.granularity"),
        (("choices", "norm", "granularity"), 2.0, "choices.norm.granularity"),
        (("choices", "norm", "granularity"), 2**63, "choices.norm.granularity"),
        (("choices", "norm", "granularity"), 10**400, "choices.norm.granularity"),
        (("choices", "norm", "mode"), None, "choices.norm.mode"),
        (("choices", "norm", "mode"), "x" * 5000, "choices.norm.mode"),
        (("choices", "norm", "mode"), "ZDP", "choices.norm.mode"),
        (("choices", "norm", "colour"), "red", "choices.norm.colour"),
        (("choices", "norm", "split"), KeyError, "choices.norm.split"),
        (("choices", "norm"), KeyError, "choices.norm"),
        (("choices",), [], "choices"),
        (("units",), {}, "units"),
        (("units", 0), "norm", "units[0]"),
        (("units", 0, 0), 5, "units[0][0]"),
        (("predicted", "step_time_s"), float("nan"), "predicted.step_time_s"),
        (("predicted", "step_time_s"), float("inf"), "predicted.step_time_s"),
        (("predicted", "step_time_s"), False, "predicted.step_time_s"),
        (("certificate", "step_ps"), True, "certificate.step_ps"),
        (("hardware", "all_gather", "alpha_s"), "fast", "hardware.all_gather.alpha_s"),
        (("description", "operators", 0, "split_shape"), [1], "description.operators[0].split_shape"),
        (("description", "operators", 0, "parameter_bytes"), -1, "description.operators[0].parameter_bytes"),
        (("description", "operators", 0, "parameters"), 3, "description.operators[0].parameters"),
        (("description",), None, "description"),
        (("memory_limit_bytes",), 2**58 + 1, "memory_limit_bytes"),
        (("version",), file_versions.newest("plan") + 1, "version"),
        (("version",), True, "version"),
        (("version",), 0, "version"),
        (("osdp",), "hardware", "osdp"),
        (("extra",), 1, "extra"),
        (("batch_size",), KeyError, "batch_size"),
        (("world_size",), 0, "world_size"),
    ],
)
def test_a_damaged_plan_is_refused_by_the_name_of_the_field(
    description: ModelDescription, tmp_path: Path, where: Any, value: Any, field: str
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(damaged(full_plan(description), *where, value=value))
    with pytest.raises(FormatError) as caught:
        Plan.load(path)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{path}: line {caught.value.line}, column {caught.value.column}: ")


def test_an_error_says_the_line_of_the_field(description: ModelDescription) -> None:
    text = full_plan(description).dumps()
    for old, new, field in (
        ('"mode": "NO_SHARD"', '"mode": "ZDP"', "choices.norm.mode"),  # its type
        ('\n  ["tokens"', '\n  ["tokenz"', "units[0]"),  # a rule of plans
    ):
        line = text[: text.index(old) + 1].count("\n") + 1
        with pytest.raises(FormatError) as caught:
            Plan.loads(text.replace(old, new))
        assert (caught.value.field, caught.value.line) == (field, line)
        assert f"line {line}, column {caught.value.column}: {field}: " in str(caught.value)


def test_every_truncation_is_refused(description: ModelDescription) -> None:
    text = full_plan(description).dumps()
    for length in range(0, len(text) - 2, 997):
        with pytest.raises(FormatError):
            Plan.loads(text[:length])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "5",
        "NaN",
        "{}",
        '{"osdp": 1}',
        "[" * 100_000,
        '{"a":' * 5000,
        '{"osdp":"plan","osdp":"plan"}',
        '{"osdp": "plan", "version": 1e999}',
        '"' + "x" * 10_000,
        "{'osdp': 1}",
        "1" * 5000,
    ],
)
def test_text_that_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        Plan.loads(text)


def test_a_file_that_is_too_large_or_not_text_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(FormatError, match="UTF-8"):
        Plan.load(path)
    monkeypatch.setattr(json_files, "MAX_FILE_BYTES", 3)
    path.write_text("{  }")
    with pytest.raises(FormatError, match="larger"):
        Plan.load(path)


def test_a_plan_for_another_model_is_told_by_its_first_difference(description: ModelDescription) -> None:
    plan = Plan.uniform(description)
    check_same_model(plan, osdp.describe(GPT()))
    with pytest.raises(PlanMismatchError, match=r"blocks\.2\.norm1\.weight"):
        check_same_model(plan, osdp.describe(GPT(layers=3)))
    with pytest.raises(PlanMismatchError, match="shape"):
        check_same_model(plan, osdp.describe(GPT(width=64)))
    with pytest.raises(PlanMismatchError, match="dtype"):
        check_same_model(plan, osdp.describe(GPT().double()))
    with pytest.raises(PlanMismatchError, match="aliases"):
        model = GPT(tied=False)
        del model.head
        check_same_model(plan, osdp.describe(model))


def test_an_empty_model_part_is_no_operator() -> None:
    description = osdp.describe(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.randn(1, 2))
    assert set(Plan.uniform(description).choices) == {"0"}
