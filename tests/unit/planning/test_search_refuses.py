"""osdp.search refuses what it cannot plan, naming it: nothing is planned from what is not known."""

import dataclasses

import pytest
import torch
from torch import nn

import osdp
from osdp import _search
from osdp.description.model_description import Block, ModelDescription
from tests.unit.gpt_descriptions import gpt, linear, machine, operator
from tests.unit.problems import problem_of

HERE = dict(memory="64MiB", world_size=4, hardware=machine(4))


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))


class MakesItsInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, samples):
        return self.layer(torch.zeros(int(samples), 8))


# A model of unknown activations is one whose every batch fits: "batch 65536" was the answer.
@pytest.mark.outcome(
    "`osdp.search` of a model without a sample, or with an empty one", osdp.InvalidProblemError
)
@pytest.mark.parametrize("sample", [None, (), {}], ids=["none", "tuple", "dict"])
def test_a_model_needs_a_sample(sample):
    with pytest.raises(osdp.InvalidProblemError, match=r"search\(model, \(inputs,\)"):
        osdp.search(two_layers(), sample, **HERE)


@pytest.mark.outcome(
    "`osdp.search` of a description that was made without a sample", osdp.InvalidProblemError
)
def test_a_description_needs_a_sample():
    with pytest.raises(osdp.InvalidProblemError, match=r"Sequential .*sample"):
        osdp.search(osdp.describe(two_layers()), **HERE)
    with pytest.raises(osdp.InvalidProblemError, match="without a sample"):
        osdp.search(osdp.describe(two_layers()), batch_size=8, **HERE)


@pytest.mark.outcome("a sample without a tensor whose dimension 0 is the batch", osdp.DescribeError)
@pytest.mark.parametrize("sample", [3, torch.tensor(3)])
def test_a_sample_has_a_batch(sample):
    with pytest.raises(osdp.DescribeError, match="dimension 0 could be the batch"):
        osdp.search(MakesItsInput(), (sample,), **HERE)


@pytest.mark.outcome(
    "the best batch size for a model whose memory does not grow with it", osdp.InvalidProblemError
)
def test_no_batch_is_the_best_of_a_model_that_keeps_nothing():
    free = dataclasses.replace(
        gpt(1, 64),
        operators=(operator("wte", "Embedding", {"weight": (100, 8)}),),
        blocks=(),
        input_bytes_per_sample=0,
        output_bytes_per_sample=0,
    )
    for arguments in ({}, {"global_batch_size": 64}, {"objective": "batch"}):
        with pytest.raises(osdp.InvalidProblemError, match="set batch_size="):
            osdp.search(free, **HERE, **arguments)
    assert osdp.search(free, **HERE, batch_size=2).batch_size == 2


@pytest.mark.parametrize(
    "arguments, says",
    [
        # An array of three was written beyond its end.
        ({"checkpoint": ("hold", "hold", "none", "regather")}, "contains a name twice"),
        ({"checkpoint": ("none", "none")}, "contains a name twice"),
        ({"checkpoint": ()}, "must contain only"),
        ({"modes": ("FULL_SHARD", "FULL_SHARD")}, "'FULL_SHARD' appears twice"),
        # Each host has one rank: nothing to shard inside a host.
        ({"modes": "HYBRID_SHARD", "hosts": 4}, "'h.0.fc' can be sharded in none of the modes"),
        ({"granularity": tuple(range(1, 1025))}, "ways to shard it"),
        ({"batch_size": 2**31}, r"batch_size is 2147483648; it must be between 1 and 2\*\*30"),
        # It was ignored: the plan has no stages.
        ({"schedule": "gpipe"}, "schedule is given, but pipeline_parallel is not"),
        ({"schedule": "gpipe", "tensor_parallel": 2}, "schedule is given, but pipeline_parallel is not"),
        # So was this: activations are those of the description's own sample.
        ({"sample": (torch.zeros(8, 4),)}, "sample= would change nothing"),
        ({"sample": (torch.zeros(8, 4),), "hardware": "this"}, "sample= would change nothing"),
        ({"schedule": "GPipe"}, "schedule must be one of"),
        ({"hardware": 3}, "hardware=3: give the name of a shipped machine"),
        ({"global_batch_size": 2**41}, "global_batch_size is"),
    ],
)
def test_options_that_mean_nothing_are_refused(arguments, says):
    wide = linear("h.0.fc", 10080, 16, 8, "h.0")  # many numbers of slices divide it
    description = ModelDescription("Wide", (wide,), (Block("h.0", 64),), 1, 64)
    with pytest.raises(osdp.InvalidProblemError, match=says):
        osdp.search(description, **{**HERE, **arguments})


def test_a_layer_without_inputs_is_not_split():
    # Its weight has no elements: sizes of slices were divided by zero, which ended the process.
    description = ModelDescription("Empty", (linear("empty", 4, 0, 16), linear("fc", 8, 8, 16)), (), 1, 64)
    plan = osdp.search(description, **HERE)
    assert plan.choices["empty"].granularity == 1 and osdp.verify(plan) == ""


@pytest.mark.parametrize(
    "change, says",
    [
        ({"block": "nowhere"}, r"operators\[1\].block"),
        ({"saved_bytes_per_sample": -1}, r"operators\[1\].saved_bytes_per_sample"),
        ({"saved_bytes_fixed": 2**70}, r"operators\[1\].saved_bytes_fixed"),
        ({"flops_per_sample": -(2**70)}, r"operators\[1\].flops_per_sample"),
        ({"calls": -1}, r"operators\[1\].calls"),
        ({"name": "wte"}, "appears twice"),
        ({"split_shape": (3, 3)}, r"operators\[1\].split_shape"),
    ],
)
def test_a_description_that_means_nothing_is_refused(change, says):
    good = gpt(1, 64)
    bad = dataclasses.replace(good.operators[1], **change)
    description = dataclasses.replace(good, operators=(good.operators[0], bad, *good.operators[2:]))
    with pytest.raises(osdp.InvalidProblemError, match=says):
        osdp.search(description, **HERE)


@pytest.mark.parametrize(
    "change",
    [
        {"optimizer_s_per_byte": float("nan")},
        {"exposed_communication": float("inf")},
        {"all_gather": osdp.hardware.hardware.Collective(-1.0, 0.0)},
        {"between_hosts": osdp.hardware.hardware.Collective(float("nan"), 0.0)},
        {"flops_per_s": float("nan")},
        {"gamma_s": {"h.0.mlp.fc": float("nan")}},
        {"recompute_s": {"h.0.mlp.fc": -1.0}},
        {"recompute_slowdown": 0.0},
        {"stolen_computation": float("nan")},
        {"communication_delay": osdp.hardware.hardware.Collective(0.0, float("inf"))},
    ],
)
def test_hardware_that_means_nothing_is_refused(change):
    hardware = dataclasses.replace(machine(4), **change)
    with pytest.raises(osdp.InvalidProblemError):
        osdp.search(gpt(1, 64), memory="64MiB", world_size=4, hardware=hardware, hosts=2)


def test_the_core_refuses_for_itself():
    """What Python refuses, and what it never asks for."""
    description, hardware = gpt(1, 64), machine(4)
    problem = problem_of(description, hardware, 4)

    def ask(batches=(), **changes):
        planner = problem.changed(**changes).planner
        request = planner.request(limit_bytes=2**30)
        request.batches = [_search.Batch(*b) for b in batches]
        return _search.schedule(planner.model, request, 1.0)

    with pytest.raises(_search.InvalidProblem, match="code 1 is there twice"):
        ask(checkpoint=("hold", "hold", "none", "regather"))
    with pytest.raises(ValueError, match="recompute 'drop' is unknown"):
        ask(checkpoint=("drop",))
    with pytest.raises(_search.InvalidProblem, match="granularity"):
        ask(granularity=(0,))
    for batches in ([(0, 1)], [(1, 0)], [(2**40, 1)], [(1, 2**50)]):
        with pytest.raises(_search.InvalidProblem, match="batch"):
            ask(batches)
    with pytest.raises(_search.InvalidProblem, match="overflows"):
        ask([(2**30, 2**40)])
    with pytest.raises(_search.InvalidProblem, match="costs only"):
        ask(method="dfs")
