"""search: the best plan for a model under a memory limit. verify: its proof, checked from the plan alone."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from osdp import _search
from osdp.arguments import (
    DEFAULT_HARDWARE,
    batches_of,
    check_time_limit,
    description_of,
    integer,
    machine_of,
    one_of,
    ranks_of,
)
from osdp.costing import (
    RECOMPUTE_CODES,
    SPLIT_CODES,
    Space,
    choose_space,
    largest_untraced_unit,
    make_model,
    make_request,
    signature,
)
from osdp.description import ModelDescription
from osdp.errors import InfeasibleError, InvalidProblemError, PlanMismatchError
from osdp.hardware import Hardware
from osdp.plan import MODES, Certificate, Choice, PhasePrice, Plan, Searched, group_units
from osdp.predicting import choice_of, predict, unit_bytes
from osdp.searched import OBJECTIVES
from osdp.sizes import format_bytes, parse_bytes
from osdp.solving import METHODS, Solution, check_solution, solve

if TYPE_CHECKING:
    from torch import nn

__all__ = ["DEFAULT_HARDWARE", "Solution", "check_solution", "search", "search_again", "solve", "verify"]

COSTS = ("osdp", "paper")
DEFAULT_TIME_LIMIT_S = 10.0  # of method="exact"
PRICE_DENOMINATOR = 2**30  # of a certificate's prices, in ps per byte


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
    checkpoint: str | bool | Sequence[str] = "auto",
    modes: str | Sequence[str] = "auto",
    cost: str = "osdp",
    method: str = "exact",
    time_limit: float | None = None,
    *,
    hosts: int = 1,
    prefetch: int = 1,
    objective: str = "throughput",
    at_least: float | None = None,
) -> Plan:
    """The plan with the best throughput whose predicted peak memory per rank is at most `memory`.

    A model is described first, with `sample` (a tuple of its forward's arguments, or a dict of keyword
    arguments). `memory` is bytes or a string ("8GiB"); left out, the hardware's. `hardware` is a Hardware
    (measured by `osdp.profile`), the name or file of one, or None for DEFAULT_HARDWARE; `world_size` left out
    is the process group's, else the hardware's.

    `batch_size` is per rank; "auto" tries every size that fits and takes the best time per sample. With
    `global_batch_size` the size per rank must divide global / world_size, the rest is gradient accumulation.
    `granularity`: the numbers of slices to try for split operators, beside 1. `checkpoint`: which
    recomputation to try ("auto": "none", "hold" and "regather", for each block by itself). `modes`: which of
    NO_SHARD, SHARD_GRAD_OP, FULL_SHARD and, where `hosts` (over which the ranks are spread evenly) is more than
    1, HYBRID_SHARD to try. `prefetch`: units gathered ahead; the runtime does 1. `precision`: "fp32":
    parameters, gradients and states have the model's dtypes. `cost="paper"` is the paper's model, and
    `method="dfs"`, with it, its search. docs/search.md states the objective.

    `objective="memory"`: the smallest memory, at most `memory`, whose best plan gives `at_least` samples/s
    over all ranks. `objective="batch"`: the largest batch that fits, and the fastest plan for it.

    Raises InfeasibleError with the smallest limit that works and its plan, InvalidProblemError for what cannot
    mean anything. After `time_limit` seconds (10 where it is None; no limit for `method="dfs"`) or Ctrl-C the
    best plan so far is returned: `plan.certificate.optimal` is False and `plan.certificate.gap` says how much
    faster another plan might be.

    >>> plan = osdp.search(model, (tokens,), memory="8GiB", world_size=8, hardware="rtx-titan-8")
    """
    one_of("cost", cost, COSTS)
    one_of("method", method, METHODS)
    one_of("precision", precision, ("fp32",))
    one_of("objective", objective, OBJECTIVES)
    if method == "dfs" and cost != "paper":
        raise InvalidProblemError("method='dfs' is the paper's search: it knows cost='paper' only")
    if (at_least is not None) != (objective == "memory"):
        raise InvalidProblemError("objective='memory' and at_least (samples/s) belong together")
    if at_least is not None and not 0 < at_least < 1e15:
        raise InvalidProblemError(f"at_least is {at_least}; it is a positive number of samples/s")
    check_time_limit(time_limit)
    machine = machine_of(hardware)
    description = description_of(model_or_desc, sample)
    ranks = ranks_of(world_size, machine)
    if memory is None and machine.memory_bytes is None:
        raise InvalidProblemError(f"memory is not given, and hardware {machine.name!r} does not state it")
    limit = parse_bytes(memory if memory is not None else machine.memory_bytes or 0)
    if not 1 <= integer(hosts, "hosts") <= ranks or ranks % hosts:
        raise InvalidProblemError(f"hosts is {hosts}; it must divide the world size {ranks}")
    if not 0 <= integer(prefetch, "prefetch") <= 64:
        raise InvalidProblemError(f"prefetch is {prefetch}; it is a number of units from 0 to 64")
    space = choose_space(modes, granularity, checkpoint, cost, hosts)
    batches = batches_of(batch_size, global_batch_size, ranks)
    job = _Job(
        description,
        machine,
        ranks,
        space,
        optimizer,
        precision,
        cost,
        Searched(
            modes=space.modes,
            granularity=space.granularities,
            checkpoint=tuple(r or "none" for r in space.recompute),
            batch_size=None if isinstance(batch_size, str) else integer(batch_size, "batch_size"),
            global_batch_size=global_batch_size,
            hosts=hosts,
            prefetch=prefetch,
            objective=objective,
            at_least=at_least,
            method=method,
            time_limit_s=time_limit,
        ),
    )
    try:
        if objective == "memory":
            assert at_least is not None
            limit = job.least_memory(limit, batches, at_least)
        elif objective == "batch":
            batches = [job.largest_batch(limit, batches)]
        return job.plan(limit, batches)
    except _search.InvalidProblem as e:
        raise InvalidProblemError(str(e)) from None


def search_again(plan: Plan, memory: int | float | str, **changes: Any) -> Plan:
    """The same search under another memory limit, and with other arguments of `search` where given."""
    s = plan.searched
    if s is None:
        raise PlanMismatchError("the plan was not made by osdp.search: there is no search to repeat")
    arguments: dict[str, Any] = {
        "memory": memory,
        "world_size": plan.world_size,
        "hardware": plan.hardware,
        "batch_size": "auto" if s.batch_size is None else s.batch_size,
        "global_batch_size": s.global_batch_size,
        "optimizer": plan.optimizer,
        "precision": plan.precision,
        "granularity": s.granularity or 1,
        "checkpoint": s.checkpoint,
        "modes": s.modes,
        "cost": plan.cost,
        "method": s.method,
        "time_limit": s.time_limit_s,
        "hosts": s.hosts,
        "prefetch": s.prefetch,
        "objective": s.objective,
        "at_least": s.at_least,
    }
    return search(plan.description, **{**arguments, **changes})


def verify(plan: Plan) -> str:
    """Check a plan's certificate from the plan alone. Empty if it holds, else what is false.

    The costs of all choices are computed anew from description and hardware; the checker
    (csrc/search/phase_certificate.cpp) shares no code with the search. It proves: a step of the plan takes and
    its largest phase holds what the certificate says, that is within the limit, and no plan of this batch size
    and no larger transients is faster than the lower bound. Raises PlanMismatchError for a plan without
    certificate, hardware or the arguments of its search.
    """
    c, s = plan.certificate, plan.searched
    if c is None or s is None or plan.hardware is None or plan.world_size is None:
        raise PlanMismatchError(
            "the plan has no certificate: it was not made by osdp.search, or was changed since"
        )
    try:
        space = choose_space(s.modes, s.granularity or 1, s.checkpoint, plan.cost, s.hosts)
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
            hosts=s.hosts,
            prefetch=plan.prefetch,
        )
        if c.search_bound_ps > c.time_ps or (c.optimal and c.search_bound_ps != c.time_ps):
            return "the search's bound does not agree with the time"
        return str(
            _search.check_plan(
                model,
                request,
                (plan.batch_size, plan.accumulation),
                [_tuple(plan.choices.get(o.name)) for o in plan.description.operators],
                [RECOMPUTE_CODES.index(plan.recompute.get(b.name)) for b in plan.description.blocks],
                c.time_ps,
                c.memory_bytes,
                c.lower_bound_ps,
                [(p.phase, p.numerator) for p in c.prices],
                c.price_denominator,
            )
        )
    except (_search.InvalidProblem, InvalidProblemError) as e:
        return str(e)


@dataclasses.dataclass(frozen=True)
class _Job:
    """A search but for its memory limit and batch sizes."""

    description: ModelDescription
    machine: Hardware
    ranks: int
    space: Space
    optimizer: str
    precision: str
    cost: str
    searched: Searched

    def plan(self, limit: int, batches: Sequence[tuple[int, int]]) -> Plan:
        """The plan, or InfeasibleError with the smallest limit that works and its plan."""
        model, found = self._run(limit, batches, find_smallest=True)
        if found["feasible"]:
            return self._plan(limit, model, found)
        least = found["smallest_limit"]
        if least <= limit:
            raise InfeasibleError(
                f"method={self.searched.method!r} found no plan that fits {format_bytes(limit)} in "
                f"{self.searched.time_limit_s or DEFAULT_TIME_LIMIT_S:g} s: give it a larger time_limit"
                + (", or use method='exact'" if self.searched.method != "exact" else "")
            )
        smallest = batches or [(1, 1)]
        exact = dataclasses.replace(self, searched=dataclasses.replace(self.searched, method="exact"))
        # Some plan that fits is found at once; this one is for a message.
        model, found = exact._run(least, smallest, time_limit_s=0.1)
        if not found["feasible"]:
            model, found = exact._run(least, smallest)
        nearest = exact._plan(least, model, found)
        raise InfeasibleError(
            f"no plan fits {format_bytes(limit)}; the smallest that fits is {format_bytes(least)}: "
            + _summary(nearest),
            least,
            nearest,
        )

    def least_memory(self, limit: int, batches: Sequence[tuple[int, int]], at_least: float) -> int:
        """The smallest limit whose best plan gives so many samples/s over all ranks, to the byte."""

        def peak(limit: int) -> int | None:
            found = self._run(limit, batches)[1]
            samples = self.ranks * found["batch_size"] * found["accumulation"]
            fast = found["feasible"] and samples >= at_least * found["step_ps"] * 1e-12
            return int(found["peak_bytes"]) if fast else None

        high = peak(limit)
        if high is None:
            best = self.plan(limit, batches)
            assert best.predicted is not None
            raise InfeasibleError(
                f"no plan that fits {format_bytes(limit)} gives {at_least:g} samples/s; "
                f"the best gives {best.predicted.throughput:g}",
                None,
                best,
            )
        low = 0
        while high - low > 1:
            middle = (low + high) // 2
            fits = peak(middle)
            low, high = (middle, high) if fits is None else (low, max(low + 1, min(middle, fits)))
        return high

    def largest_batch(self, limit: int, batches: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """The largest size per rank that fits; the smallest where none does."""

        def fits(batch: tuple[int, int]) -> bool:
            return bool(self._run(limit, [batch])[1]["feasible"])

        if batches:
            return next((b for b in sorted(batches, reverse=True) if fits(b)), min(batches))
        return (_last_true(lambda b: fits((b, 1)), 2**16), 1)

    def _run(
        self,
        limit: int,
        batches: Sequence[tuple[int, int]],
        find_smallest: bool = False,
        time_limit_s: float | None = None,
    ) -> tuple[_search.Model, dict[str, Any]]:
        model = make_model(self.description, self.machine)
        default = DEFAULT_TIME_LIMIT_S if self.searched.method == "exact" else 0.0  # 0: none
        seconds = time_limit_s or self.searched.time_limit_s or default
        return model, _search.schedule(model, self._request(limit, batches, find_smallest), seconds)

    def _request(
        self, limit: int, batches: Sequence[tuple[int, int]], find_smallest: bool = False
    ) -> _search.Request:
        return make_request(
            self.machine,
            self.space,
            world_size=self.ranks,
            limit_bytes=limit,
            batches=batches,
            optimizer=self.optimizer,
            cost=self.cost,
            method=self.searched.method,
            least_transient_bytes=largest_untraced_unit(self.description),
            hosts=self.searched.hosts,
            prefetch=self.searched.prefetch,
            find_smallest=find_smallest,
        )

    def _plan(self, limit: int, model: _search.Model, found: Mapping[str, Any]) -> Plan:
        description = self.description
        request = self._request(limit, ())
        ways = {
            b.name: RECOMPUTE_CODES[code] for b, code in zip(description.blocks, found["blocks"], strict=True)
        }
        recompute = {
            o.block: how
            for o in description.operators
            if o.block is not None and (how := ways[o.block]) is not None
        }
        cache: dict[object, list[dict[str, Any]]] = {}
        candidates: list[list[dict[str, Any]]] = []
        choices: dict[str, Choice] = {}
        for i, (o, picked) in enumerate(zip(description.operators, found["choices"], strict=True)):
            if picked < 0:
                candidates.append([])
                continue
            how = None if o.block is None else ways[o.block]
            key = (signature(o), how)
            if key not in cache:
                cache[key] = _search.candidates(model, request, i, RECOMPUTE_CODES.index(how))
            candidates.append(cache[key])
            choices[o.name] = choice_of(cache[key][picked])
        units = _units(description, choices, found["transient_bytes"])
        peak = found["peak_bytes"]
        if self.cost == "osdp" and self.ranks > 1:
            needed = max(unit_bytes(description, choices, units), default=0)
            reserved = max(found["transient_bytes"], largest_untraced_unit(description))
            peak += (2 + self.searched.prefetch) * (needed - reserved)
        certificate = self._certificate(limit, model, request, found, choices)
        price = sum(p.numerator for p in certificate.prices) / certificate.price_denominator
        return Plan(
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
            memory_limit_bytes=limit,
            accumulation=found["accumulation"],
            prefetch=self.searched.prefetch,
            searched=self.searched,
            predicted=predict(
                description,
                self.machine,
                found,
                candidates,
                world_size=self.ranks,
                peak_bytes=peak,
                recompute=recompute,
                price_ps_per_byte=price,
            ),
            certificate=certificate,
        )

    def _certificate(
        self,
        limit: int,
        model: _search.Model,
        request: _search.Request,
        found: Mapping[str, Any],
        choices: Mapping[str, Choice],
    ) -> Certificate:
        batch = (found["batch_size"], found["accumulation"])
        plain = [_tuple(choices.get(o.name)) for o in self.description.operators]
        best: tuple[int, list[tuple[int, int]]] = (-1, [])
        rounded = [(phase, min(round(price * PRICE_DENOMINATOR), 2**56)) for phase, price in found["prices"]]
        for prices in ([], rounded):  # where memory is no limit, no price proves more
            bound = _search.plan_lower_bound(
                model, request, batch, plain, found["blocks"], prices, PRICE_DENOMINATOR
            )
            if bound > best[0]:
                best = (bound, prices)
        step = found["step_ps"]
        proven = int(found["lower_bound_s_per_sample"] * 1e12 * batch[0] * batch[1])
        return Certificate(
            time_ps=step,
            memory_bytes=found["peak_bytes"],
            limit_bytes=limit,
            lower_bound_ps=min(best[0], step),
            search_bound_ps=step if found["optimal"] else max(0, min(proven, step - 1)),
            prices=tuple(PhasePrice(phase, numerator) for phase, numerator in best[1]),
            price_denominator=PRICE_DENOMINATOR,
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


def _tuple(choice: Choice | None) -> tuple[int, int, int, int]:
    """(mode, granularity, sharded slices, split) in the core's codes; of no parameters, anything."""
    if choice is None:
        return (0, 1, 0, 0)
    split = SPLIT_CODES.index(choice.split) if choice.granularity > 1 else 0
    return (MODES.index(choice.mode), choice.granularity, choice.slices_sharded, split)


def _summary(plan: Plan) -> str:
    counts: dict[str, int] = {}
    for choice in plan.choices.values():
        counts[choice.mode] = counts.get(choice.mode, 0) + 1
    parts = [f"batch {plan.batch_size}"]
    parts.append(
        f"all {next(iter(counts))}" if len(counts) == 1 else ", ".join(f"{n} {m}" for m, n in counts.items())
    )
    slices = max((c.granularity for c in plan.choices.values()), default=1)
    if slices > 1:
        parts.append(f"granularity {slices}")
    if plan.recompute:
        parts.append(f"{len(plan.recompute)} blocks recomputed")
    return ", ".join(parts)


def _last_true(holds: Callable[[int], bool], most: int) -> int:
    """The largest n in 1..most that holds; what holds for n holds for less. 1 where none does."""
    low, high = 1, 2
    while high <= most and holds(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
