"""Upgrading: the steps from each version of a kind of file to the next, all in one place.

Every kind of file has its own versions; a file states both: {"osdp": "plan", "version": 2, ...}. Readers know
the newest version only. An older document is first upgraded in memory, one version after the other; `osdp
upgrade` writes the result (osdp/cli/upgrade_files.py).

To change a kind of file: change its dataclass, add a step to the end of the kind's list here, which adds the
missing fields to an older document, and keep a file of the new version in tests/data/files. A plan holds a
description and hardware: a step of theirs is part of a step of the plan's.

A step receives a document of which only the header was checked: if a field is invalid it may raise any
exception, which becomes a FormatError. Its result is checked like every file of the newest version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from osdp.errors import FormatError

Document = dict[str, Any]
Step = Callable[[Document], Document]


def _hardware_1(old: Document) -> Document:
    """what early files lack: communication between hosts, and beside computation"""
    none = {"alpha_s": 0.0, "beta_s_per_byte": 0.0}
    later = {
        "between_hosts": None,
        "exposed_communication": 1.0,
        "communication_delay": none,
        "stolen_computation": 0.0,
    }
    return {**later, **old}


def _hardware_2(old: Document) -> Document:
    """what early files lack: rates of other dtypes than fp32, and memory of the device that no tensor has"""
    parts = (
        "context",
        "communicator",
        "workspace",
        "tensor_rounding",
        "small_block",
        "large_block",
        "unused",
    )
    none = {f"{part}_bytes": 0 for part in parts}
    return {"flops_per_s_by_dtype": {}, "device_memory": none, **old}


def _hardware_3(old: Document) -> Document:
    """what early files lack: what a profile measured on"""
    return {"measured": None, **old}


def _hardware_4(old: Document) -> Document:
    """what early files lack: how much slower a forward is the second time"""
    return {"recompute_slowdown": 1.0, **old}


def _description_1(old: Document) -> Document:
    """what early files lack: the bytes of what the model returns"""
    return {"output_bytes_per_sample": 0, **old}


def _description_2(old: Document) -> Document:
    """what early files lack: the bytes that operators take while they run"""
    work = {"work_bytes_per_sample": 0, "work_bytes_fixed": 0}
    return {**old, "operators": [{**work, **operator} for operator in old["operators"]]}


def _description_3(old: Document) -> Document:
    """what early files lack: which blocks change their inputs, and the precision"""
    return {**old, "blocks_changing_inputs": [], "precision": ""}


def _description_4(old: Document) -> Document:
    """what early files lack: kernels"""
    none = {"forward_kernels": -1, "backward_kernels": -1}
    return {**old, "operators": [{**none, **operator} for operator in old["operators"]], "kernels": []}


def _hardware_5(old: Document) -> Document:
    """what early files lack: rates of kernels"""
    return {"kernel_rates": None, **old}


def _hardware_6(old: Document) -> Document:
    """what early files lack: NCCL's protocols, and attention's rate in short sequences"""
    rates = old["kernel_rates"] and {"attention_half_intensity": 0.0, **old["kernel_rates"]}
    return {"protocols": [], **old, "kernel_rates": rates}


def _plan_1(old: Document) -> Document:
    """what early files lack: in description and hardware, and the share that choosing by replay may cost"""
    steps: dict[str, Step] = {
        "description": _description_1,
        "hardware": _hardware_1,
        "searched": lambda searched: {"replay": 0.0, **searched},
    }
    return {name: steps[name](value) if name in steps and value else value for name, value in old.items()}


def _checkpoint_1(old: Document) -> Document:
    """the boxes lie in the manifest, not in torch's .metadata (osdp/checkpoint/version_1.py read them)"""
    boxes: dict[str, list[Any]] = {}
    for key, offsets, sizes, file, begin, length in old["table"]:
        boxes.setdefault(key, []).append([offsets, sizes, file, begin, length, None])
    return {**{name: value for name, value in old.items() if name != "table"}, "boxes": boxes}


def _plan_2(old: Document) -> Document:
    """what early files lack: patterns of what is whole for sure, and whether a bound that is not met was proven"""
    steps: dict[str, Step] = {
        "searched": lambda searched: {"whole": [], **searched},
        "certificate": lambda certificate: {"proven": certificate["optimal"], **certificate},
    }
    return {name: steps[name](value) if name in steps and value else value for name, value in old.items()}


def _plan_3(old: Document) -> Document:
    """what early files lack: in hardware, what units the search joined, and which costs it had (of 1, or of 2)"""
    steps: dict[str, Step] = {
        "hardware": _hardware_2,
        "searched": lambda searched: {"small_unit_bytes": 256 * 2**10, "cost_version": 1, **searched},
    }
    return {name: steps[name](value) if name in steps and value else value for name, value in old.items()}


def _plan_4(old: Document) -> Document:
    """what early files lack: whether reductions have a communicator of their own"""
    return {"separate_reductions": False, **old}


def _plan_5(old: Document) -> Document:
    """what early files lack: in the description, and which costs the search had"""
    searched = old["searched"] and {"cost_version": 2, **old["searched"]}
    return {**old, "description": _description_2(old["description"]), "searched": searched}


def _plan_6(old: Document) -> Document:
    """what early files lack: the share of communication in the objective, which was the hardware's, and which costs the
    search had"""
    searched, hardware = old["searched"], old["hardware"]
    if searched:
        exposed = hardware["exposed_communication"] if hardware else 1.0
        searched = {"exposed": exposed, "cost_version": 3, **searched}
    return {**old, "searched": searched}


def _plan_7(old: Document) -> Document:
    """what early files lack: in hardware, and which costs the search had"""
    steps: dict[str, Step] = {
        "hardware": _hardware_3,
        "searched": lambda searched: {"cost_version": 4, **searched},
    }
    return {name: steps[name](value) if name in steps and value else value for name, value in old.items()}


def _plan_8(old: Document) -> Document:
    """what early files lack: which costs the search had"""
    return {**old, "searched": old["searched"] and {"cost_version": 5, **old["searched"]}}


def _plan_9(old: Document) -> Document:
    """what early files lack: in hardware"""
    return {**old, "hardware": old["hardware"] and _hardware_4(old["hardware"])}


def _plan_10(old: Document) -> Document:
    """what early files lack: a bound on the simulated step, the gap at which a search ends, which costs the search had,
    and how much memory units may take when they are gathered ahead"""
    steps: dict[str, Step] = {
        "searched": lambda searched: {"gap": 0.0, "cost_version": 6, **searched},
        "certificate": lambda certificate: {"step_ps": 0, "step_bound_ps": 0, **certificate},
    }
    known = {name: steps[name](value) if name in steps and value else value for name, value in old.items()}
    return {"gather_bytes": 0, **known}


def _plan_11(old: Document) -> Document:
    """what early files lack: in the description"""
    return {**old, "description": _description_3(old["description"])}


def _plan_12(old: Document) -> Document:
    """what early files lack: in description and hardware"""
    hardware = old["hardware"] and _hardware_5(old["hardware"])
    return {**old, "description": _description_4(old["description"]), "hardware": hardware}


def _plan_13(old: Document) -> Document:
    """what early files lack: in hardware"""
    return {**old, "hardware": old["hardware"] and _hardware_6(old["hardware"])}


def _plan_14(old: Document) -> Document:
    """certificates of a sum over operators say nothing of a step: what remains is the bound on the simulated one, which its
    search proved (with the paper's costs the sum is the step), without prices"""
    searched, c = old["searched"], old["certificate"]
    if searched:
        searched = {name: value for name, value in searched.items() if name not in ("replay", "exposed")}
    if c:
        paper = old.get("cost") == "paper"
        step = c["time_ps"] if paper else c["step_ps"]
        c = step and {
            "step_ps": step,
            "step_bound_ps": min(step, c["search_bound_ps"] if paper else c["step_bound_ps"]),
            "checked_bound_ps": 0,
            "forward_share": 1024,
            "backward_share": 1024,
            "batches": [],
            "price_denominator": 1,
        }
    return {**old, "searched": searched, "certificate": c or None}


# Kind -> its steps; the first one leads from version 1 to 2.
STEPS: Mapping[str, tuple[Step, ...]] = {
    "checkpoint": (_checkpoint_1,),
    "description": (_description_1, _description_2, _description_3, _description_4),
    "hardware": (_hardware_1, _hardware_2, _hardware_3, _hardware_4, _hardware_5, _hardware_6),
    "plan": (
        _plan_1,
        _plan_2,
        _plan_3,
        _plan_4,
        _plan_5,
        _plan_6,
        _plan_7,
        _plan_8,
        _plan_9,
        _plan_10,
        _plan_11,
        _plan_12,
        _plan_13,
        _plan_14,
    ),
}


def newest(kind: str) -> int:
    """The version that is written, which corresponds to the dataclasses."""
    return 1 + len(STEPS[kind])


def upgraded(kind: str, document: Document, version: int) -> Document:
    """The document in the newest version, unchanged if it has that already. FormatError if a step fails on
    it."""
    for number in range(version, newest(kind)):
        try:
            document = {**STEPS[kind][number - 1](document), "version": number + 1}
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(
                f"the osdp {kind!r} file is damaged: upgrading it from version {number} failed: "
                f"{type(error).__name__}: {error}"
            ) from None
    return document


def what_changed(old: Any, new: Any, path: str = "") -> list[str]:
    """The fields in which two documents differ: "added searched.replay", "removed ...", "changed ...". [] stands for the
    items of a list."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        items = (what_changed(a, b, f"{path}[]") for a, b in zip(old, new, strict=True))
        return list(dict.fromkeys(line for lines in items for line in lines))
    if isinstance(old, dict) and isinstance(new, dict):
        inside = f"{path}." if path else ""
        return [
            line
            for name in {**old, **new}
            for line in (
                what_changed(old[name], new[name], inside + name)
                if name in old and name in new
                else [f"{'added' if name in new else 'removed'} {inside}{name}"]
            )
        ]
    return [] if old == new else [f"changed {path}"]
