"""What of tensor parallelism is refused, by name and with nothing changed."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from harness import Member
from support.pair import naming
from support.tensor_parallel import WIDTH, TensorPair, mesh_of, net, parallelized, tokens
from torch import distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import osdp


def refused(me: Member) -> None:
    mesh = mesh_of(me, 2, 2)

    def refuse(text: str, change: Any, **options: Any) -> None:
        model = parallelized(net(), mesh["tp"])
        plan = osdp.Plan.uniform(osdp.describe(model), "FULL_SHARD")
        change(model)
        before = dict(model.named_parameters())
        data = options.pop("over", mesh["dp"])
        calls = {
            "by a plan": lambda: osdp.fully_shard(model, plan, device_mesh=data, **options),
            "without": lambda: osdp.fully_shard(model, mesh=data, **options),
            "the class": lambda: osdp.FullyShardedDataParallel(model, device_mesh=data, **options),
        }
        for name, call in calls.items():
            with naming(f"{text}, {name}"):
                with pytest.raises(osdp.ShardingError, match=text):
                    call()
                after = dict(model.named_parameters())
                assert after.keys() == before.keys()
                assert all(after[key] is p for key, p in before.items())

    def put(module: str, value: Any) -> Any:
        def change(model: nn.Module) -> None:
            model.get_submodule(module).weight = nn.Parameter(value)

        return change

    refuse(
        r"'embed.weight' is a DTensor over ranks \[\d, \d\].*sharded over rank",
        lambda m: None,
        over=mesh["tp"],
    )
    weight = torch.zeros(8, dtype=torch.float64)
    partial = DTensor.from_local(weight, mesh["tp"], [Partial()])
    refuse(r"'norm.weight' is a DTensor with the placement Partial", put("norm", partial))
    over_both = distribute_tensor(weight, mesh, [Shard(0), Replicate()])
    refuse("'norm.weight' is a DTensor over 2 dimensions", put("norm", over_both))
    over_data = distribute_tensor(weight, mesh["dp"], [Shard(0)])
    refuse("'norm.weight' is a DTensor over ranks.*would be sharded over rank", put("norm", over_data))


@pytest.mark.outcome(
    "`DTensor` parameters over several dimensions of a mesh, or with Partial placements",
    osdp.ShardingError,
)
def test_bad_layouts_are_named_before_anything_is_changed(ranks):
    ranks(refused, world=4)


def made_before(me: Member) -> None:
    model = parallelized(net(), mesh_of(me, 2, 2)["tp"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    osdp.fully_shard(model, mesh=mesh_of(me, 2, 2)["dp"])
    with pytest.raises(osdp.ShardingError, match=r"SGD was made before osdp\.fully_shard .* 'embed\.weight'"):
        optimizer.step()


def divided_late(me: Member) -> None:
    model = net()
    plan = osdp.Plan.uniform(osdp.describe(model), "FULL_SHARD")
    osdp.fully_shard(model, plan, device_mesh=mesh_of(me, 2, 2)["dp"])
    parallelized(model, mesh_of(me, 2, 2)["tp"])
    with pytest.raises(osdp.ShardingError, match=r"'embed\.weight', a DTensor, .* before fully_shard"):
        model(tokens(0, 2))


@pytest.mark.outcome("`parallelize_module` after `fully_shard` with a plan", osdp.ShardingError)
def test_a_model_that_is_divided_too_late(ranks):
    ranks(divided_late, world=4)


@pytest.mark.outcome(
    "an optimizer that was made before `osdp.parallelize` with tensor parallelism, or between `parallelize_module` and "
    "`fully_shard`",
    osdp.ShardingError,
)
def test_optimizers_that_were_made_before(ranks):
    ranks(made_before, world=4)


def untied(me: Member) -> None:
    for again in (False, True):
        model = net(tied=True)
        model.tied = again  # whether parallelized() ties them again
        parallelized(model, mesh_of(me, 1, 2)["tp"])
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            osdp.fully_shard(model, mesh=mesh_of(me, 1, 2)["dp"])
        assert any("'embed.weight' and 'head.weight'" in str(w.message) for w in told) is not again


def test_a_tie_that_parallelize_module_has_undone_is_told(ranks):
    ranks(untied, world=2)


def left_out(me: Member) -> None:
    """Each rank has a part of the sequence, and so of the norm's gradient; a script may sum it itself."""
    mesh = mesh_of(me, 2, 2)
    for by_hand in (False, True):
        model = parallelized(net(), mesh["tp"])
        model.norm = nn.LayerNorm(WIDTH).double()
        pair = TensorPair(osdp.fully_shard(model, mesh=mesh["dp"]), net(), me.rank // 2, 2)
        pair.backward(0)
        if by_hand:
            for parameter in model.norm.parameters():
                dist.all_reduce(parameter.grad.to_local(), group=mesh["tp"].get_group())
            pair.update()
            pair.same_parameters()
        else:
            with pytest.raises(osdp.ShardingError, match=r"the gradient of 'norm\.bias' differs between"):
                pair.optimizer.step()


@pytest.mark.outcome(
    "a parameter that every rank of a tensor-parallel group holds whole and uses with a part of the activations, whose "
    "gradients nobody sums over the group",
    osdp.ShardingError,
)
def test_gradients_of_what_the_styles_leave_out(ranks):
    ranks(left_out, world=4)
