"""fully_shard fails in one of its steps, on one rank: on every rank the model is as it was, and can be sharded again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from harness import Member
from support.pair import naming
from torch import nn

import osdp
from osdp.base.modules import is_sharded
from osdp.sharding import fully_shard, plan_on_modules, unit_calls

STEPS = (
    "_install_tools",
    "_units",
    "_spec",
    "_C.Runtime",
    "AsItWas.make_room",
    "Sharded",
    "on_modules.install_calls",
    "unit_calls.install_call",
    "on_modules.install_precision",
    "on_modules._install_splits",
    "on_modules._install_recomputation",
    "on_modules.cover_forward",
    "on_modules.route_forward",
    "Tree",
    "on_modules.show_full_parameters",
    "on_modules.watch_methods",
    "on_modules.ModuleChanges.note",
    "register",
)
HOLDERS = {"": fully_shard, "on_modules": plan_on_modules, "unit_calls": unit_calls}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(self.norm(x)).tanh())

    def norm_of(self) -> torch.Tensor:
        return self.up.weight.norm()


class Net(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.lstm = nn.LSTM(8, 4)
        self.head = nn.Linear(4, 3)
        self.head.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(self.lstm(x)[0])


def plan_of(model: nn.Module) -> osdp.Plan:
    plan = osdp.Plan.uniform(osdp.describe(model, torch.randn(4, 8)), "FULL_SHARD")
    split = {"blocks.1.up": osdp.Choice("FULL_SHARD", granularity=4, sharded_slices=2, split="out")}
    return plan.replace({**split, "head": osdp.Choice("NO_SHARD")}, recompute={"blocks.0": "regather"})


def picture(model: nn.Module) -> dict[str, Any]:
    """All that fully_shard may touch."""
    seen: dict[str, Any] = {"sharded": is_sharded(model)}
    for name, module in model.named_modules():
        seen[f"{name}: class"] = type(module)
        for key, value in vars(module).items():
            held = (
                dict(value)
                if isinstance(value, dict)
                else list(value)
                if isinstance(value, list | set)
                else value
            )
            seen[f"{name}.{key}"] = (id(value) if isinstance(value, dict | list) else None, held)
    for name, p in model.named_parameters():
        grad = None if p.grad is None else (id(p.grad), p.grad.tolist())
        seen[name] = (id(p), p.data_ptr(), p.tolist(), grad, p.requires_grad, p.stride(), dict(vars(p)))
    for name, buffer in model.named_buffers():
        seen[name] = (id(buffer), buffer.tolist())
    return seen


def same(after: dict[str, Any], before: dict[str, Any]) -> None:
    assert list(after) == list(before)
    for key, value in before.items():
        assert repr(after[key]) == repr(value), f"{key}: {after[key]} was {value}"


def failing_at(real: Callable[..., Any], when: str) -> Callable[..., Any]:
    def failing(*args: Any, **kwargs: Any) -> Any:
        if when == "after":
            real(*args, **kwargs)
        raise MemoryError("injected")

    return failing


def fails(me: Member) -> None:
    culprit = me.world - 1
    policy = osdp.MixedPrecision(param_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)
    model = Net(seed=me.rank)
    plan = plan_of(model)
    for step in STEPS:
        # After a step there is more to put back than before it; a fully_shard takes its time.
        for when in ("before", "after") if step == "_C.Runtime" else ("after",):
            with naming(f"{step}, {when}"):
                before = picture(model)
                owner, _, name = step.rpartition(".")
                first, _, rest = owner.partition(".")
                holder = HOLDERS.get(first) or getattr(fully_shard, first)
                holder = getattr(holder, rest) if rest else holder
                real = getattr(holder, name)

                failing = failing_at(real, when)
                with mock.patch.object(holder, name, failing if me.rank == culprit else real):
                    expected = MemoryError if me.rank == culprit else osdp.OSDPError
                    with pytest.raises(expected, match="injected"):
                        osdp.fully_shard(model, plan, me.group, mixed_precision=policy)
                same(picture(model), before)
                model(torch.randn(4, 8)).sum().backward()  # by itself: no hook is left on a gradient
                model.zero_grad()
    osdp.fully_shard(model, plan, me.group, mixed_precision=policy)
    model(torch.randn(4, 8)).float().sum().backward()
    first = Net(seed=0).state_dict()
    for name, value in model.state_dict().items():
        if "running" not in name and "tracked" not in name:
            assert torch.equal(value, first[name]), name


def fails_before_lines_are_used(me: Member) -> None:
    model = Net(seed=me.rank)
    plan = osdp.Plan.uniform(osdp.describe(model, torch.randn(4, 8)), "HYBRID_SHARD")
    failing = failing_at(fully_shard._units, "before") if me.rank == me.world - 1 else fully_shard._units
    with (
        mock.patch.object(fully_shard, "_units", failing),
        pytest.raises((MemoryError, osdp.OSDPError), match="injected"),
    ):
        osdp.fully_shard(model, plan, me.group, ranks_per_host=2)
    osdp.fully_shard(model, plan, me.group, ranks_per_host=2)
    model(torch.randn(4, 8)).sum().backward()


def test_a_rank_that_fails_before_lines_and_columns_are_used(ranks):
    ranks(fails_before_lines_are_used, world=4)


@pytest.mark.outcome("`fully_shard` fails on one rank: the model is as it was on all", osdp.OSDPError)
def test_each_step_that_fails(ranks):
    ranks(fails, world=2, timeout_s=120.0)


def fails_when_placed(me: Member) -> None:
    """Parameters from the meta device are new objects, put into their modules in one step."""
    with torch.device("meta"):
        model = Net(seed=0)
    real_plan = plan_of(Net(seed=0))
    commit = fully_shard.Placing.commit
    failing = failing_at(commit, "after") if me.rank == me.world - 1 else commit
    before = picture_of_meta(model)
    with (
        mock.patch.object(fully_shard.Placing, "commit", failing),
        pytest.raises((MemoryError, osdp.OSDPError), match="injected"),
    ):
        osdp.fully_shard(model, real_plan, me.group)
    assert picture_of_meta(model) == before
    osdp.fully_shard(model, real_plan, me.group)
    model(torch.randn(4, 8)).sum().backward()


def picture_of_meta(model: nn.Module) -> list[Any]:
    held = [*model.named_parameters(), *model.named_buffers()]
    return [is_sharded(model), *((name, id(t), t.is_meta, t.shape) for name, t in held)]


def test_a_rank_that_fails_as_parameters_are_placed(ranks):
    ranks(fails_when_placed, world=2)
