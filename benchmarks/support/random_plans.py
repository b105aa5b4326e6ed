"""Random plans: every operator in a mode of its own, or in slices; some blocks recomputed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import osdp

MODES = ("NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD")


def sliced(operator: osdp.description.model_description.Operator, dice: random.Random) -> osdp.Choice | None:
    """None where the operator cannot be computed in slices. Only along the output: others cannot always be played."""
    allowed = [g for g in (2, 4, 8) if operator.split_shape and operator.split_shape[0] % g == 0]
    if not allowed:
        return None
    g = dice.choice(allowed)
    return osdp.Choice("FULL_SHARD", granularity=g, sharded_slices=dice.randint(1, g), split="out")


def random_plans(
    description: osdp.ModelDescription, batch_size: int, count: int, seed: int
) -> Iterator[osdp.Plan]:
    """Alike for alike arguments. Each has its own share of every mode, of slices and of recomputed blocks, so that they
    spread over all memory limits."""
    for i in range(count):
        dice = random.Random(f"{seed} {i}")
        weights = [dice.random() for _ in MODES]
        slices, again = dice.random() * 0.5, dice.choice((0.0, dice.random()))
        choices = {}
        for operator in description.operators:
            if operator.parameters:
                choice = sliced(operator, dice) if dice.random() < slices else None
                choices[operator.name] = choice or osdp.Choice(dice.choices(MODES, weights)[0])
        recompute = {
            b.name: dice.choice(("hold", "regather")) for b in description.blocks if dice.random() < again
        }
        plan = osdp.Plan.uniform(description).replace(choices, recompute=recompute)
        yield replace(plan, batch_size=batch_size)
