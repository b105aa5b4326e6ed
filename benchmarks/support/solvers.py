"""The same problem given to general solvers: HiGHS, CP-SAT and CBC, one thread each.

They get what the exact search makes of it first: equal operators as one group with a count, no dominated
options. A variable is how many operators of a group take an option. Building the model is not timed.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

Pair = tuple[int, int]


@dataclass(frozen=True)
class Groups:
    options: list[list[Pair]]  # (time, memory), memory rising and time falling
    counts: list[int]
    limit: int


@dataclass(frozen=True)
class Answer:
    seconds: float
    time: int | None  # of its plan, summed in integers; None where it has none that fits
    claims_optimal: bool


def group(operators: list[list[Pair]], limit: int) -> Groups:
    options, counts = [], []
    for pairs, count in Counter(tuple(o) for o in operators).items():
        kept: list[Pair] = []
        for t, m in sorted(pairs, key=lambda p: (p[1], p[0])):
            if not kept or t < kept[-1][0]:
                kept.append((t, m))
        options.append(kept)
        counts.append(count)
    return Groups(options, counts, limit)


def _answer(groups: Groups, seconds: float, values: list[list[float]] | None, optimal: bool) -> Answer:
    if values is None:
        return Answer(seconds, None, False)
    taken = [[round(v) for v in row] for row in values]
    fits = all(sum(row) == n for row, n in zip(taken, groups.counts, strict=True))
    pairs = [
        (n, p) for row, o in zip(taken, groups.options, strict=True) for n, p in zip(row, o, strict=True)
    ]
    memory = sum(n * p[1] for n, p in pairs)
    if not fits or memory > groups.limit:
        return Answer(seconds, None, optimal)
    return Answer(seconds, sum(n * p[0] for n, p in pairs), optimal)


def highs(groups: Groups, limit_s: float) -> Answer:
    import highspy

    h = highspy.Highs()
    h.silent()
    for option, value in {
        "threads": 1,
        "mip_rel_gap": 0.0,
        "mip_abs_gap": 0.0,
        "time_limit": limit_s,
    }.items():
        h.setOptionValue(option, value)
    x = [
        [h.addIntegral(lb=0, ub=n, obj=t / 1e6) for t, _ in o]
        for o, n in zip(groups.options, groups.counts, strict=True)
    ]
    for row, n in zip(x, groups.counts, strict=True):
        h.addConstr(h.qsum(row) == n)
    cells = [(v, p) for row, o in zip(x, groups.options, strict=True) for v, p in zip(row, o, strict=True)]
    h.addConstr(h.qsum(v * (p[1] / 1e6) for v, p in cells) <= groups.limit / 1e6)
    start = time.perf_counter()
    h.run()
    seconds = time.perf_counter() - start
    solution = h.getSolution()
    values = list(solution.col_value) if solution.value_valid else None
    optimal = h.getModelStatus() == highspy.HighsModelStatus.kOptimal
    rows = None if values is None else [[values[v.index] for v in row] for row in x]
    return _answer(groups, seconds, rows, optimal)


def cp_sat(groups: Groups, limit_s: float) -> Answer:
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    x = [[model.new_int_var(0, n, "") for _ in o] for o, n in zip(groups.options, groups.counts, strict=True)]
    flat = [v for row in x for v in row]
    for row, n in zip(x, groups.counts, strict=True):
        model.add(sum(row) == n)
    pairs = [p for o in groups.options for p in o]
    model.add(cp_model.LinearExpr.weighted_sum(flat, [m for _, m in pairs]) <= groups.limit)
    model.minimize(cp_model.LinearExpr.weighted_sum(flat, [t for t, _ in pairs]))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = limit_s
    start = time.perf_counter()
    status = solver.solve(model)
    seconds = time.perf_counter() - start
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    rows = [[float(solver.value(v)) for v in row] for row in x] if found else None
    return _answer(groups, seconds, rows, status == cp_model.OPTIMAL)


def cbc(groups: Groups, limit_s: float) -> Answer:
    """Through a model file: the time includes writing and reading it, a few milliseconds."""
    import pulp

    model = pulp.LpProblem("plan", pulp.LpMinimize)
    x = [
        [pulp.LpVariable(f"x{g}_{k}", 0, n, pulp.LpInteger) for k in range(len(o))]
        for g, (o, n) in enumerate(zip(groups.options, groups.counts, strict=True))
    ]
    cells = [(v, p) for row, o in zip(x, groups.options, strict=True) for v, p in zip(row, o, strict=True)]
    model += pulp.lpSum(v * (p[0] / 1e6) for v, p in cells)
    for row, n in zip(x, groups.counts, strict=True):
        model += pulp.lpSum(row) == n
    model += pulp.lpSum(v * (p[1] / 1e6) for v, p in cells) <= groups.limit / 1e6
    start = time.perf_counter()
    status = model.solve(pulp.PULP_CBC_CMD(msg=False, threads=1, timeLimit=limit_s, gapRel=0.0))
    seconds = time.perf_counter() - start
    rows = [[v.value() or 0.0 for v in row] for row in x] if model.sol_status in (1, 2) else None
    return _answer(groups, seconds, rows, status == pulp.LpStatusOptimal and model.sol_status == 1)


class Installed:
    """The solvers that are there (pip install osdp[bench]), each in a process of its own: HiGHS and OR-Tools
    bring libraries that do not go together in one."""

    def __init__(self) -> None:
        known = (("HiGHS", "highspy", highs), ("CP-SAT", "ortools", cp_sat), ("CBC", "pulp", cbc))
        context = multiprocessing.get_context("spawn")
        self._pools = {
            name: (solver, ProcessPoolExecutor(1, mp_context=context))
            for name, module, solver in known
            if importlib.util.find_spec(module) is not None
        }

    def solve(self, groups: Groups, limit_s: float) -> dict[str, Answer]:
        return {n: pool.submit(f, groups, limit_s).result() for n, (f, pool) in self._pools.items()}
