"""search: the best plan for a model under a memory limit. solve: the bare problem behind it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any

from osdp import _search
from osdp.costing import (
    OPTIMIZER_STATE,
    RECOMPUTE_CODES,
    choose_space,
    largest_untraced_unit,
    make_model,
    make_request,
)
from osdp.description import ModelDescription
from osdp.errors import InfeasibleError, InvalidProblemError, PlanMismatchError
from osdp.hardware import Hardware
from osdp.plan import Certificate, Choice, PhasePrice, Plan, Searched, group_units
from osdp.predicting import choice_of, predict, unit_bytes
from osdp.sizes import format_bytes, parse_bytes

if TYPE_CHECKING:
    from torch import nn

METHODS = ("exact", "dfs")
COSTS = ("osdp", "paper")
DEFAULT_HARDWARE = "a100-8"  # what `search` assumes when nothing is known of the machine


@dataclass(frozen=True)
class Solution:
    """The best choice of one option per operator. Times and memories are in the units of the options.

    `multiplier` (numerator, denominator) is the price of memory, time per unit of memory: with it anybody
    can check the Lagrangian bound `sum(min(t + price * m)) - price * limit`, see `check_solution`.
    `lower_bound` is what the search proved: `time` where `optimal`, else `time - lower_bound` is the
    largest possible gap.
    """

    choices: tuple[int, ...]
    time: int
    memory: int
    lower_bound: int
    seconds: float
    nodes: int
    optimal: bool
    multiplier: tuple[int, int]


def solve(
    options: Sequence[Sequence[tuple[int, int]]],
    limit: int,
    *,
    method: str = "exact",
    time_limit: float | None = None,
    names: Sequence[str] = (),
) -> Solution:
    """Choose one (time, memory) per operator: least total time with total memory <= limit.

    options[i] are operator i's options, integers >= 0 (picoseconds and bytes, say). `method="exact"` proves
    its answer, also among equal and tied options; `method="dfs"` is the paper's depth-first search with its
    two prunings, exponential in the number of operators. After `time_limit` seconds both return the best so
    far (`optimal` False).

    Raises InfeasibleError (with `smallest_limit`) if nothing fits, InvalidProblemError for numbers that
    mean nothing.

    >>> solve([[(1, 8), (3, 2)], [(1, 8), (3, 2)]], 10).choices
    (1, 0)
    """
    _one_of("method", method, METHODS)
    _check_time_limit(time_limit)
    table = [_checked(i, o, names) for i, o in enumerate(options)]
    bound = _integer(limit, "limit")
    try:
        s = _search.solve(table, bound, method, time_limit or 0.0, list(names))
    except _search.InvalidProblem as e:
        raise InvalidProblemError(str(e)) from None
    if s["status"] == "infeasible":
        least = s["smallest_limit"]
        raise InfeasibleError(f"no choice fits {limit}; the smallest limit that fits is {least}", least)
    if not s["choices"]:
        raise InfeasibleError(
            f"method={method!r} found no plan that fits {limit} in {time_limit} s; use method='exact'"
        )
    return Solution(
        choices=tuple(s["choices"]),
        time=s["time"],
        memory=s["memory"],
        lower_bound=s["lower_bound"],
        seconds=s["seconds"],
        nodes=s["nodes"],
        optimal=s["status"] == "optimal",
        multiplier=s["multiplier"],
    )


def check_solution(options: Sequence[Sequence[tuple[int, int]]], limit: int, solution: Solution) -> str:
    """Check a solution with code that shares nothing with the search. Empty if it holds, else what is false.

    Checked: the choices exist, cost what the solution says, fit the limit, and the multiplier's Lagrangian
    bound is not above the time.
    """
    table = [_checked(i, o, ()) for i, o in enumerate(options)]
    bound = _search.proven_lower_bound(table, limit, solution.multiplier)
    return str(
        _search.check(
            table, limit, list(solution.choices), solution.time, solution.memory, bound, solution.multiplier
        )
    )


def search(
    model_or_desc: nn.Module | ModelDescription,
    sample: tuple[Any, ...] | Mapping[str, Any] | None = None,
    memory: int | float | str | None = None,
    world_size: int | None = None,
    hardware: Hardware | str | os.PathLike[str] | None = None,
    batch_size: int | str = "auto",
    global_batch_size: int | None = None,
    optimizer: str = "adamw",
    precision: str = "fp32",
    granularity: str | int | Sequence[int] = "auto",
    checkpoint: str | bool = "auto",
    modes: str | Sequence[str] = "auto",
    cost: str = "osdp",
    method: str = "exact",
    time_limit: float | None = None,
) -> Plan:
    """The plan with the best throughput whose predicted peak memory per rank is at most `memory`.

    A model is described first, with `sample` (a tuple of its forward's arguments, or a dict of keyword
    arguments). `memory` is bytes or a string ("8GiB"); left out, the hardware's. `hardware` is a Hardware
    (measured by `osdp.profile`), the name or file of one, or None for DEFAULT_HARDWARE; `world_size` left out
    is the process group's, else the hardware's.

    `batch_size` is per rank; "auto" tries every size that fits and takes the best time per sample. With
    `global_batch_size` the size per rank must divide global / world_size, the rest is gradient accumulation.
    `granularity`: the numbers of slices to try for split operators, beside 1. `checkpoint`: which
    recomputation of blocks to try ("auto": none, "hold", "regather"); blocks of one kind are treated alike.
    `modes`: which of NO_SHARD, SHARD_GRAD_OP, FULL_SHARD to try. `precision`: "fp32": parameters, gradients
    and states have the model's dtypes. `cost="paper"` is the paper's model, `method="dfs"` its
    search. docs/search.md states the objective.

    Raises InfeasibleError with the smallest limit that works, InvalidProblemError for what cannot mean
    anything. After `time_limit` seconds the best plan so far is returned, `plan.certificate.optimal` False.

    >>> plan = osdp.search(model, (tokens,), memory="8GiB", world_size=8, hardware="rtx-titan-8")
    """
    _one_of("cost", cost, COSTS)
    _one_of("method", method, METHODS)
    _one_of("precision", precision, ("fp32",))
    _check_time_limit(time_limit)
    machine = _machine(hardware)
    description = _description(model_or_desc, sample)
    ranks = _ranks(world_size, machine)
    if memory is None and machine.memory_bytes is None:
        raise InvalidProblemError(f"memory is not given, and hardware {machine.name!r} does not state it")
    limit = parse_bytes(memory if memory is not None else machine.memory_bytes or 0)
    space = choose_space(modes, granularity, checkpoint, cost)
    batches = _batches(batch_size, global_batch_size, ranks)
    try:
        model = make_model(description, machine)
        request = make_request(
            machine,
            space,
            world_size=ranks,
            limit_bytes=limit,
            batches=batches,
            optimizer=optimizer,
            cost=cost,
            method=method,
            least_transient_bytes=largest_untraced_unit(description),
        )
        found = _search.schedule(model, request, time_limit or 0.0)
    except _search.InvalidProblem as e:
        raise InvalidProblemError(str(e)) from None
    names = [description.operators[i].name for i in found["knapsack"]["operators"]]
    picked = found["solution"]["choices"]
    choices = {
        name: choice_of(list_[k])
        for name, list_, k in zip(names, found["knapsack"]["candidates"], picked, strict=bool(picked))
    }
    kinds = _block_kinds(model)
    recompute = {
        block: how
        for block, kind in zip((b.name for b in description.blocks), kinds, strict=True)
        if (how := RECOMPUTE_CODES[found["recompute"][kind]]) is not None
    }
    if not found["feasible"]:
        raise _infeasible(limit, found, choices, recompute, method, time_limit)
    units = _units(description, choices, found["transient_bytes"])
    needed = max(unit_bytes(description, choices, units), default=0)
    reserved = max(found["transient_bytes"], largest_untraced_unit(description))
    peak = found["peak_bytes"]
    if cost == "osdp" and ranks > 1:
        peak += 3 * (needed - reserved)
    return Plan(
        description=description,
        hardware=machine,
        world_size=ranks,
        choices=choices,
        units=units,
        recompute=recompute,
        batch_size=found["batch_size"],
        optimizer=optimizer,
        precision=precision,
        cost=cost,
        memory_limit_bytes=limit,
        accumulation=found["accumulation"],
        searched=Searched(
            modes=space.modes,
            granularity=space.granularities,
            checkpoint=tuple(r or "none" for r in space.recompute),
            batch_size=None if batch_size == "auto" else int(batch_size),
            global_batch_size=global_batch_size,
            method=method,
            time_limit_s=time_limit,
        ),
        predicted=predict(
            description,
            machine,
            found,
            world_size=ranks,
            sum_bytes=peak,
            recompute=recompute,
            optimizer_copies=OPTIMIZER_STATE[optimizer] if cost == "osdp" else None,
        ),
        certificate=_certificate(found, limit),
    )


def search_again(plan: Plan, memory: int | float | str) -> Plan:
    """The same search under another memory limit."""
    s = plan.searched
    if s is None:
        raise PlanMismatchError("the plan was not made by osdp.search: there is no search to repeat")
    return search(
        plan.description,
        memory=memory,
        world_size=plan.world_size,
        hardware=plan.hardware,
        batch_size="auto" if s.batch_size is None else s.batch_size,
        global_batch_size=s.global_batch_size,
        optimizer=plan.optimizer,
        precision=plan.precision,
        granularity=s.granularity or 1,
        checkpoint="auto" if len(s.checkpoint) == 3 else s.checkpoint[0] if len(s.checkpoint) == 1 else True,
        modes=s.modes,
        cost=plan.cost,
        method=s.method,
        time_limit=s.time_limit_s,
    )


def verify(
    plan: Plan, *, granularity: str | int | Sequence[int] = "auto", modes: str | Sequence[str] = "auto"
) -> str:
    """Check a plan's certificate from its description and hardware alone. Empty if it holds, else what is
    false.

    The costs of all choices are computed anew; the checker (csrc/search/certificate.cpp) shares no code
    with the search. It proves: the plan costs and holds what the certificate says, that is within the
    limit, and for this batch size, recomputation and largest transient no plan is faster than the lower
    bound. `granularity` and `modes` must be what the plan was searched with. Raises PlanMismatchError for
    a plan without certificate or hardware.
    """
    c = plan.certificate
    if c is None or plan.hardware is None or plan.world_size is None or plan.predicted is None:
        raise PlanMismatchError(
            "the plan has no certificate: it was not made by osdp.search, or was changed since"
        )
    space = choose_space(modes, granularity, "auto", plan.cost)
    samples = plan.world_size * plan.batch_size
    accumulation = max(1, round(plan.predicted.throughput * plan.predicted.step_time_s / samples))
    try:
        model = make_model(plan.description, plan.hardware)
        request = make_request(
            plan.hardware,
            space,
            world_size=plan.world_size,
            limit_bytes=c.limit_bytes,
            batches=(),
            optimizer=plan.optimizer,
            cost=plan.cost,
            method="exact",
            least_transient_bytes=largest_untraced_unit(plan.description),
        )
        by_kind = [0] * (max(_block_kinds(model), default=-1) + 1)
        for block, kind in zip(plan.description.blocks, _block_kinds(model), strict=True):
            by_kind[kind] = RECOMPUTE_CODES.index(plan.recompute.get(block.name))
        batch = (plan.batch_size, accumulation)
        everything = _search.make_knapsack(model, request, batch, by_kind, _search.ANY_TRANSIENT)
        names = [plan.description.operators[i].name for i in everything["operators"]]
        transient = 0
        for name, candidates in zip(names, everything["candidates"], strict=True):
            match = [k["transient_bytes"] for k in candidates if choice_of(k) == _plain(plan.choices[name])]
            if not match:
                return f"operator {name!r}: {plan.choices[name]} is not among the choices of this search"
            transient = max(transient, match[0])
        k = _search.make_knapsack(model, request, batch, by_kind, transient)
        indices = [
            next(i for i, x in enumerate(candidates) if choice_of(x) == _plain(plan.choices[name]))
            for name, candidates in zip(names, k["candidates"], strict=True)
        ]
        # The rest of a step is the same for all choices.
        return str(
            _search.check(
                k["options"],
                c.limit_bytes - k["constant_bytes"],
                indices,
                c.time_ps - k["constant_ps"],
                c.memory_bytes - k["constant_bytes"],
                c.lower_bound_ps - k["constant_ps"],
                (sum(p.numerator for p in c.prices), c.price_denominator),
            )
        )
    except _search.InvalidProblem as e:
        return str(e)


def _certificate(found: Mapping[str, Any], limit: int) -> Certificate:
    k, s = found["knapsack"], found["solution"]
    bound = 0
    if k["options"]:
        bound = max(0, _search.proven_lower_bound(k["options"], k["limit"], s["multiplier"]))
    return Certificate(
        time_ps=found["step_ps"],
        memory_bytes=found["peak_bytes"],
        limit_bytes=limit,
        lower_bound_ps=k["constant_ps"] + bound,
        search_bound_ps=found["step_ps"] if found["optimal"] else k["constant_ps"] + bound,
        prices=(PhasePrice(-1, s["multiplier"][0]),),
        price_denominator=s["multiplier"][1],
        optimal=found["optimal"],
    )


def _units(
    description: ModelDescription, choices: Mapping[str, Choice], transient: int
) -> tuple[tuple[str, ...], ...]:
    """Neighbours joined, but no traced unit larger than what the search reserved room for."""
    joined = group_units(description, choices)
    traced = {o.name: o.traced for o in description.operators}
    units: list[tuple[str, ...]] = []
    for unit, size in zip(joined, unit_bytes(description, choices, joined), strict=True):
        if size > transient and len(unit) > 1 and traced[unit[0]]:
            units += [(name,) for name in unit]
        else:
            units.append(tuple(unit))
    order = {o.name: i for i, o in enumerate(description.operators)}
    return tuple(sorted(units, key=lambda u: order[u[0]]))


def _infeasible(
    limit: int,
    found: Mapping[str, Any],
    choices: Mapping[str, Choice],
    recompute: Mapping[str, str],
    method: str,
    time_limit: float | None,
) -> InfeasibleError:
    least = found["smallest_limit"]
    if 0 < least <= limit:
        return InfeasibleError(
            f"method={method!r} found no plan that fits {format_bytes(limit)} in {time_limit} s, though "
            "there is one: give it more time, or use method='exact'"
        )
    counts: dict[str, int] = {}
    for choice in choices.values():
        counts[choice.mode] = counts.get(choice.mode, 0) + 1
    parts = [f"batch {found['batch_size']}"]
    parts.append(
        f"all {next(iter(counts))}" if len(counts) == 1 else ", ".join(f"{n} {m}" for m, n in counts.items())
    )
    slices = max((c.granularity for c in choices.values()), default=1)
    if slices > 1:
        parts.append(f"granularity {slices}")
    if recompute:
        parts.append(f"{len(recompute)} blocks recomputed")
    return InfeasibleError(
        f"no plan fits {format_bytes(limit)}; the smallest that fits is {format_bytes(least)}: "
        + ", ".join(parts),
        least,
    )


def _batches(batch_size: int | str, global_batch_size: int | None, ranks: int) -> list[tuple[int, int]]:
    """(size per rank, micro-batches per step) to try; empty: every size."""
    if isinstance(batch_size, str):
        if batch_size != "auto":
            raise InvalidProblemError(
                f"batch_size is {batch_size!r}; it is 'auto' or a number of samples per rank"
            )
        size = None
    else:
        size = _integer(batch_size, "batch_size")
        if not 1 <= size <= 2**30:
            raise InvalidProblemError(f"batch_size is {size}; it must be at least 1")
    if global_batch_size is None:
        return [] if size is None else [(size, 1)]
    whole = _integer(global_batch_size, "global_batch_size")
    if not 1 <= whole <= 2**40 or whole % ranks:
        raise InvalidProblemError(
            f"global_batch_size is {whole}; it must be a multiple of the world size {ranks}"
        )
    share = whole // ranks
    if size is not None:
        if share % size:
            raise InvalidProblemError(
                f"batch_size {size} does not divide {share}, each rank's share of global_batch_size {whole}"
            )
        return [(size, share // size)]
    if share > 2**24:
        raise InvalidProblemError(
            f"global_batch_size is {whole}: {share} samples per rank are more than 2**24"
        )
    small = [d for d in range(1, int(share**0.5) + 1) if share % d == 0]
    return [(d, share // d) for d in sorted({*small, *(share // d for d in small)})]


def _machine(hardware: Hardware | str | os.PathLike[str] | None) -> Hardware:
    if isinstance(hardware, Hardware):
        return hardware
    return Hardware.load(DEFAULT_HARDWARE if hardware is None else hardware)


def _description(
    model: nn.Module | ModelDescription, sample: tuple[Any, ...] | Mapping[str, Any] | None
) -> ModelDescription:
    if isinstance(model, ModelDescription):
        return model
    if sample is None:
        raise InvalidProblemError(
            "a model needs a sample: osdp.search(model, (inputs,), ...), or osdp.describe it first"
        )
    from osdp.tracing import describe

    if isinstance(sample, Mapping):
        return describe(model, **sample)
    return describe(model, *(sample if isinstance(sample, tuple) else (sample,)))


def _ranks(world_size: int | None, hardware: Hardware) -> int:
    if world_size is not None:
        ranks = _integer(world_size, "world_size")
        if not 1 <= ranks <= 2**24:
            raise InvalidProblemError(f"world_size is {ranks}; it must be at least 1")
        return ranks
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return hardware.world_size


def _block_kinds(model: _search.Model) -> list[int]:
    return list(model.block_kinds)


def _plain(choice: Choice) -> Choice:
    """The choice as `choice_of` writes it: no slices named where all are sharded."""
    if choice.granularity == 1:
        return Choice(choice.mode)
    k = None if choice.sharded_slices == choice.granularity else choice.sharded_slices
    return Choice(choice.mode, choice.granularity, k, choice.split)


def _one_of(what: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise InvalidProblemError(f"{what} is {value!r}; it is one of {', '.join(map(repr, allowed))}")


def _check_time_limit(time_limit: float | None) -> None:
    if time_limit is not None and not 0 < time_limit < 1e9:
        raise InvalidProblemError(
            f"time_limit is {time_limit!r}; it is a positive number of seconds, or None"
        )


def _integer(value: object, what: str) -> int:
    """`value` as an int that fits 64 bits; floats, NaN and bools are refused, not rounded."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidProblemError(f"{what} is {value!r}; it must be an integer") from None
    if not -(2**63) <= number < 2**63:
        raise InvalidProblemError(f"{what} is {number}; it overflows 64 bits")
    return number


def _checked(i: int, options: Sequence[tuple[int, int]], names: Sequence[str]) -> list[tuple[int, int]]:
    where = f"operator {names[i]!r}" if i < len(names) and names[i] else f"operator {i}"
    try:
        return [
            (_integer(t, f"{where}, option {k}: time"), _integer(m, f"{where}, option {k}: memory"))
            for k, (t, m) in enumerate(options)
        ]
    except (TypeError, ValueError) as e:
        if isinstance(e, InvalidProblemError):
            raise
        raise InvalidProblemError(
            f"{where}: options must be (time, memory) pairs; got {options!r:.80}"
        ) from None
