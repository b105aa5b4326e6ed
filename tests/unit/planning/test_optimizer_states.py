"""What optimizers keep, in plans: one table of bytes per parameter."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch

import osdp
from osdp import _search
from osdp.planning.optimizer_states import OPTIMIZERS
from osdp.planning.search_problem import SearchProblem
from tests.unit.gpt_descriptions import gpt, linear, machine, operator
from tests.unit.problems import problem_of

TORCH = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "sgd-momentum": lambda p: torch.optim.SGD(p, momentum=0.9),
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torchs_optimizers_keep_what_the_table_says(name: str, dtype: torch.dtype) -> None:
    weight = torch.nn.Parameter(torch.zeros(80, 100, dtype=dtype))
    optimizer = TORCH[name]([weight])  # type: ignore[operator]
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    kept = [t for t in optimizer.state[weight].values() if torch.is_tensor(t) and t.numel() > 1]
    said = OPTIMIZERS[name]
    assert sum(t.nbytes for t in kept) == said.bytes(weight.nbytes, weight.element_size())
    assert len(kept) == said.kept_tensors


# Of 100 x 512 elements: bytes of optimizer state for all of them, and for the 13 rows of the first of 8 ranks.
@pytest.mark.parametrize(
    ("optimizer", "dtype", "whole", "part"),
    [
        ("adamw", "float32", 2 * 4 * 51200, 2 * 4 * 6656),
        ("adamw", "bfloat16", 2 * 2 * 51200, 2 * 2 * 6656),
        ("sgd", "float32", 0, 0),
        ("sgd-momentum", "float32", 4 * 51200, 4 * 6656),
        ("adamw-bf16", "float32", 2 * 2 * 51200, 2 * 2 * 6656),
        ("adamw-bf16", "bfloat16", 2 * 2 * 51200, 2 * 2 * 6656),
        ("adamw-8bit", "float32", 2 * 51200 + 8 * 200, 2 * 6656 + 8 * 26),
        ("adamw-8bit", "bfloat16", 2 * 51200 + 8 * 200, 2 * 6656 + 8 * 26),
        ("lion-8bit", "float32", 51200 + 4 * 200, 6656 + 4 * 26),
    ],
)
def test_plans_count_what_an_optimizer_keeps(optimizer: str, dtype: str, whole: int, part: int) -> None:
    made = linear("head", 100, 512, 8)
    weight = dataclasses.replace(made.parameters[0], dtype=dtype)
    made = dataclasses.replace(made, parameters=(weight,))
    model = osdp.ModelDescription("one", (made,), (), 1, 8)
    problem = dataclasses.replace(problem_of(model, machine(8), 8, cost="paper"), optimizer=optimizer)
    planner = problem.planner
    found = _search.candidates(planner.model, planner.request(), 0, "none")
    size = 2 if dtype == "bfloat16" else 4
    state = {c.choice.mode: c.state_bytes for c in found if c.choice.granularity == 1}
    assert state["NO_SHARD"] == 2 * size * 51200 + whole
    sharded = 2 * size * 6400  # the paper's costs divide bytes, not rows
    assert state["FULL_SHARD"] == sharded + OPTIMIZERS[optimizer].bytes(size * 6400, size)
    planner = dataclasses.replace(problem, cost="osdp").planner
    found = _search.candidates(planner.model, planner.request(), 0, "none")
    assert {c.choice.mode: c.state_bytes for c in found if c.choice.granularity == 1}[
        "FULL_SHARD"
    ] == 2 * size * 6656 + part


def test_small_tensors_have_moments_in_fp32() -> None:
    norm = operator("norm", "LayerNorm", {"weight": (4095,), "bias": (4096,)})
    model = osdp.ModelDescription("one", (norm,), (), 1, 8)
    problem = dataclasses.replace(problem_of(model, machine(2), 2), optimizer="adamw-8bit")
    found = _search.candidates(problem.planner.model, problem.planner.request(), 0, "none")
    assert (
        found[0].choice.mode == "NO_SHARD"
        and found[0].state_bytes == (8 + 8) * 4095 + (8 + 2) * 4096 + 8 * 16
    )


@functools.cache
def searched(name: str) -> osdp.Plan:
    model = gpt(3, 256, tokens=16)
    return osdp.search(
        model, memory="20MiB", world_size=4, hardware=machine(4), batch_size=1, optimizer=name, gap=0.2
    )


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_plans_verify_and_smaller_states_leave_room(optimizer: str) -> None:
    plan = searched(optimizer)
    assert osdp.verify(plan) == ""
    wider = searched("adamw")
    assert plan.certificate.step_bound_ps <= wider.certificate.step_bound_ps
    if optimizer not in ("adam", "adamw"):  # what it was searched with decides what it holds
        assert SearchProblem.of(plan).optimizer == optimizer
        claimed = dataclasses.replace(plan, optimizer="adamw")
        assert osdp.verify(claimed) != ""
