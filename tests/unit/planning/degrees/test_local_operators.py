"""What one rank of a tensor-parallel group has: shapes, activations, work, and the collectives that it waits for."""

import dataclasses
import re
from types import SimpleNamespace

import pytest
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)

import osdp
from osdp.planning.degrees.collectives import collectives_of
from osdp.planning.degrees.local_operators import LocalOperators
from osdp.planning.degrees.styles import fitting, plan_of, styles_of
from tests.unit.gpt_descriptions import gpt, machine
from tests.unit.planning.degrees.problems import STYLES

MODEL = gpt(2, 64)
TORCH = {
    "h.*.attn": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate()),
    "h.*.attn.qkv": ColwiseParallel(),
    "h.*.attn.proj": RowwiseParallel(),
    "head": ColwiseParallel(output_layouts=Replicate()),
}


def test_torch_styles_and_strings_say_the_same() -> None:
    assert plan_of(TORCH) == {
        "h.*.attn": "module", "h.*.attn.qkv": "colwise", "h.*.attn.proj": "rowwise", "head": "colwise_gathered",
    }  # fmt: skip
    styles = styles_of(MODEL, plan_of(TORCH))
    assert (
        styles["h.1.attn.qkv"] == "colwise"
        and styles["head"] == "colwise_gathered"
        and "h.1.attn" not in styles
    )


def test_a_model_of_transformers_has_its_own_plan() -> None:
    model = SimpleNamespace(config=SimpleNamespace(base_model_tp_plan={"layers.*.fc": "colwise"}))
    assert plan_of(None, model) == {"layers.*.fc": "colwise"}
    assert plan_of(None, SimpleNamespace()) == {}


def test_of_a_models_own_plan_experts_and_layers_that_it_has_not_are_left_out() -> None:
    """Experts are parameters, which torch's styles do not know; plans of sparse models also name layers of dense ones."""
    experts = {"h.*.mlp.experts": "moe_tp_experts", "h.*.mlp.experts.up": "packed_colwise"}
    own = plan_of(None, SimpleNamespace(base_model_tp_plan={**STYLES, **experts, "h.*.mlp.dense": "colwise"}))
    assert fitting(own, MODEL) == STYLES
    with pytest.raises(osdp.InvalidProblemError, match=r"experts'\]: style 'moe_tp_experts' is not one of"):
        plan_of(experts)


def test_styles_that_models_of_transformers_have_beside_torchs() -> None:
    """Inputs that every rank has whole, whose gradients are gathered, and norms of what a column-wise linear made."""
    given = {"h.*.attn.proj": "rowwise_split_input", "h.*.ln_1": "replicated_with_grad_allreduce"}
    plans = [{**STYLES, **more} for more in ({}, given)]
    styles = [styles_of(MODEL, plan_of(plan)) for plan in plans]
    plain, local = ({o.name: o for o in LocalOperators(MODEL, s, 2).local.operators} for s in styles)
    assert local["h.0.attn.proj"] == plain["h.0.attn.proj"]
    assert [p.shape for p in local["h.0.ln_1"].parameters] == [p.shape for p in plain["h.0.ln_1"].parameters]
    assert local["h.0.ln_1"].saved_bytes_per_sample == -(-plain["h.0.ln_1"].saved_bytes_per_sample // 2) > 0
    of_plain, of_given = (collectives_of(MODEL, s, machine(2), 2, 4, "fp32") for s in styles)
    assert of_given["h.0.attn.proj"].backward_s > of_plain["h.0.attn.proj"].backward_s == 0
    assert "h.0.ln_1" not in of_given


def test_styles_of_a_tied_weight_are_refused_and_left_out_of_a_models_own_plan() -> None:
    """torch's parallelize_module makes two parameters of it."""
    table, *others, head = MODEL.operators
    (weight,) = table.parameters
    tied = dataclasses.replace(table, parameters=(dataclasses.replace(weight, aliases=("head.weight",)),))
    head = dataclasses.replace(head, parameters=(), gather_at=(), parameter_bytes=0, split_shape=None)
    model = dataclasses.replace(MODEL, operators=(tied, *others, head))
    for name, other in (("head", "wte"), ("wte", "head")):
        with pytest.raises(osdp.InvalidProblemError, match=f"gives '{name}' the .* also that of '{other}'"):
            styles_of(model, {name: "colwise_gathered"})
    assert fitting({**STYLES, "head": "colwise_gathered"}, model) == {
        name: style for name, style in STYLES.items() if name != "head"
    }


def test_styles_that_torch_has_no_products_for_are_refused() -> None:
    changed = [
        dataclasses.replace(o, kind="Conv1D", transposed=o.name == "h.1.mlp.fc") for o in MODEL.operators
    ]
    with pytest.raises(osdp.InvalidProblemError, match=r"gives 'h.1.mlp.fc', a Conv1D, the style 'colwise'"):
        styles_of(dataclasses.replace(MODEL, operators=tuple(changed)), STYLES)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"h.*.attn.q": "colwise"}, "tp_plan['h.*.attn.q'] names no module of GPT"),
        ({"head": "diagonal"}, "tp_plan['head']: style 'diagonal' is not one of"),
        ({"head": 3}, "tp_plan['head']: a int is no style"),
        (["head"], "tp_plan must be a mapping"),
    ],
)
def test_a_plan_that_names_nothing_is_refused(plan: object, said: str) -> None:
    with pytest.raises(osdp.InvalidProblemError, match=re.escape(said)):
        styles_of(MODEL, plan_of(plan))  # type: ignore[arg-type]


def test_shapes_are_those_of_one_rank() -> None:
    local = LocalOperators(MODEL, styles_of(MODEL, STYLES), 4).local
    whole = {o.name: o for o in MODEL.operators}
    own = {o.name: o for o in local.operators}
    assert [p.shape for p in own["h.0.attn.qkv"].parameters] == [(48, 64), (48,)]
    assert [p.shape for p in own["h.0.attn.proj"].parameters] == [(64, 16), (64,)]
    assert own["h.0.mlp.fc"].split_shape == (64, 64) and own["h.0.mlp.proj"].split_shape == (64, 64)
    for name in ("h.0.attn.qkv", "h.0.attn.proj", "h.0.attn", "h.1.mlp.fc"):
        assert 4 * own[name].flops_per_sample == whole[name].flops_per_sample
    assert own["h.0.attn.qkv"].saved_bytes_per_sample == whole["h.0.attn.qkv"].saved_bytes_per_sample
    assert 4 * own["h.0.attn.proj"].saved_bytes_per_sample == whole["h.0.attn.proj"].saved_bytes_per_sample
    assert 4 * own["h.0.attn"].saved_bytes_per_sample == whole["h.0.attn"].saved_bytes_per_sample  # heads
    assert own["h.0.ln_1"] == whole["h.0.ln_1"] and own["head"] == whole["head"]
    assert all(o.parameter_bytes == sum(4 * p.elements for p in o.parameters) for o in local.operators)


def test_under_sequence_parallelism_the_rest_is_a_part_of_the_sequence() -> None:
    styles = styles_of(MODEL, plan_of({**STYLES, "h.*.ln_1": SequenceParallel(), "h.*.ln_2": "sequence"}))
    local = LocalOperators(MODEL, styles, 4).local
    own = {o.name: o for o in local.operators}
    whole = {o.name: o for o in MODEL.operators}
    assert 4 * own["h.0.ln_1"].saved_bytes_per_sample == whole["h.0.ln_1"].saved_bytes_per_sample
    assert own["h.0.ln_1"].parameters == whole["h.0.ln_1"].parameters
    assert 4 * local.blocks[0].input_bytes_per_sample == MODEL.blocks[0].input_bytes_per_sample


def test_dimensions_that_ranks_do_not_divide_are_named() -> None:
    with pytest.raises(osdp.InvalidProblemError, match=r"tensor_parallel=5.*h\.0\.attn\.qkv"):
        _ = LocalOperators(MODEL, styles_of(MODEL, STYLES), 5).local


def test_collectives_are_those_of_megatron() -> None:
    """Of 128 tokens of width 64 in fp32: one all-reduce behind each row-wise linear, and one of the gradient of what
    column-wise ones read; in two halves under sequence parallelism."""
    hardware = machine(8)
    ring = hardware.all_reduce
    size = 3 * 128 * 64 * 4  # of a micro-batch of 3
    half = 3 * (ring.alpha_s + size / 4 * ring.beta_s_per_byte)
    found = collectives_of(MODEL, styles_of(MODEL, STYLES), hardware, 4, 3, "fp32")
    assert set(found) == {
        f"h.{i}.{name}" for i in (0, 1) for name in ("attn.qkv", "attn.proj", "mlp.fc", "mlp.proj")
    }
    assert (
        found["h.0.attn.proj"].forward_s == pytest.approx(2 * half) and found["h.0.attn.proj"].backward_s == 0
    )
    assert (
        found["h.0.attn.qkv"].backward_s == pytest.approx(2 * half) and found["h.0.attn.qkv"].forward_s == 0
    )
    styles = styles_of(MODEL, {**STYLES, "h.*.ln_1": "sequence"})
    parts = collectives_of(MODEL, styles, hardware, 4, 3, "fp32")
    assert (
        parts["h.0.attn.proj"].forward_s
        == pytest.approx(half)
        == pytest.approx(parts["h.0.attn.proj"].backward_s)
    )
    assert collectives_of(MODEL, styles, hardware, 1, 3, "fp32") == {}
