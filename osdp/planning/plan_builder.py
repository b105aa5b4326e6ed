"""Assembly: from what the core's search found, by numbers, to a Plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from osdp import _search
from osdp.description.model_description import ModelDescription
from osdp.hardware.hardware import Hardware
from osdp.plan.certificate import Certificate, PhasePrice
from osdp.plan.choice import Choice
from osdp.plan.plan import Plan
from osdp.plan.searched import Searched
from osdp.plan.unit_grouping import group_units
from osdp.plan.validation import validate
from osdp.plan.whole_operators import whole_operators
from osdp.planning.choice_reasons import choice_of, predict
from osdp.planning.core_inputs import RECOMPUTE_CODES, gathered_bytes, signature
from osdp.planning.simulate import plain_choice, play

PRICE_DENOMINATOR = 2**30  # of a certificate's prices, in ps per byte


@dataclass(frozen=True)
class Assembly:
    """What all plans that one search found have in common. `found` below is what `_search.schedule` returns, or one
    of its runners-up completed with the rest of it.
    """

    description: ModelDescription
    machine: Hardware
    ranks: int
    optimizer: str
    precision: str
    cost: str
    separate_reductions: bool
    searched: Searched
    limit_bytes: int
    model: _search.Model
    request: _search.Request  # of the objective that was searched
    as_shown: _search.Request  # figures of single operators: with what the hardware says of communication
    _candidates: dict[object, list[dict[str, Any]]] = field(default_factory=dict)  # of what is alike

    def played(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """A step of it, played: see `osdp.planning.simulate.play`."""
        choices = self._choices(found)[0]
        return play(
            self.description,
            self.machine,
            self.model,
            self.request,
            choices=choices,
            units=self._units(choices, found["transient_bytes"]),
            blocks=found["blocks"],
            batch=(found["batch_size"], found["accumulation"]),
            prefetch=self.searched.prefetch,
            separate_reductions=self.separate_reductions,
        )

    def step_ps(self, found: Mapping[str, Any]) -> int:
        """What its step is predicted to take."""
        return int((self.played(found) if self.cost == "osdp" else found)["step_ps"])

    def plan(self, found: Mapping[str, Any]) -> Plan:
        """The plan, with its prediction and certificate."""
        description = self.description
        ways = self._ways(found)
        recompute = {
            o.block: how
            for o in description.operators
            if o.block is not None and (how := ways[o.block]) is not None
        }
        choices, candidates = self._choices(found)
        units = self._units(choices, found["transient_bytes"])
        certificate = self._certificate(found, choices)
        price = sum(p.numerator for p in certificate.prices) / certificate.price_denominator
        plan = Plan(
            description=description,
            hardware=self.machine,
            world_size=self.ranks,
            choices=choices,
            units=units,
            recompute=recompute,
            batch_size=found["batch_size"],
            optimizer=self.optimizer,
            precision=self.precision,
            cost=self.cost,
            memory_limit_bytes=self.limit_bytes,
            accumulation=found["accumulation"],
            prefetch=self.searched.prefetch,
            separate_reductions=self.separate_reductions,
            searched=self.searched,
            predicted=predict(
                description,
                self.machine,
                found,
                candidates,
                played=self.played(found) if self.cost == "osdp" else None,
                world_size=self.ranks,
                recompute=recompute,
                price_ps_per_byte=price,
                precision=self.precision,
            ),
            certificate=certificate,
        )
        return validate(plan)

    def _ways(self, found: Mapping[str, Any]) -> dict[str, str | None]:
        codes = zip(self.description.blocks, found["blocks"], strict=True)
        return {block.name: RECOMPUTE_CODES[code] for block, code in codes}

    def _choices(self, found: Mapping[str, Any]) -> tuple[dict[str, Choice], list[list[dict[str, Any]]]]:
        """Choices by operator, and beside the operators the candidates that they were chosen from."""
        ways = self._ways(found)
        whole = whole_operators(self.description, self.searched.whole)
        candidates: list[list[dict[str, Any]]] = []
        choices: dict[str, Choice] = {}
        for i, (o, picked) in enumerate(zip(self.description.operators, found["choices"], strict=True)):
            if picked < 0:
                candidates.append([])
                continue
            how = None if o.block is None else ways[o.block]
            key = (signature(o), how, o.name in whole)
            if key not in self._candidates:
                code = RECOMPUTE_CODES.index(how)
                self._candidates[key] = _search.candidates(self.model, self.as_shown, i, code)
            candidates.append(self._candidates[key])
            choices[o.name] = choice_of(candidates[-1][picked])
        return choices, candidates

    def _certificate(
        self,
        found: Mapping[str, Any],
        choices: Mapping[str, Choice],
    ) -> Certificate:
        batch = (found["batch_size"], found["accumulation"])
        plain = [plain_choice(choices.get(o.name)) for o in self.description.operators]
        best: tuple[int, list[tuple[int, int]]] = (-1, [])
        rounded = [(phase, min(round(price * PRICE_DENOMINATOR), 2**56)) for phase, price in found["prices"]]
        for prices in ([], rounded):  # where memory is no limit, no price proves more
            lower = _search.plan_lower_bound(
                self.model, self.request, batch, plain, found["blocks"], prices, PRICE_DENOMINATOR
            )
            if lower > best[0]:
                best = (lower, prices)
        step = found["step_ps"]
        bound = int(found["lower_bound_s_per_sample"] * 1e12 * batch[0] * batch[1])
        return Certificate(
            time_ps=step,
            memory_bytes=found["peak_bytes"],
            limit_bytes=self.limit_bytes,
            lower_bound_ps=min(best[0], step),
            search_bound_ps=step if found["optimal"] else max(0, min(bound, step - 1)),
            prices=tuple(PhasePrice(phase, numerator) for phase, numerator in best[1]),
            price_denominator=PRICE_DENOMINATOR,
            optimal=found["optimal"],
            proven=found["optimal"] or found.get("proven", False),
        )

    def _units(self, choices: Mapping[str, Choice], transient: int) -> tuple[tuple[str, ...], ...]:
        """Neighbours joined, but no traced unit larger than what the search reserved room for."""
        description, precision = self.description, self.precision
        sizes = {o.name: gathered_bytes(o, precision) for o in description.operators}
        joined = group_units(description, choices, self.searched.small_unit_bytes, transient, sizes)
        order = {o.name: i for i, o in enumerate(description.operators)}
        return tuple(sorted(joined, key=lambda u: order[u[0]]))
