"""Plans to try on a model: uniform ones, slices, random mixtures, recomputed blocks."""

from __future__ import annotations

import dataclasses
import random

import osdp
from osdp.description.model_description import ModelDescription, Operator
from osdp.plan.choice import uneven

MODES = ("NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD")


def with_parameters(description: ModelDescription) -> list[Operator]:
    return [o for o in description.operators if o.parameters]


def numbers_of_slices(n: int, *, may_be_uneven: bool, most: int = 6) -> list[int]:
    return [g for g in range(2, min(n, most) + 1) if may_be_uneven or n % g == 0]


def sliced(operator: Operator, dice: random.Random, split: str | None = None) -> osdp.Choice | None:
    """A random choice in slices along `split` ("out", "in" or either); None where the operator has none."""
    if operator.split_shape is None:
        return None
    if operator.kernel_places:
        if split == "in":
            return None
        split = "out"
    split = split or dice.choice(("out", "in"))
    length = operator.split_shape[0 if split == "out" else 1]
    allowed = numbers_of_slices(length, may_be_uneven=uneven(operator, split))
    if not allowed:
        return None
    g = dice.choice(allowed)
    return osdp.Choice("FULL_SHARD", granularity=g, sharded_slices=dice.randint(0, g), split=split)


def apart(plan: osdp.Plan) -> osdp.Plan:
    """The plan with every operator a unit of its own: small models would otherwise be one unit altogether."""
    return dataclasses.replace(plan, units=tuple((name,) for name in plan.choices))


def in_slices(description: ModelDescription, split: str, seed: int = 0) -> osdp.Plan:
    """FULL_SHARD, and every operator that can be computed in slices is."""
    dice = random.Random(seed)
    found = {o.name: sliced(o, dice, split) for o in with_parameters(description)}
    choices = {name: choice for name, choice in found.items() if choice is not None}
    return apart(osdp.Plan.uniform(description, "FULL_SHARD").replace(choices))


def mixture(description: ModelDescription, seed: int) -> osdp.Plan:
    """Every operator in a random mode, or in random slices; the usual units if `seed` is odd."""
    dice = random.Random(seed)
    choices = {}
    for operator in with_parameters(description):
        choice = sliced(operator, dice) if dice.random() < 0.5 else None
        choices[operator.name] = choice or osdp.Choice(dice.choice(MODES))
    plan = osdp.Plan.uniform(description, "FULL_SHARD").replace(choices)
    return plan if seed % 2 else apart(plan)


def uniform(description: ModelDescription) -> dict[str, osdp.Plan]:
    return {mode: apart(osdp.Plan.uniform(description, mode)) for mode in MODES}


def everything(description: ModelDescription, mixtures: int = 2) -> dict[str, osdp.Plan]:
    """Name -> plan: the three modes everywhere, slices in either direction where possible, mixtures."""
    plans = uniform(description) | {"few units": osdp.Plan.uniform(description, "FULL_SHARD")}
    if any(sliced(o, random.Random(0)) for o in with_parameters(description)):
        plans |= {f"slices along {split}": in_slices(description, split) for split in ("out", "in")}
    return plans | {f"mixture {seed}": mixture(description, seed) for seed in range(mixtures)}


def corners(description: ModelDescription) -> dict[str, osdp.Plan]:
    """Those of `everything` that move rows in another way each, for tests of what is moved: when it is gathered, which is
    all that SHARD_GRAD_OP has of its own, is test_equivalence.py's."""
    every = everything(description, 1)
    del every["SHARD_GRAD_OP"]
    return every


def recomputed(plan: osdp.Plan, how: str, every: int = 1) -> osdp.Plan:
    """The plan with every `every`-th block recomputed, `how` being "hold" or "regather"."""
    units = plan.units
    blocks = [block.name for block in plan.description.blocks][::every]
    plan = plan.replace(recompute={name: how for name in blocks})
    return plan if any(len(unit) > 1 for unit in units) else apart(plan)
