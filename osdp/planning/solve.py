"""solve: the search's underlying knapsack problem: one option per operator under one memory limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from osdp import _search
from osdp.base.byte_sizes import parse_bytes
from osdp.base.numbers import format_seconds
from osdp.base.printed import Printed
from osdp.errors import InfeasibleError, InvalidProblemError
from osdp.plan.searched import METHODS
from osdp.planning.arguments import check_time_limit, integer, one_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

SOLVE_TIME_LIMIT_S = 10.0
_SHOWN = 20  # choices that a solution prints
SOLVE_STATE = "256MiB"


@dataclass(frozen=True, repr=False)
class Solution(Printed):
    """The best choice of one option per operator. Times and memories are in the units of the options.

    `lower_bound` is the bound that the search proved: it equals `time` if `optimal`, else `time -
    lower_bound` is the largest possible gap. `multiplier` (numerator, denominator) is the price of memory in
    time per unit of memory; it gives the Lagrangian bound `sum(min(t + price * m)) - price * limit`, which is
    usually slightly below `lower_bound`. `check_solution` checks both. `seconds` and `nodes` are the search's
    time and number of nodes.
    """

    choices: tuple[int, ...]
    time: int
    memory: int
    lower_bound: int
    seconds: float
    nodes: int
    optimal: bool
    multiplier: tuple[int, int]

    def __rich__(self) -> str:
        chosen = ", ".join(map(str, self.choices[:_SHOWN])) + (", ..." if len(self.choices) > _SHOWN else "")
        proof = "optimal" if self.optimal else f"at least {self.lower_bound}"
        return (
            f"time {self.time} ({proof}), memory {self.memory}; {self.nodes} nodes, {format_seconds(self.seconds)}\n"
            f"choices of {len(self.choices)} operators: {chosen}"
        )


def solve(
    options: Sequence[Sequence[tuple[int, int]]] | Buffer,
    limit: int,
    *,
    method: str = "exact",
    time_limit: float | None = None,
    gap: float = 0.0,
    names: Sequence[str] = (),
    state: int | str = SOLVE_STATE,
) -> Solution:
    """Choose one (time, memory) per operator: least total time with total memory <= limit.

    options[i] are operator i's options, integers >= 0 (for example picoseconds and bytes); or `options` is
    one int64 array of shape (operators, options, 2), for example from NumPy, which is read without a copy.
    `method="exact"` proves its answer, also with equal and tied options; `method="dfs"` is the paper's
    depth-first search with its two prunings, exponential in the number of operators; "dfs-smallest-first"
    tries each operator's options by ascending memory, so that it finds a plan immediately if there is one.
    After `time_limit` seconds (10 where it is None; float("inf"): none), after Ctrl-C, where the exact
    search's lists of partial plans would take more than `state` (bytes or a string), or once the best plan is
    proven to be within the fraction `gap` of the optimum, the best solution so far is returned (`optimal` is
    False; its gap is at most `time - lower_bound`).

    Raises InfeasibleError (with `smallest_limit`) if nothing fits, InvalidProblemError for invalid numbers.

    >>> solve([[(1, 8), (3, 2)], [(1, 8), (3, 2)]], 10).choices
    (1, 0)
    """
    one_of("method", method, METHODS)
    seconds = SOLVE_TIME_LIMIT_S if time_limit is None else time_limit
    if seconds == float("inf"):
        seconds = 0.0  # none
    else:
        check_time_limit(seconds)
    if not 0 <= gap < 1:
        raise InvalidProblemError(f"gap must be a fraction of the time, at least 0 and below 1, got {gap}")
    bound = integer(limit, "limit")
    held = parse_bytes(state)
    if held < 1:
        raise InvalidProblemError(f"state must be at least 1 byte, got {state!r}")
    array = _as_array(options)
    try:
        if array is None:
            table = [_checked(i, o, names) for i, o in enumerate(options)]  # type: ignore[arg-type]
            s = _search.solve(table, bound, method, seconds, list(names), gap, held)
        else:
            s = _search.solve_table(array, bound, method, seconds, list(names), gap, held)
    except _search.InvalidProblem as e:
        raise InvalidProblemError(str(e)) from None
    if s.status == "infeasible":
        least = s.smallest_limit
        raise InfeasibleError(f"no choice fits {limit}; the smallest limit that fits is {least}", least)
    if not s.choices:
        raise InfeasibleError(
            f"method={method!r} found no plan that fits {limit} in {seconds:g} s; use method='exact'"
            + (" or 'dfs-smallest-first'" if method == "dfs" else "")
        )
    return Solution(
        choices=tuple(s.choices),
        time=s.time,
        memory=s.memory,
        lower_bound=s.lower_bound,
        seconds=s.seconds,
        nodes=s.nodes,
        optimal=s.status == "optimal",
        multiplier=s.multiplier,
    )


def check_solution(
    options: Sequence[Sequence[tuple[int, int]]] | Buffer, limit: int, solution: Solution
) -> str:
    """Check a solution with code that is independent of the search. Returns "" if it is correct, else what is
    false.

    It checks that the choices exist, have the stated cost and fit the limit; that no choices are faster than
    `lower_bound`; that `optimal` means that this bound is the time; and that no other multiplier proves more.
    The part of `lower_bound` that the multiplier does not prove is checked by enumerating partial sums
    (csrc/search/certificate/lower_bound_check.hpp); if there are more than 20 million of them, the result
    says that the bound could not be shown.
    """
    if solution.optimal != (solution.lower_bound == solution.time):
        return f"optimal is {solution.optimal}, but the time is {solution.time} and the lower bound {solution.lower_bound}"
    claims = (
        [k if -1 <= integer(k, "a choice") < 2**31 else -1 for k in solution.choices],
        integer(solution.time, "time"),
        integer(solution.memory, "memory"),
        integer(solution.lower_bound, "lower_bound"),
        (integer(solution.multiplier[0], "multiplier"), integer(solution.multiplier[1], "multiplier")),
    )
    array, bound = _as_array(options), integer(limit, "limit")
    try:
        if array is not None:
            return str(_search.check_table(array, bound, *claims))
        table = [_checked(i, o, ()) for i, o in enumerate(options)]  # type: ignore[arg-type]
        return str(_search.check(table, bound, *claims))
    except _search.InvalidProblem as e:
        raise InvalidProblemError(str(e)) from None


def _as_array(options: object) -> memoryview | None:
    """The memory of an array; None for other objects."""
    if isinstance(options, (list, tuple)):
        return None
    try:
        array = memoryview(options)  # type: ignore[arg-type]
    except TypeError:
        return None
    if array.ndim != 3 or array.shape is None or array.shape[2] != 2:
        raise InvalidProblemError(f"options must have shape (operators, options, 2), got {array.shape}")
    if array.format not in ("l", "q") or array.itemsize != 8:
        raise InvalidProblemError(f"options must be int64, got format {array.format!r}")
    if not array.c_contiguous:
        raise InvalidProblemError("options must be a contiguous array")
    if array.shape[0] > 0 and array.shape[1] == 0:
        raise InvalidProblemError("operator 0 has no options")
    return array


def _checked(i: int, options: Sequence[tuple[int, int]], names: Sequence[str]) -> list[tuple[int, int]]:
    where = f"operator {names[i]!r}" if i < len(names) and names[i] else f"operator {i}"
    try:
        return [
            (integer(t, f"{where}, option {k}: time"), integer(m, f"{where}, option {k}: memory"))
            for k, (t, m) in enumerate(options)
        ]
    except (TypeError, ValueError) as e:
        if isinstance(e, InvalidProblemError):
            raise
        raise InvalidProblemError(
            f"{where}: options must be (time, memory) pairs; got {options!r:.80}"
        ) from None
