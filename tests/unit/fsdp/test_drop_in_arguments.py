"""Arguments of FullyShardedDataParallel: those of three classes, in three orders, and what is refused."""

from __future__ import annotations

import enum
import functools
import warnings

import pytest
import torch
from torch import nn
from torch.distributed import fsdp as torch_fsdp
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, size_based_auto_wrap_policy

import osdp
from osdp.fsdp.arguments import HARMLESS, ORDERS, REFUSED, by_position
from osdp.fsdp.options import Options


class ProcessGroupName(enum.Enum):
    """As FairScale's: which group reduces gradients."""

    default = "default"
    reduce_scatter = "reduce_scatter"


PLAN = osdp.Plan.uniform(nn.Linear(2, 2))
ZERO3 = torch_fsdp.ShardingStrategy.FULL_SHARD


@pytest.mark.parametrize("memory", [None, "1GiB"])
@pytest.mark.outcome("an argument that `FullyShardedDataParallel` does not have", osdp.InvalidProblemError)
def test_an_unknown_argument_is_named(memory):
    with pytest.raises(osdp.InvalidProblemError, match=r"'limit_all_gather'.*'limit_all_gathers'"):
        osdp.FullyShardedDataParallel(nn.Linear(2, 2), memory=memory, limit_all_gather=True)


@pytest.mark.outcome("an option of the search among the class's arguments", osdp.InvalidProblemError)
def test_options_of_the_search_have_an_argument_of_their_own():
    with pytest.raises(osdp.InvalidProblemError, match=r"search=\{'batch_size'"):
        osdp.FullyShardedDataParallel(nn.Linear(2, 2), memory="1GiB", batch_size=2)
    with pytest.raises(osdp.InvalidProblemError, match=r"search=\{'world_size'.* batch_size"):
        osdp.FullyShardedDataParallel(nn.Linear(2, 2), memory="1GiB", search={"world_size": 2})


def test_arguments_of_the_search_need_a_limit():
    with pytest.raises(osdp.InvalidProblemError, match=r"^hardware, search .*memory="):
        osdp.FullyShardedDataParallel(nn.Linear(2, 2), hardware="a100-8", search={"batch_size": 4})
    with pytest.raises(osdp.InvalidProblemError, match=r"^hardware .*memory="):
        osdp.FullyShardedDataParallel(nn.Linear(2, 2), hardware="a100-8")


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ((PLAN,), ("plan",)),
        ((None, "8GiB"), ("plan", "memory")),
        ((ZERO3,), ("sharding_strategy",)),
        ((ZERO3, None, None, torch_fsdp.BackwardPrefetch.BACKWARD_PRE), ORDERS["torch's FSDP"][:4]),
        ((None, torch_fsdp.CPUOffload(True)), ("sharding_strategy", "cpu_offload")),
        ((None, None, ModuleWrapPolicy({nn.Linear})), ORDERS["torch's FSDP"][:3]),
        (
            (None, None, functools.partial(size_based_auto_wrap_policy, min_num_params=9)),
            ORDERS["torch's FSDP"][:3],
        ),
        ((ProcessGroupName.default,), ("process_group_reduce_scatter",)),
        ((ProcessGroupName.reduce_scatter, True, True, True), ORDERS["FairScale"][:4]),
        ((None, False), ("process_group_reduce_scatter", "reshard_after_forward")),
        ((None, True, False, True, True, False, True, torch.float16), ORDERS["FairScale"][:8]),
    ],
)
def test_the_order_is_told_by_the_values(values, names):
    assert by_position(values) == dict(zip(names, values, strict=True))


@pytest.mark.outcome("positional arguments in the order of no known class", osdp.InvalidProblemError)
def test_values_in_no_known_order():
    for values in ((3.5,), (ZERO3, PLAN), ("8GiB", "8GiB")):
        with pytest.raises(osdp.InvalidProblemError, match=r"match no known order .*by name"):
            osdp.FullyShardedDataParallel(nn.Linear(2, 2), None, *values)
    with pytest.raises(osdp.InvalidProblemError, match=r"^plan .*position"):
        osdp.FullyShardedDataParallel(nn.Linear(2, 2), None, PLAN, plan=PLAN)


@pytest.mark.parametrize("name", sorted(HARMLESS))
@pytest.mark.parametrize("value", [None, True, False, 25])
def test_hints_change_nothing(name, value):
    assert Options.of((), {name: value}) == Options()


@pytest.mark.parametrize("name", sorted(REFUSED))
@pytest.mark.outcome("an argument of FairScale or FSDP that is not supported", osdp.InvalidProblemError)
def test_what_is_not_supported_says_what_to_do(name):
    assert Options.of((), {name: None}) == Options()
    with pytest.raises(osdp.InvalidProblemError, match=rf"^{name}=\[1\] is not supported: \w+"):
        osdp.FullyShardedDataParallel(nn.Linear(2, 2), **{name: [1]})


def test_one_meaning_under_two_names():
    assert Options.of((), {"move_params_to_cpu": True}).offload
    assert Options.of((), {"cpu_offload": torch_fsdp.CPUOffload(True)}).offload
    assert Options.of((), {"compute_device": "cpu"}).device == "cpu"
    assert Options.of((), {"reshard_after_forward": False}).mode == "SHARD_GRAD_OP"
    assert Options.of((), {"reshard_after_forward": True}).mode == "FULL_SHARD"
    assert Options.of((), {"sharding_strategy": torch_fsdp.ShardingStrategy.NO_SHARD}).mode == "NO_SHARD"
    halves = Options.of((), {"mixed_precision": True, "fp32_reduce_scatter": True}).precision
    assert halves == osdp.MixedPrecision(torch.float16, torch.float32, torch.float16)
    assert Options.of((), {"compute_dtype": torch.float32}).precision is None


def test_full_precision_in_evaluation_by_the_environment_is_warned_of(monkeypatch):
    monkeypatch.setenv("FSDP_USE_FULL_PREC_IN_EVAL", "1")
    with pytest.warns(UserWarning, match="FSDP_USE_FULL_PREC_IN_EVAL"):
        Options.of((), {"mixed_precision": osdp.MixedPrecision(torch.bfloat16)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Options.of((), {})


@pytest.mark.outcome("gradients in a different memory than their shards", osdp.InvalidProblemError)
def test_gradients_rest_with_their_shards():
    Options.of((), {"move_params_to_cpu": True, "move_grads_to_cpu": True})
    for named in ({"move_grads_to_cpu": True}, {"move_params_to_cpu": True, "move_grads_to_cpu": False}):
        with pytest.raises(osdp.InvalidProblemError, match="gradients stay where their shards are"):
            Options.of((), named)


def test_a_plan_is_for_one_model() -> None:
    model = nn.Linear(2, 2)
    plan = osdp.Plan.uniform(osdp.describe(model))
    with pytest.raises(osdp.InvalidProblemError, match="list"):
        osdp.fully_shard([model], plan)
