"""Plan: the result of a search, and the only input that fully_shard takes from it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from osdp.base.json_files import InFile
from osdp.base.later_methods import function_of
from osdp.base.printed import PrintedText
from osdp.description.model_description import ModelDescription
from osdp.errors import InvalidProblemError
from osdp.hardware.hardware import Hardware
from osdp.plan.choice import Choice, fits
from osdp.plan.plan_fields import PlanFields
from osdp.plan.unit_grouping import group_units
from osdp.plan.validation import (
    choice_problems,
    choices_problems,
    problems,
    unknown_name,
    validate,
)
from osdp.plan.whole_operators import patterns_of, whole_operators

if TYPE_CHECKING:
    import torch

    from osdp.plan.frontier import Frontier
    from osdp.plan.timeline import Timeline


@dataclass(frozen=True, repr=False)
class Plan(InFile, PlanFields):
    """A choice for each operator, recomputation for each block, the units, and what the plan was made for.

    `osdp.search` makes it. A plan is a value: `replace` returns a new one.

    >>> plan = osdp.search(model, (inputs,), memory="16GiB", world_size=8, hardware="a100-8")
    >>> plan.save("plan.json")
    >>> osdp.fully_shard(model, osdp.Plan.load("plan.json"))
    """

    KIND = "plan"

    @staticmethod
    def uniform(
        model: torch.nn.Module | ModelDescription,
        mode: str = "FULL_SHARD",
        granularity: int = 1,
        split: str = "out",
        sharded_slices: int | None = None,
        *,
        whole: str | Sequence[str] = (),
    ) -> Plan:
        """The plan that gives every operator the same choice, for any world size; without a prediction.

        `granularity` applies to the operators that can be computed in so many slices (`split_shape`); the others stay
        whole. `whole`: patterns of modules and parameters that are
        always NO_SHARD, as in `osdp.search`. A model passed instead of a description is described without a
        sample: then no operator is known to be splittable, and parameters are gathered at their module's
        parent.

        Raises InvalidProblemError for a choice that does not exist and for patterns that match nothing.

        >>> Plan.uniform(osdp.describe(model, tokens), "FULL_SHARD", granularity=4, sharded_slices=2)
        """
        if not isinstance(model, ModelDescription):
            from osdp.description.describe import describe

            model = describe(model)
        for why in choice_problems(Choice(mode, granularity, sharded_slices, split), None):
            raise InvalidProblemError(f"Plan.uniform: {why}")
        choices = {}
        kept = whole_operators(model, patterns_of(whole))
        for operator in model.operators:
            if not operator.parameters:
                continue
            if operator.name in kept:
                choices[operator.name] = Choice("NO_SHARD")
                continue
            sliced = granularity > 1 and fits(operator, granularity, split)
            choices[operator.name] = (
                Choice(mode, granularity, sharded_slices, split) if sliced else Choice(mode)
            )
        return Plan(
            description=model,
            hardware=None,
            world_size=None,
            choices=choices,
            units=group_units(model, choices),
        )

    def replace(
        self,
        choices: Mapping[str, Choice] | None = None,
        *,
        recompute: Mapping[str, str | None] | None = None,
    ) -> Plan:
        """This plan with other choices for some operators, and other recomputation (None: no more) for some
        blocks.

        Units are made again as they were made: a searched plan's by the rule and for the machine of its search. Prediction
        and certificate are dropped, since they belong to the old plan; where nothing changes, so does nothing of the plan.
        Raises InvalidProblemError for names that the model does not have and for choices that its operators
        do not support.
        """
        for name in choices or {}:
            if name not in self.choices:
                raise InvalidProblemError(
                    f"choices.{name}: {unknown_name('operator with parameters', name, self.choices)}"
                )
        merged = {**self.choices, **(choices or {})}
        blocks: dict[str, str | None] = {**self.recompute, **(recompute or {})}
        again = {name: how for name, how in blocks.items() if how is not None}
        if merged == self.choices and again == self.recompute:
            return self
        plan = dataclasses.replace(self, choices=merged, recompute=again, predicted=None, certificate=None)
        for where, why in choices_problems(plan):
            raise InvalidProblemError(f"{where}: {why}")
        by_hand = plan.searched is None
        units = group_units(self.description, merged) if by_hand else function_of("Plan.units_of")(plan)
        return validate(dataclasses.replace(plan, units=units))

    def _problems(self) -> Iterator[tuple[str, str]]:
        return problems(self)

    @property
    def price_of_memory_s_per_byte(self) -> float:
        """Seconds per step that one more byte of memory would save, to first order; 0.0 where memory does not
        bind."""
        c = self.certificate
        if c is None:
            return 0.0
        here = (
            b.prices
            for b in c.batches
            if b.least_batch <= self.batch_size <= b.most_batch and b.accumulation == self.accumulation
        )
        return sum(p.numerator for p in next(here, ())) / c.price_denominator * 1e-12

    def simulate(
        self,
        hardware: Hardware | str | os.PathLike[str] | None = None,
        world_size: int | None = None,
        hosts: int | None = None,
    ) -> Timeline:
        """Simulate one training step of this plan event by event: the timeline of computation and
        communication, and the memory held at every moment.

        `hardware` and `world_size` are needed only for plans made by hand, which have none. Raises
        PlanMismatchError where either is missing. `hosts`: of equally many ranks each; those of the search, or 1.

        >>> plan.simulate().save_trace("step.json")  # for https://ui.perfetto.dev
        """
        played: Timeline = function_of("Plan.simulate")(self, hardware, world_size, hosts)
        return played

    def frontier(self, points: int = 32, limits: Sequence[int | float | str] | None = None) -> Frontier:
        """Throughput against the memory limit: see `osdp.frontier`."""
        found: Frontier = function_of("Plan.frontier")(self, points, limits)
        return found

    def explain(self, width: int | None = None, search: bool = True) -> str:
        """Explain the plan in text: its table, the simulated step if each group of operators had another mode, plans of one
        mode, what one more GiB would gain, and the reason for the batch size.

        The last two require more searches, under other limits and batch sizes (a few times as long as
        `osdp.search` took); `search=False` leaves them out. `width`: columns; None: the terminal's.
        """
        return PrintedText(function_of("Plan.explain")(self, width, search))

    def diff(self, other: Plan) -> str:
        """The decisions in which `other` differs, one line each; "" if all are equal."""
        return PrintedText(function_of("Plan.diff")(self, other))

    def _repr_html_(self) -> str:
        return str(function_of("Plan._repr_html_")(self))
