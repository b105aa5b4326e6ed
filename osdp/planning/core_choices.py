"""Choices and ways to treat blocks, between a plan and csrc/search."""

from __future__ import annotations

from osdp import _search
from osdp.plan.choice import Choice
from osdp.plan.plan import Plan


def core_choice(choice: Choice | None) -> _search.Choice:
    """None: of an operator without parameters."""
    if choice is None:
        return _search.Choice()
    split = (choice.split or "none") if choice.granularity > 1 else "none"
    return _search.Choice(choice.mode, choice.granularity, choice.slices_sharded, split)


def choice_of(core: _search.Choice) -> Choice:
    """Of an operator with parameters."""
    mode, g, k = core.mode, core.granularity, core.sharded_slices
    return Choice(mode) if g == 1 else Choice(mode, g, None if k == g else k, core.split)


def core_plan(plan: Plan) -> _search.Plan:
    """What the plan decides."""
    return _search.Plan(
        _search.Batch(plan.batch_size, plan.accumulation),
        [core_choice(plan.choices.get(o.name)) for o in plan.description.operators],
        [plan.recompute.get(b.name, "none") for b in plan.description.blocks],
    )
