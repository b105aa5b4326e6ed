"""Plan: the decision, as a value. All that passes from deciding (search) to doing (fully_shard)."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from osdp import serial
from osdp.description import ModelDescription, Operator
from osdp.errors import InvalidProblemError, PlanMismatchError
from osdp.hardware import Hardware
from osdp.schema import AtLeast, OneOf
from osdp.searched import Searched
from osdp.units import group_units, operator_dtypes

if TYPE_CHECKING:
    import torch
    from rich.console import RenderableType

    from osdp.frontiers import Frontier

__all__ = [
    "MODES",
    "RECOMPUTE",
    "SPLITS",
    "Certificate",
    "Choice",
    "OperatorPrediction",
    "PhasePrice",
    "Plan",
    "Prediction",
    "Searched",
    "group_units",
    "validate",
]

MODES = ("NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD", "HYBRID_SHARD")
SPLITS = ("out", "in")
RECOMPUTE = ("hold", "regather")


@dataclass(frozen=True)
class Choice:
    """How one operator is sharded.

    NO_SHARD, SHARD_GRAD_OP: granularity 1. FULL_SHARD: `granularity` slices, of which `sharded_slices`
    (default: all) are sharded and the rest kept in full on every rank; `split` says along which dimension of
    the weight: "out" (contiguous rows, no summation) or "in" (columns, outputs summed, as in the paper).

    >>> Choice("FULL_SHARD", granularity=4, sharded_slices=2, split="out")
    """

    mode: Annotated[str, OneOf(MODES)]
    granularity: Annotated[int, AtLeast(1)] = 1
    sharded_slices: Annotated[int, AtLeast(0)] | None = None
    split: Annotated[str, OneOf(SPLITS)] | None = None

    @property
    def slices_sharded(self) -> int:
        """How many of the `granularity` slices are sharded: 0 for NO_SHARD, all of them by default."""
        if self.mode == "NO_SHARD":
            return 0
        return self.granularity if self.sharded_slices is None else self.sharded_slices

    def __str__(self) -> str:
        if self.granularity == 1:
            return self.mode
        return f"{self.mode} {self.slices_sharded}/{self.granularity} slices ({self.split})"


@dataclass(frozen=True)
class OperatorPrediction:
    """What the search predicts of one operator under its choice, per rank."""

    state_bytes: int  # parameters, gradients and optimizer state that stay
    saved_bytes: int  # activations, whole batch
    transient_bytes: int  # the largest full tensor that exists only while it is used
    communication_s: float
    compute_s: float
    reason: str  # one line for a person: why this choice


@dataclass(frozen=True)
class Prediction:
    step_time_s: float
    throughput: float  # samples per second over all ranks
    peak_memory_bytes: int  # per rank
    communication_s: float
    compute_s: float
    optimizer_s: float
    operators: Mapping[str, OperatorPrediction] = field(default_factory=dict)


@dataclass(frozen=True)
class PhasePrice:
    """The Lagrange multiplier of one phase's memory: numerator / the certificate's denominator, ps per byte."""

    phase: int  # index of the operator whose backward runs; -1: the sum over the whole step (cost="paper")
    numerator: int


@dataclass(frozen=True)
class Certificate:
    """Proof of optimality: cost and memory of the plan, and a lower bound that none undercuts (integers).

    `lower_bound_ps` is for a step of this batch size and this largest transient: anybody can check it from the
    multipliers. `search_bound_ps` is what the whole search proved, over all batch sizes and transients, scaled to
    this plan's samples; `optimal` where that is `time_ps`.
    """

    time_ps: int
    memory_bytes: int  # the largest phase
    limit_bytes: int
    lower_bound_ps: int
    search_bound_ps: int
    prices: tuple[PhasePrice, ...]  # of the phases that bind; none where memory is no limit
    price_denominator: Annotated[int, AtLeast(1)]
    optimal: bool

    @property
    def gap(self) -> float:
        """How much faster another plan may be at most, as a share of this plan's time; 0.0: none is."""
        return (self.time_ps - self.search_bound_ps) / self.time_ps if self.time_ps else 0.0


@dataclass(frozen=True, repr=False)
class Plan:
    """A choice per operator, recomputation per block, units, and what it was made for."""

    description: ModelDescription
    hardware: Hardware | None
    world_size: Annotated[int, AtLeast(1)] | None  # None: any (a plan made by hand)
    choices: Mapping[str, Choice]  # operator name -> Choice; exactly the operators that have parameters
    units: tuple[tuple[str, ...], ...]  # gathered and reduced together; one mode each; covers all choices
    recompute: Mapping[str, Annotated[str, OneOf(RECOMPUTE)]] = field(default_factory=dict)  # by block's name
    batch_size: Annotated[int, AtLeast(1)] = 1  # per rank
    optimizer: str = "adamw"
    precision: str = "fp32"
    cost: str = "osdp"
    memory_limit_bytes: int | None = None
    accumulation: Annotated[int, AtLeast(1)] = 1  # micro-batches of `batch_size` in one optimizer step
    prefetch: Annotated[int, AtLeast(0)] = 1  # units gathered ahead of the one in use
    searched: Searched | None = None  # what it was searched with; None: made by hand
    predicted: Prediction | None = None
    certificate: Certificate | None = None

    @staticmethod
    def uniform(
        model: torch.nn.Module | ModelDescription,
        mode: str = "FULL_SHARD",
        granularity: int = 1,
        split: str = "out",
        sharded_slices: int | None = None,
    ) -> Plan:
        """The plan that treats every operator alike, for any world size; without a prediction.

        `granularity` applies to the operators that can be computed in slices (`split_shape`) and whose
        dimension it divides; the others stay whole. A model, in place of a description, is described without
        a sample: then nothing is known to be splittable, and parameters are gathered at their module's
        parent.

        >>> Plan.uniform(osdp.describe(model, tokens), "FULL_SHARD", granularity=4, sharded_slices=2)
        """
        if not isinstance(model, ModelDescription):
            from osdp.tracing import describe

            model = describe(model)
        if granularity != 1 and mode != "FULL_SHARD":
            raise InvalidProblemError(
                f"granularity {granularity} means FULL_SHARD slices; mode {mode} has none"
            )
        for why in _choice_problems(Choice(mode, granularity, sharded_slices, split), None):
            raise InvalidProblemError(f"Plan.uniform: {why}")
        choices = {}
        for operator in model.operators:
            if not operator.parameters:
                continue
            length = split_length(operator, split)
            sliced = granularity > 1 and length is not None and length % granularity == 0
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

        Units are made anew; prediction and certificate, which belong to the old plan, are dropped. Raises
        InvalidProblemError for names that the model does not have and choices that it cannot carry out.
        """
        for name in choices or {}:
            if name not in self.choices:
                raise InvalidProblemError(
                    f"choices.{name}: {_unknown('operator with parameters', name, self.choices)}"
                )
        merged = {**self.choices, **(choices or {})}
        blocks: dict[str, str | None] = {**self.recompute, **(recompute or {})}
        plan = dataclasses.replace(
            self,
            choices=merged,
            recompute={name: how for name, how in blocks.items() if how is not None},
            predicted=None,
            certificate=None,
        )
        for where, why in _choices_problems(plan):
            raise InvalidProblemError(f"{where}: {why}")
        plan = dataclasses.replace(plan, units=group_units(self.description, merged))
        return validate(plan)

    def dumps(self) -> str:
        """The plan as JSON text, with a schema version; `Plan.loads` gives an equal plan back."""
        return serial.dumps("plan", self)

    @staticmethod
    def loads(text: str) -> Plan:
        """The plan of `dumps`. Raises FormatError that names line and field."""
        return serial.loads("plan", Plan, text, problems)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to `path`: whole or not at all."""
        serial.save_text(path, self.dumps())

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Plan:
        """The plan in `path`. Raises FormatError that names the file, the line and the field."""
        return serial.load_file(path, "plan", Plan, problems)

    @property
    def price_of_memory_s_per_byte(self) -> float:
        """What one byte more of memory would save per step, to first order; 0.0 where memory is no limit."""
        c = self.certificate
        return sum(p.numerator for p in c.prices) / c.price_denominator * 1e-12 if c is not None else 0.0

    def frontier(self, points: int = 32, limits: Sequence[int | float | str] | None = None) -> Frontier:
        """Throughput against the memory limit: see `osdp.frontier`."""
        from osdp.frontiers import frontier

        return frontier(self, points, limits)

    def explain(self, width: int | None = None, search: bool = True) -> str:
        """The plan for a person: its table, and why: for each group of operators what its choice saves and costs,
        the price of memory, what the next GiB would buy, and why the batch size is what it is.

        The last two search again under other limits and batch sizes (a few times as long as `osdp.search` took);
        `search=False` leaves them out. `width`: columns; None: the terminal's.
        """
        from osdp.explaining import explain

        return explain(self, width, search)

    def diff(self, other: Plan) -> str:
        """What `other` decides differently, one line each; "" where the decisions are equal."""
        from osdp.differing import diff

        return diff(self, other)

    def __str__(self) -> str:
        from osdp.display import show

        return show(self)

    def __repr__(self) -> str:
        return str(self).rstrip("\n")

    def _repr_html_(self) -> str:
        from osdp.notebook import html

        return html(self)

    def __rich__(self) -> RenderableType:
        from osdp.display import render

        return render(self)


def split_length(operator: Operator, split: str) -> int | None:
    """Length of the dimension that `split` ("out" or "in") cuts; None where the operator must stay whole."""
    if operator.split_shape is None:
        return None
    return operator.split_shape[0 if split == "out" else 1]


def validate(plan: Plan) -> Plan:
    """`plan` itself, if it keeps every rule that the runtime needs; else InvalidProblemError."""
    for where, why in problems(plan):
        raise InvalidProblemError(f"{where}: {why}")
    return plan


def check_same_model(plan: Plan, description: ModelDescription) -> None:
    """Raise PlanMismatchError, naming the first difference, unless the plan was made for these parameters."""
    planned = {p.name: p for p in plan.description.parameters}
    found = {p.name: p for p in description.parameters}
    for name in [*planned, *found]:
        a, b = planned.get(name), found.get(name)
        if a is None or b is None:
            holder = "model" if a is None else "plan"
            raise PlanMismatchError(
                f"parameter {name!r} is only in the {holder}: the plan was made for another model"
            )
        for what in ("shape", "dtype", "aliases"):
            if getattr(a, what) != getattr(b, what):
                raise PlanMismatchError(
                    f"parameter {name!r}: {what} is {getattr(b, what)} in the model, {getattr(a, what)} "
                    "in the plan; make a plan for this model"
                )


def problems(plan: Plan) -> Iterator[tuple[str, str]]:
    """(field, what is wrong) for every rule that `plan` breaks."""
    yield from _description_problems(plan.description)
    for name in ("world_size", "batch_size"):
        value = getattr(plan, name)
        if value is not None and value < 1:
            yield name, f"must be at least 1, is {value}"
    if plan.memory_limit_bytes is not None and plan.memory_limit_bytes < 0:
        yield "memory_limit_bytes", f"must not be negative, is {plan.memory_limit_bytes}"
    if plan.accumulation < 1:
        yield "accumulation", f"must be at least 1, is {plan.accumulation}"
    if plan.prefetch < 0:
        yield "prefetch", f"must not be negative, is {plan.prefetch}"
    if plan.certificate is not None and plan.certificate.price_denominator < 1:
        yield "certificate.price_denominator", "must be at least 1"
    yield from _choices_problems(plan)
    yield from _unit_problems(plan)


def _description_problems(description: ModelDescription) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    owned: set[str] = set()
    for i, operator in enumerate(description.operators):
        where = f"description.operators[{i}]"
        if operator.name in seen:
            yield f"{where}.name", f"{operator.name!r} is there twice"
        seen.add(operator.name)
        if operator.parameters and not operator.gather_at:
            yield f"{where}.gather_at", "is empty, but the operator has parameters"
        for field_ in (
            "parameter_bytes",
            "buffer_bytes",
            "calls",
            "saved_bytes_per_sample",
            "saved_bytes_fixed",
        ):
            if getattr(operator, field_) < 0:
                yield f"{where}.{field_}", f"must not be negative, is {getattr(operator, field_)}"
        for j, parameter in enumerate(operator.parameters):
            for name in (parameter.name, *parameter.aliases):
                if name in owned:
                    yield f"{where}.parameters[{j}].name", f"{name!r} is there twice"
                owned.add(name)
            if any(d < 0 for d in parameter.shape):
                yield f"{where}.parameters[{j}].shape", f"{parameter.shape} has a negative dimension"


def _choices_problems(plan: Plan) -> Iterator[tuple[str, str]]:
    operators = {o.name: o for o in plan.description.operators if o.parameters}
    for name, choice in plan.choices.items():
        if name not in operators:
            yield f"choices.{name}", _unknown("operator with parameters", name, operators)
            continue
        for why in _choice_problems(choice, operators[name]):
            yield f"choices.{name}", why
    for name in operators:
        if name not in plan.choices:
            yield f"choices.{name}", "missing: every operator with parameters needs a choice"
    blocks = {b.name for b in plan.description.blocks}
    for name, how in plan.recompute.items():
        if name not in blocks:
            yield f"recompute.{name}", _unknown("block that can be recomputed", name, blocks)
        elif how not in RECOMPUTE:
            yield f"recompute.{name}", f"{how!r} is none of {', '.join(RECOMPUTE)}"


def _choice_problems(choice: Choice, operator: Operator | None) -> Iterator[str]:
    """What is wrong with `choice` by itself, and for `operator` unless that is None."""
    g, k = choice.granularity, choice.sharded_slices
    if choice.mode not in MODES:
        yield f"mode {choice.mode!r} is none of {', '.join(MODES)}"
    if choice.split is not None and choice.split not in SPLITS:
        yield f"split {choice.split!r} is none of {', '.join(SPLITS)}"
    elif isinstance(g, bool) or not isinstance(g, int) or g < 1:
        yield f"granularity must be a whole number of at least 1, is {g!r}"
    elif k is not None and (isinstance(k, bool) or not isinstance(k, int) or not 0 <= k <= g):
        yield f"sharded_slices must be between 0 and the granularity {g}, is {k!r}"
    elif g == 1:
        if k == 0 and choice.mode != "NO_SHARD":
            yield f"sharded_slices is 0 of 1, which is NO_SHARD, but the mode is {choice.mode}"
    elif choice.mode != "FULL_SHARD":
        yield f"granularity {g} means FULL_SHARD slices; mode {choice.mode} has none"
    elif choice.split is None:
        yield f"granularity {g} needs split='out' or split='in'"
    elif operator is not None:
        length = split_length(operator, choice.split)
        if length is None:
            yield f"granularity {g}: {operator.kind} {operator.name!r} cannot be computed in slices"
        elif length % g:
            yield f"granularity {g} does not divide {length}, the length of the {choice.split!r} dimension"


def _unit_problems(plan: Plan) -> Iterator[tuple[str, str]]:
    operators = {o.name: o for o in plan.description.operators}
    block_of = {name: o.block if o.block in plan.recompute else None for name, o in operators.items()}
    seen: set[str] = set()
    for i, unit in enumerate(plan.units):
        where = f"units[{i}]"
        if not unit:
            yield where, "is empty"
        known = [name for name in unit if name in plan.choices and name in operators]
        for name in unit:
            if name not in plan.choices:
                yield where, _unknown("operator with parameters", name, plan.choices)
            elif name in seen:
                yield where, f"operator {name!r} is in a unit already"
            seen.add(name)
        modes = {plan.choices[name].mode for name in known}
        if len(modes) > 1:
            yield where, f"has several modes: {', '.join(sorted(modes))}"
        if len(unit) == 1:
            continue
        if any(plan.choices[name].granularity > 1 for name in known):
            yield where, "has a split operator, which must be a unit of its own"
        if len({operator_dtypes(operators[name]) for name in known}) > 1:
            yield where, "has several dtypes"
        if modes != {"NO_SHARD"} and len({block_of[name] for name in known}) > 1:
            yield where, "crosses the edge of a recomputed block"
    for name in plan.choices:
        if name not in seen:
            yield "units", f"operator {name!r} is in no unit"


def _unknown(what: str, name: str, known: Mapping[str, object] | set[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"the model has no {what} {name!r}{hint}"
