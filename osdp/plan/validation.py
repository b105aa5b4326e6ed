"""The rules for plans: invariants that the runtime relies on, and that a file or a plan made by hand may
violate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from osdp.base.byte_sizes import MOST_BYTES
from osdp.base.names import did_you_mean
from osdp.description.model_description import (
    KINDS,
    SAVED_BYTES,
    WORK_BYTES,
    Kernel,
    ModelDescription,
    Operator,
)
from osdp.errors import InvalidProblemError, PlanMismatchError
from osdp.plan.choice import MODES, RECOMPUTE, SPLITS, Choice, fits, split_length, uneven
from osdp.plan.plan_fields import Certificate, PlanFields
from osdp.plan.precisions import PRECISIONS
from osdp.plan.searched import COST_VERSION, COSTS, METHODS, OBJECTIVES
from osdp.plan.unit_grouping import operator_dtypes

P = TypeVar("P", bound=PlanFields)


def validate(plan: P) -> P:
    """Return `plan` if it satisfies every rule that the runtime needs; else raise InvalidProblemError."""
    for where, why in problems(plan):
        raise InvalidProblemError(f"{where}: {why}")
    return plan


def check_same_model(plan: PlanFields, description: ModelDescription) -> None:
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
                    f"parameter {name!r}: {what} is {getattr(b, what)} in the model but "
                    f"{getattr(a, what)} in the plan; make a plan for this model"
                )


def problems(plan: PlanFields) -> Iterator[tuple[str, str]]:
    """(field, what is wrong) for every rule that `plan` breaks."""
    yield from _description_problems(plan.description)
    for name in ("world_size", "batch_size"):
        value = getattr(plan, name)
        if value is not None and value < 1:
            yield name, f"must be at least 1, got {value}"
    if plan.memory_limit_bytes is not None and not 0 <= plan.memory_limit_bytes <= MOST_BYTES:
        yield "memory_limit_bytes", f"must be between 0 and 2**58, got {plan.memory_limit_bytes}"
    if plan.accumulation < 1:
        yield "accumulation", f"must be at least 1, got {plan.accumulation}"
    if plan.prefetch < 0:
        yield "prefetch", f"must not be negative, got {plan.prefetch}"
    yield from _word_problems(plan)
    if plan.searched is not None and plan.searched.cost_version > COST_VERSION:
        found = plan.searched.cost_version
        yield "searched.cost_version", f"must be at most {COST_VERSION}, got {found}: use a newer osdp"
    if plan.certificate is not None:
        yield from _proof_problems(plan, plan.certificate)
    yield from _memory_problems(plan)
    yield from choices_problems(plan)
    yield from _unit_problems(plan)


def _memory_problems(plan: PlanFields) -> Iterator[tuple[str, str]]:
    """A plan whose predicted memory exceeds its own limit is invalid."""
    limit, found = plan.memory_limit_bytes, plan.predicted
    if limit is not None and found is not None and found.peak_memory_bytes > limit:
        why = f"{found.peak_memory_bytes} bytes exceed the plan's memory limit of {limit}"
        yield "predicted.peak_memory_bytes", why


def _proof_problems(plan: PlanFields, c: Certificate) -> Iterator[tuple[str, str]]:
    if not c.checked_bound_ps <= c.step_bound_ps <= c.step_ps:
        why = f"{c.checked_bound_ps}, {c.step_bound_ps} and {c.step_ps} ps should rise"
        yield "certificate.step_bound_ps", why
    for i, batch in enumerate(c.batches):
        for j, price in enumerate(batch.prices):
            where = f"certificate.batches[{i}].prices[{j}]"
            if not -1 <= price.phase < len(plan.description.operators):
                yield f"{where}.phase", f"{price.phase} is not one of the model's operators"
            if not 0 <= price.numerator <= 2**46:
                yield f"{where}.numerator", f"must be between 0 and 2**46, got {price.numerator}"


def _word_problems(plan: PlanFields) -> Iterator[tuple[str, str]]:
    words: list[tuple[str, str, Iterable[str]]] = [
        ("precision", plan.precision, PRECISIONS),
        ("cost", plan.cost, COSTS),
    ]
    if plan.searched is not None:
        words += [
            ("searched.method", plan.searched.method, METHODS),
            ("searched.objective", plan.searched.objective, OBJECTIVES),
        ]
    for where, value, allowed in words:
        if value not in allowed:
            yield where, f"{value!r} is not one of {', '.join(allowed)}"


def check_description(description: ModelDescription) -> ModelDescription:
    """Return `description` if it satisfies every rule that the search needs; else raise
    InvalidProblemError."""
    for where, why in _description_problems(description):
        raise InvalidProblemError(f"{where}: {why}")
    return description


MOST_FLOPS = 2**62
MOST = 2**50  # bytes of one operator, or of its activations per sample: no product of two sizes overflows


def _sizes(where: str, value: object, names: tuple[str, ...], most: int = MOST) -> Iterator[tuple[str, str]]:
    for name in names:
        size = getattr(value, name)
        if size < 0:
            yield f"{where}{name}", f"must not be negative, got {size}"
        elif size > most:
            yield f"{where}{name}", f"must be at most {most}, got {size}"


def _kernel_problem(kernel: Kernel) -> str:
    amounts = [value for name, value in vars(kernel).items() if name != "kind"]
    if kernel.kind not in KINDS or kernel.count < 1 or min(amounts) < 0 or max(amounts) > MOST_FLOPS:
        return f"{kernel} has an unknown kind, or a figure that is negative or above 2^62"
    return ""


def _description_problems(description: ModelDescription) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    blocks = {b.name for b in description.blocks}
    yield from _sizes(
        "description.",
        description,
        ("sample_batch", "input_bytes_per_sample", "output_bytes_per_sample"),
    )
    if description.precision not in ("", *PRECISIONS):
        yield (
            "description.precision",
            f"must be one of {', '.join(PRECISIONS)}, got {description.precision!r}",
        )
    for i, o in enumerate(description.operators):
        for name in ("forward_kernels", "backward_kernels"):
            if not -1 <= (at := getattr(o, name)) < len(description.kernels):
                yield f"description.operators[{i}].{name}", f"{at} is not a position in description.kernels"
    for n, kernel in enumerate(k for list_ in description.kernels for k in list_):
        if problem := _kernel_problem(kernel):
            yield f"description.kernels, number {n}", problem
    for i, block in enumerate(description.blocks):
        yield from _sizes(f"description.blocks[{i}].", block, ("input_bytes_per_sample",))
    for i, buffers in enumerate(description.buffers):
        yield from _sizes(f"description.buffers[{i}].", buffers, ("bytes",))
        if not buffers.modules or len(set(buffers.modules)) < len(buffers.modules):
            yield f"description.buffers[{i}].modules", "is empty, or has a module twice"
    if len(blocks) < len(description.blocks):
        yield "description.blocks", "two blocks have the same name"
    owned: set[str] = set()
    for i, operator in enumerate(description.operators):
        where = f"description.operators[{i}]"
        if operator.name in seen:
            yield f"{where}.name", f"{operator.name!r} appears twice"
        seen.add(operator.name)
        if operator.parameters and not operator.gather_at:
            yield f"{where}.gather_at", "is empty, but the operator has parameters"
        yield from _sizes(
            f"{where}.",
            operator,
            ("parameter_bytes", "buffer_bytes", *SAVED_BYTES, *WORK_BYTES, "waiting_gradient_bytes"),
        )
        yield from _sizes(f"{where}.", operator, ("calls",), 10**6)
        yield from _sizes(f"{where}.", operator, ("flops_per_sample",), 2**63 - 1)
        if operator.block is not None and operator.block not in blocks:
            yield f"{where}.block", unknown_name("block that can be recomputed", operator.block, blocks)
        if operator.split_shape is not None and not any(map(operator.slices, operator.parameters)):
            yield f"{where}.split_shape", f"no parameter of the operator has shape {operator.stored_shape}"
        if operator.transposed and (operator.split_shape is None or operator.look_ups):
            yield f"{where}.transposed", "only the weight of a product that can be computed in slices is"
        if operator.kernel_places and (
            operator.split_shape is None
            or operator.look_ups
            or operator.transposed
            or operator.split_shape[1] % operator.kernel_places
        ):
            yield f"{where}.kernel_places", "only a convolution that can be computed in slices has them"
        for name in operator.look_ups:
            if name not in operator.gather_at:
                yield f"{where}.look_ups", f"{name!r} is not in gather_at"
        if len(set(operator.reads)) < len(operator.reads):
            yield f"{where}.reads", "has a read twice"
        for read in operator.reads:
            if read.parameter not in {p.name for p in operator.parameters}:
                yield f"{where}.reads", f"{read.parameter!r} is no parameter of the operator"
        for j, parameter in enumerate(operator.parameters):
            for name in (parameter.name, *parameter.aliases):
                if name in owned:
                    yield f"{where}.parameters[{j}].name", f"{name!r} appears twice"
                owned.add(name)
            if any(d < 0 for d in parameter.shape):
                yield f"{where}.parameters[{j}].shape", f"{parameter.shape} has a negative dimension"


def choices_problems(plan: PlanFields) -> Iterator[tuple[str, str]]:
    operators = {o.name: o for o in plan.description.operators if o.parameters}
    for name, choice in plan.choices.items():
        if name not in operators:
            yield f"choices.{name}", unknown_name("operator with parameters", name, operators)
            continue
        for why in choice_problems(choice, operators[name]):
            yield f"choices.{name}", why
    for name in operators:
        if name not in plan.choices:
            yield f"choices.{name}", "missing: every operator with parameters needs a choice"
    blocks = {b.name for b in plan.description.blocks}
    for name, how in plan.recompute.items():
        if name not in blocks:
            yield f"recompute.{name}", unknown_name("block that can be recomputed", name, blocks)
        elif how not in RECOMPUTE:
            yield f"recompute.{name}", f"{how!r} is not one of {', '.join(RECOMPUTE)}"


def choice_problems(choice: Choice, operator: Operator | None) -> Iterator[str]:
    """The rules that `choice` breaks by itself and, unless `operator` is None, for that operator."""
    g, k = choice.granularity, choice.sharded_slices
    if choice.mode not in MODES:
        yield f"mode {choice.mode!r} is not one of {', '.join(MODES)}"
        return
    if choice.split is not None and choice.split not in SPLITS:
        yield f"split {choice.split!r} is not one of {', '.join(SPLITS)}"
    elif isinstance(g, bool) or not isinstance(g, int) or g < 1:
        yield f"granularity must be an integer of at least 1, got {g!r}"
    elif k is not None and (isinstance(k, bool) or not isinstance(k, int) or not 0 <= k <= g):
        yield f"sharded_slices must be between 0 and the granularity {g}, got {k!r}"
    elif g == 1:
        if k == 0 and choice.traits.sharded:
            yield f"sharded_slices is 0 of 1, which is NO_SHARD, but the mode is {choice.mode}"
    elif not choice.traits.sliced:
        yield f"granularity {g} needs slices of FULL_SHARD or FULL_SHARD_OFFLOAD, but mode {choice.mode} has none"
    elif choice.traits.on_host and k not in (None, g):
        yield f"sharded_slices is {k} of {g}, but of a weight in host memory ({choice.mode}) all slices are sharded"
    elif choice.split is None:
        yield f"granularity {g} needs split='out' or split='in'"
    elif operator is not None:
        length = split_length(operator, choice.split)
        if length is None:
            yield f"granularity {g}: {operator.kind} {operator.name!r} cannot be computed in slices"
        elif operator.kernel_places and choice.split != "out":
            yield f"granularity {g}: {operator.kind} {operator.name!r} has slices of its outputs alone (split='out')"
        elif not fits(operator, g, choice.split):
            why = "is more than" if uneven(operator, choice.split) else "does not divide"
            yield f"granularity {g} {why} {length}, the length of the {choice.split!r} dimension"


def _unit_problems(plan: PlanFields) -> Iterator[tuple[str, str]]:
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
                yield where, unknown_name("operator with parameters", name, plan.choices)
            elif name in seen:
                yield where, f"operator {name!r} is already in another unit"
            seen.add(name)
        modes = {plan.choices[name].mode for name in known}
        if len(modes) > 1:
            yield where, f"has several modes: {', '.join(sorted(modes))}"
        if len(unit) == 1:
            continue
        if any(plan.choices[name].granularity > 1 for name in known):
            yield where, "contains a split operator, which must be a unit of its own"
        if len({operator_dtypes(operators[name]) for name in known}) > 1:
            yield where, "has several dtypes"
        if modes != {"NO_SHARD"} and len({block_of[name] for name in known}) > 1:
            yield where, "crosses the boundary of a recomputed block"
    for name in plan.choices:
        if name not in seen:
            yield "units", f"operator {name!r} is in no unit"


def unknown_name(what: str, name: str, known: Mapping[str, object] | set[str]) -> str:
    return f"the model has no {what} {name!r}{did_you_mean(name, known)}"
