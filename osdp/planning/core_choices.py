"""Converts choices and recomputations between plans and csrc/search."""

from __future__ import annotations

from osdp import _search
from osdp.plan.choice import Choice
from osdp.plan.plan import Plan


def core_choice(choice: Choice | None) -> _search.Choice:
    """`choice` for csrc/search; None stands for an operator without parameters."""
    if choice is None:
        return _search.Choice()
    split = (choice.split or "none") if choice.granularity > 1 else "none"
    return _search.Choice(choice.mode, choice.granularity, choice.slices_sharded, split)


def choice_of(core: _search.Choice) -> Choice:
    """The Choice of an operator with parameters."""
    mode, g, k = core.mode, core.granularity, core.sharded_slices
    return Choice(mode) if g == 1 else Choice(mode, g, None if k == g else k, core.split)


def core_plan(plan: Plan) -> _search.Plan:
    """The plan's decisions for csrc/search."""
    return _search.Plan(
        _search.Batch(plan.batch_size, plan.accumulation),
        [core_choice(plan.choices.get(o.name)) for o in plan.description.operators],
        [plan.recompute.get(b.name, "none") for b in plan.description.blocks],
        plan.prefetch,
        plan.gather_bytes,
    )
