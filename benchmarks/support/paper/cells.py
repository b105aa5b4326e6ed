"""One cell of a table: the throughput that a strategy reaches in a setting, or why there is none."""

from __future__ import annotations

import time
from typing import Any

import osdp
from osdp.description.model_description import ModelDescription
from support.paper.models import STYLES
from support.paper.settings import Setting

Cell = dict[str, Any]  # "rate": samples/s over all ranks; or "why": "OOM" or "N/A". JSON.
MARGIN = 0.001  # what a search leaves open: below that no strategy is called slower than another

DP: dict[str, Any] = {"modes": "NO_SHARD", "granularity": 1}
FSDP: dict[str, Any] = {"modes": "FULL_SHARD", "granularity": 1}
BASE: dict[str, Any] = {"granularity": 1}
OSDP: dict[str, Any] = {}
HYBRID: dict[str, Any] = {"modes": "HYBRID_SHARD", "granularity": 1}
HPZ: dict[str, Any] = {"modes": "FULL_SHARD_HPZ", "granularity": 1}
PURE = {"DP": DP, "FSDP": FSDP, "OSDP-base": BASE, "OSDP": OSDP}


def _asked(setting: Setting) -> dict[str, Any]:
    return {
        "memory": f"{setting.gib}GiB",
        "world_size": setting.ranks,
        "hosts": setting.hosts,
        "hardware": setting.hardware,
    }


def searched(description: ModelDescription, setting: Setting, batch: int | str, **space: Any) -> Cell:
    """One pass of `batch` samples a rank ("auto": as many as are fastest)."""
    began = time.perf_counter()
    try:
        plan = osdp.search(description, batch_size=batch, **_asked(setting), **space)
    except osdp.InfeasibleError as error:
        least = error.smallest_limit
        return {
            "why": "OOM",
            "smallest_gib": least and least / 2**30,
            "search_s": time.perf_counter() - began,
        }
    assert plan.predicted is not None and plan.certificate is not None
    return {
        "rate": plan.predicted.throughput,
        "batch": plan.batch_size,
        "gap": plan.certificate.gap,
        "sliced": sum(c.granularity > 1 for c in plan.choices.values()) / max(1, _sliceable(description)),
        "search_s": time.perf_counter() - began,
    }


def _sliceable(description: ModelDescription) -> int:
    return sum(o.split_shape is not None for o in description.operators)


def with_degrees(
    description: ModelDescription, setting: Setting, samples: int, **space: Any
) -> dict[str, Cell]:
    """Steps of `samples`, in micro-batches: 3D+OSDP, and what fewer means give in the same steps."""
    cells: dict[str, Cell] = {}
    began = time.perf_counter()
    try:
        plan = _degrees(
            description, setting, samples, tensor_parallel="auto", pipeline_parallel="auto", **space
        )
        cells["3D+OSDP"] = {
            "rate": plan.throughput,
            "batch": plan.micro_batch_size,
            "degrees": _words(plan),
            "search_s": time.perf_counter() - began,
        }
        for a in plan.alternatives:
            if a.step_time_s is not None:
                degrees = f"{a.tensor_parallel} x {a.pipeline_parallel} x {a.data_parallel}"
                rate = samples / a.step_time_s
                cells[a.name] = {"rate": rate, "batch": a.micro_batch_size, "degrees": degrees}
            else:
                cells[a.name] = {"why": "OOM" if a.tensor_parallel else "N/A"}
    except osdp.InfeasibleError:
        cells = {c: {"why": "OOM"} for c in ("DP", "FSDP", "OSDP", "TP", "PP", "3D", "3D+OSDP")}
    if setting.hosts > 1:  # tensor parallelism stays inside a host; data parallelism between them
        inside = setting.ranks // setting.hosts
        cells["TP"] = _one(
            description, setting, samples, tensor_parallel=inside, pipeline_parallel=1, **DP, **space
        )
    cells["GPipe"] = _one(
        description,
        setting,
        samples,
        tensor_parallel=1,
        pipeline_parallel=setting.ranks,
        schedule="gpipe",
        **DP,
        **space,
    )
    return cells


def _one(description: ModelDescription, setting: Setting, samples: int, **asked: Any) -> Cell:
    began = time.perf_counter()
    try:
        plan = _degrees(description, setting, samples, **asked)
    except osdp.InfeasibleError:
        return {"why": "OOM"}
    except osdp.InvalidProblemError:
        return {"why": "N/A"}
    return {
        "rate": plan.throughput,
        "batch": plan.micro_batch_size,
        "degrees": _words(plan),
        "search_s": time.perf_counter() - began,
    }


def _degrees(
    description: ModelDescription, setting: Setting, samples: int, **asked: Any
) -> osdp.ParallelPlan:
    styles = {"tp_plan": STYLES} if asked["tensor_parallel"] != 1 else {}
    plan = osdp.search(description, global_batch_size=samples, **_asked(setting), **asked, **styles)
    assert isinstance(plan, osdp.ParallelPlan)
    return plan


def _words(plan: osdp.ParallelPlan) -> str:
    return f"{plan.tensor_parallel} x {plan.pipeline_parallel} x {plan.data_parallel}"


def best(cells: list[Cell]) -> Cell:
    """The fastest; of none that fits, the first."""
    return max(cells, key=lambda c: c.get("rate", 0.0))


def algorithm_1(description: ModelDescription, setting: Setting, method: str, seconds: float) -> Cell:
    """The paper's own search under its own costs, any batch, slices of 4."""
    began = time.perf_counter()
    try:
        plan = osdp.search(
            description,
            batch_size="auto",
            cost="paper",
            method=method,
            granularity=4,
            checkpoint=False,
            **({} if method == "exact" else {"time_limit": seconds}),
            **_asked(setting),
        )
    except osdp.InfeasibleError:
        ended = method == "exact" or time.perf_counter() - began < seconds
        return {"why": "OOM" if ended else "no plan yet", "search_s": time.perf_counter() - began}
    assert plan.predicted is not None and plan.certificate is not None
    took = time.perf_counter() - began
    done = bool(plan.certificate.optimal)
    return {"rate": plan.predicted.throughput, "batch": plan.batch_size, "done": done, "search_s": took}
