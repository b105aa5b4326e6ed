"""Checks in one exchange that all ranks of a model have the same plan, model and versions."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import distributed as dist
from torch import nn

from osdp import version
from osdp.base.names import joined
from osdp.base.tensor_parallel import layout_of
from osdp.base.tensor_trees import dtype_name
from osdp.errors import DisagreementError
from osdp.plan.plan import Plan
from osdp.ranks.rank_group import Together

_models: WeakKeyDictionary[dist.ProcessGroup, int] = WeakKeyDictionary()


def agree(
    together: Together,
    model: nn.Module,
    plan: object,
    error: Exception | None,
    precision: object = None,
    backend_memory: bool = False,
) -> int:
    """Raise on every rank unless all have the same facts and none has an `error`.

    A rank with an error raises it. Ranks without one, and all ranks if facts differ and not all have an
    error, raise DisagreementError naming the rank and the first difference. Every rank must call this, with
    its error if it has one, so that no rank waits for another. Changes nothing. Costs one exchange of a few
    hundred bytes, and another of the facts themselves if they differ. Returns the model's number, which is
    the same on all ranks and unique on the process group.
    """
    facts = {
        **_facts(model, plan),
        "mixed precision": str(precision),
        "allocate_memory_from_process_group_for_comm": str(backend_memory),
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    told = "" if error is None else f"{type(error).__name__}: {error}"
    group = together.group
    assert group is not None
    answers = together.all((digest, told, _models.get(group, 0)))
    if error is not None and all(text for _, text, _ in answers):
        raise error  # the same error on all ranks; differences may be its consequence (parts that are sharded already)
    if len({digest for digest, _, _ in answers}) > 1:
        everyone = together.all(json.dumps(facts))
        first = json.loads(everyone[0])
        for rank, text in enumerate(everyone):
            difference = first_difference(first, json.loads(text), "", together.name(0))
            if difference:
                raise DisagreementError(
                    f"{together.name(rank)} differs from {together.name(0)}: {difference}. Nothing was sharded; give every "
                    "rank the same model and the same plan (search on rank 0 and share the file, or "
                    "let all ranks load it)."
                ) from error
    if error is not None:
        raise error
    for rank, (_, text, _) in enumerate(answers):
        if text:
            raise DisagreementError(
                f"{together.name(rank)} cannot shard the model: {text}. Nothing was sharded on any rank."
            )
    number = _models[group] = 1 + max(made for _, _, made in answers)
    return number


def _facts(model: nn.Module, plan: object) -> dict[str, Any]:
    # Without the certificate: searches that find the same plan may prove different bounds in their time.
    decided = replace(plan, certificate=None).dumps() if isinstance(plan, Plan) else None
    return {
        "osdp version": version.__version__,
        "torch version": torch.__version__,
        "parameter": {n: tensor_facts(p) for n, p in model.named_parameters()},
        "buffer": {n: tensor_facts(b) for n, b in model.named_buffers()},
        "plan": type(plan).__name__ if decided is None else json.loads(decided),
    }


def tensor_facts(tensor: torch.Tensor) -> dict[str, Any]:
    layout = layout_of(tensor)
    placed = {} if layout is None else {"placements": str(layout.placements), "of": list(layout.shape)}
    return {
        **placed,
        "shape": list(tensor.shape),
        "dtype": dtype_name(tensor),
        "requires_grad": tensor.requires_grad,
    }


def first_difference(a: Any, b: Any, path: str, first: str) -> str:
    """The first difference of two JSON values, in words; "" if they are equal. `first`: the rank that has `a`."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *(k for k in b if k not in a)]:
            where = joined(path, key)
            if key not in b or key not in a:
                return f"{where} exists only on {first if key in a else 'that rank'}"
            if found := first_difference(a[key], b[key], where, first):
                return found
        return ""
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            label = repr(x["name"]) if isinstance(x, dict) and "name" in x else index
            if found := first_difference(x, y, f"{path}[{label}]", first):
                return found
        return ""
    return "" if a == b else f"{path} is {b!r} on that rank, {a!r} on {first}"
