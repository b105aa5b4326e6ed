"""What a device holds beside tensors: named, counted against the limit, and said; rates of dtypes price a precision."""

from __future__ import annotations

import dataclasses

import pytest

import osdp
from osdp.hardware.hardware import DeviceMemory, Hardware, known_machines
from osdp.planning.core_inputs import compute_s, computing_dtypes
from osdp.planning.device_memory import memory_terms
from osdp.planning.verify import verify
from tests.unit.gpt_descriptions import gpt, machine

MIB = 2**20
MEMORY = DeviceMemory(
    context_bytes=300 * MIB,
    communicator_bytes=50 * MIB,
    workspace_bytes=8 * MIB,
    tensor_rounding_bytes=512,
    small_block_bytes=2 * MIB,
    large_block_bytes=20 * MIB,
    unused_bytes=7 * MIB,
)
PARAMETERS = 2 + 2 * 12 + 2 + 2  # of gpt(2, ...): weights and biases


def test_each_term_is_named_and_follows_from_what_it_is_of() -> None:
    description, hardware = gpt(2, 128), machine(4, device_memory=MEMORY)
    assert sum(len(o.parameters) for o in description.operators) == PARAMETERS
    terms = {t.name: t.bytes for t in memory_terms(description, hardware, ranks=4)}
    assert terms == {
        "context": 300 * MIB,
        "communicators": 2 * 50 * MIB,
        "workspaces": 2 * 8 * MIB,
        "rounding": 512 * PARAMETERS * 5,  # parameter, gradient, two moments, the count of steps
        "open blocks": 2 * 22 * MIB,
        "unused": 7 * MIB,
    }
    more = {t.name: t.bytes for t in memory_terms(description, hardware, ranks=4, hosts=2, state=0)}
    assert more["communicators"] == 4 * 50 * MIB and more["rounding"] == 512 * PARAMETERS * 3
    for hosts, groups in ((1, 3), (2, 6)):  # one more of all ranks, and one more inside hosts
        apart = memory_terms(description, hardware, ranks=4, hosts=hosts, separate_reductions=True)
        more = {t.name: t.bytes for t in apart}
        assert more["communicators"] == groups * 50 * MIB and more["open blocks"] == 3 * 22 * MIB
    assert "communicators" not in {t.name for t in memory_terms(description, hardware, ranks=1)}
    assert memory_terms(description, machine(4), ranks=4) == ()


def peak_within(limit: int) -> int:
    return limit - limit // 100  # Note [What fits] in csrc/search/planner/peak_limit.hpp


def limit_of(peak: int) -> int:
    return peak + (peak - 1) // 99


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_they_count_against_the_limit_in_search_certificate_and_prediction(precision: str) -> None:
    """With the terms and a limit larger by their sum, what can be reached is the same."""
    description, bare = gpt(2, 128), machine(4)
    loaded = dataclasses.replace(bare, device_memory=MEMORY)
    terms = sum(t.bytes for t in memory_terms(description, loaded, ranks=4))
    arguments = dict(world_size=4, precision=precision, gap=0.0)
    with pytest.raises(osdp.InfeasibleError) as e:
        osdp.search(description, memory=terms, hardware=loaded, **arguments)
    with pytest.raises(osdp.InfeasibleError) as without:
        osdp.search(description, memory=0, hardware=bare, **arguments)
    least = without.value.smallest_limit
    assert e.value.smallest_limit == limit_of(peak_within(least) + terms)
    for limit in (least, 2 * least, 256 * MIB):
        more = limit_of(peak_within(limit) + terms)
        plan = osdp.search(description, memory=more, hardware=loaded, **arguments)
        other = osdp.search(description, memory=limit, hardware=bare, **arguments)
        assert plan.predicted.peak_memory_bytes <= more
        # The same plans fit, so the same bound holds; and each of them holds as much more.
        bounds = [p.certificate.step_bound_ps / p.batch_size for p in (plan, other)]
        assert bounds[0] == pytest.approx(bounds[1], rel=1e-3)
        bare_too = dataclasses.replace(plan, hardware=bare).simulate()
        assert plan.simulate().peak_memory_bytes == bare_too.peak_memory_bytes + terms
        assert verify(plan) == "" and verify(other) == ""
        changed = dataclasses.replace(
            loaded, device_memory=dataclasses.replace(MEMORY, context_bytes=301 * MIB)
        )
        assert verify(dataclasses.replace(plan, hardware=changed)) != ""


def test_explain_names_them_and_says_nothing_on_a_cpu() -> None:
    description = gpt(2, 128)
    plan = osdp.search(description, memory="1GiB", world_size=4, hardware=machine(4, device_memory=MEMORY))
    said = plan.explain(width=160, search=False)
    assert "Memory of the device that no tensor has, which counts against the limit" in said
    for line in (
        "context: 300 MiB (",
        "communicators: 100 MiB (2: the caller's and OSDP's",
        "workspaces: 16.0 MiB (",
        "rounding: ",
        "open blocks: 44.0 MiB (",
        "unused: 7.00 MiB (",
    ):
        assert line in said, line
    assert "device 46" in said  # MiB, in the bar's legend
    parallel = osdp.search(
        description,
        memory="1GiB",
        world_size=4,
        hardware=machine(4, device_memory=MEMORY),
        global_batch_size=8,
        tensor_parallel=1,
        pipeline_parallel=2,
    )
    for stage in parallel.stages:
        assert "communicators: 150 MiB (3:" in stage.plan.explain(width=160, search=False)
    bare = osdp.search(description, memory="1GiB", world_size=4, hardware=machine(4))
    assert "no tensor has" not in bare.explain(width=160, search=False)


def test_a_precision_computes_at_the_rate_of_its_dtype() -> None:
    description = gpt(1, 128)
    hardware = machine(4, flops_per_s_by_dtype={"bfloat16": 1.5e14, "tf32": 7e13})
    matrix = next(o for o in description.operators if o.name == "h.0.mlp.fc")
    for precision, rate in (
        ("fp32", 1e13),
        ("tf32", 7e13),
        ("bf16", 1.5e14),
        ("bf16-reduce-fp32", 1.5e14),
        ("fp16", 1e13),  # not known: as fp32
    ):
        dtype = computing_dtypes(description, precision)[matrix.name]
        assert compute_s(matrix, hardware, dtype).per_sample == pytest.approx(
            3 * matrix.flops_per_sample / rate
        )
        plan = osdp.search(
            description, memory="4GiB", world_size=4, hardware=hardware, precision=precision, batch_size=1
        )
        assert plan.predicted.operators[matrix.name].compute_s == pytest.approx(
            3 * matrix.flops_per_sample / rate
        )
        assert verify(plan) == ""


def test_a_model_in_bf16_computes_in_bf16_also_where_it_has_no_parameters() -> None:
    description = gpt(1, 128)
    lower = tuple(
        dataclasses.replace(
            o, parameters=tuple(dataclasses.replace(p, dtype="bfloat16") for p in o.parameters)
        )
        for o in description.operators
    )
    bare = dataclasses.replace(lower[2], name="attention", parameters=(), split_shape=None)
    model = dataclasses.replace(description, operators=(*lower, bare))
    assert set(computing_dtypes(model, "fp32").values()) == {"bfloat16"}
    assert set(computing_dtypes(model, "tf32").values()) == {"bfloat16"}
    assert set(computing_dtypes(description, "tf32").values()) == {"tf32"}


def test_known_machines_carry_rates_and_memory_with_their_sources() -> None:
    for name in known_machines():
        hardware = Hardware.load(name)
        if name == "rtx-titan-8":
            assert not hardware.flops_per_s_by_dtype and hardware.device_memory == DeviceMemory()
            continue
        rates = hardware.flops_per_s_by_dtype
        assert set(rates) == {"bfloat16", "float16", "tf32"}
        assert hardware.flops_per_s <= rates["tf32"] < rates["bfloat16"] < 2e15
        assert "TF32" in hardware.source and "BF16" in hardware.source and "context" in hardware.source
        m = hardware.device_memory
        assert (m.tensor_rounding_bytes, m.small_block_bytes, m.large_block_bytes) == (512, 2 * MIB, 20 * MIB)
        assert m.context_bytes > 0 and m.communicator_bytes > 0 and m.workspace_bytes > 0


@pytest.mark.parametrize("figure", ["context_bytes", "unused_bytes"])
def test_figures_that_mean_nothing_are_refused(figure: str) -> None:
    for value in (-1, 2**60):
        broken = machine(device_memory=dataclasses.replace(MEMORY, **{figure: value}))
        with pytest.raises(osdp.FormatError) as e:
            Hardware.loads(broken.dumps())
        assert e.value.field == f"device_memory.{figure}"
        with pytest.raises(osdp.InvalidProblemError, match=figure):
            osdp.search(gpt(1, 64), memory="1GiB", world_size=4, hardware=broken)
    with pytest.raises(osdp.InvalidProblemError, match=r"flops_per_s_by_dtype\.bfloat16"):
        osdp.search(
            gpt(1, 64), memory="1GiB", world_size=4, hardware=machine(flops_per_s_by_dtype={"bfloat16": 0.0})
        )


def test_a_machine_that_nobody_named_holds_tensors_only() -> None:
    """The limit may be a CPU's."""
    plan = osdp.search(gpt(1, 64), memory="64MiB", world_size=4)
    assert plan.hardware.name == "a100-8" and plan.hardware.device_memory == DeviceMemory()
    with pytest.raises(osdp.InfeasibleError):
        osdp.search(gpt(1, 64), memory="64MiB", world_size=4, hardware="a100-8")
