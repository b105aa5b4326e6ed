"""Optimizer state dicts by parameter names, full or sharded: FSDP1's optim_state_dict family.

`Optimizer.state_dict()` shows states of sharded parameters as DTensors, and `load_state_dict()` takes DTensors and full
tensors (Note [DTensors at the border]). This module gathers them, and replaces numbers by names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from osdp.base.modules import HANDLES, unwrapped, without_wrappers
from osdp.errors import InvalidProblemError, ShardingError
from osdp.fsdp.sharded_in import first_sharded_in, sharded_in
from osdp.fsdp.state_dict_types import optimizer_form
from osdp.ranks.rank_group import Together, first_unlike
from osdp.sharding.nested_models import parts_of, refuse_parts
from osdp.sharding.sharded_model import Sharded
from osdp.sharding.state_dict_form import StateDictForm

State = dict[str, Any]
FULL_ON_RANK_0 = StateDictForm("full", on_host=True, rank0_only=True)


def optim_state_dict(
    model: nn.Module, optim: Optimizer, optim_state_dict: State | None = None, group: object = None
) -> State:
    """The optimizer's state by the unwrapped model's parameter names, as `state_dict_type` says (by default full, in host
    memory, on every rank). Collective. `optim_state_dict`: what `optim.state_dict()` gave.

    >>> state = FSDP.optim_state_dict(model, optimizer)
    """
    return by_name(model, optim, optimizer_form(model), optim_state_dict)


def optim_state_dict_to_load(
    model: nn.Module,
    optim: Optimizer,
    optim_state_dict: State,
    is_named_optimizer: bool = False,
    load_directly: bool = False,
    group: object = None,
) -> State:
    """Convert the result of `optim_state_dict` to the input of `optim.load_state_dict`. It may come from any
    number of ranks, from FSDP1 or from one process. With `rank0_only` set, rank 0's is used and the others
    may pass {}. Collective.

    Raises ShardingError for states of parameters that the optimizer does not have.
    """
    if optimizer_form(model).rank0_only:
        optim_state_dict = from_rank_0(model, optim_state_dict)
    ready = optim_state_dict if is_named_optimizer else numbered(model, optim, optim_state_dict)
    if load_directly:
        optim.load_state_dict(ready)
    return ready


def plain_state_dict(model: nn.Module, optim: Optimizer) -> State:
    """The full state dict on rank 0 ({} elsewhere), by numbers, which the optimizer of a single process can
    load. Collective."""
    named = by_name(model, optim, FULL_ON_RANK_0)
    return numbered(model, optim, named) if named else {}


def by_name(model: nn.Module, optim: Optimizer, form: StateDictForm, given: State | None = None) -> State:
    """The state dict by names. Collective if the form is full: tensors are gathered one after another in the
    model's order, since the optimizers of different ranks may order their parameters differently. Raises
    ShardingError if ranks have states of different parameters."""
    sharded = first_sharded_in(model)
    if form.rank0_only or form.kind == "sharded":
        _refuse_parts(model, "rank 0's alone" if form.rank0_only else "a sharded one")
    shown = optim.state_dict() if given is None else given
    names = names_of(model, optim)
    found = {names.get(k, k): entry for k, entry in shown["state"].items()}
    order = [name for name in names_of(model, None).values() if name in found]
    order += [key for key in found if key not in order]
    if form.kind == "full":
        gathered = {name: _gathered_in(found[name]) for name in order}
        for each, own in _names_by_model(model, sharded, order):
            _refuse_other_states(each, {name: gathered[name] for name in own})
    mine = not form.rank0_only or sharded.runtime.rank == 0

    def kept(value: Any) -> Any:
        if isinstance(value, DTensor) and form.kind != "sharded":
            value = value.full_tensor() if form.kind == "full" else value.to_local()
        if isinstance(value, Tensor) and not isinstance(value, DTensor) and mine and form.on_host:
            value = value.to("cpu")
        return value if mine else None

    state = {name: tree_map(kept, found[name]) for name in order}
    renamed: State = {"state": state}
    if "param_groups" in shown:
        groups = [{**g, "params": [names.get(k, k) for k in g["params"]]} for g in shown["param_groups"]]
        renamed["param_groups"] = groups
    return renamed if mine else {}


def _refuse_parts(model: nn.Module, what: str) -> None:
    for each, _ in sharded_in(model):
        refuse_parts(
            each,
            f"An optimizer state dict, {what},",
            "Take a full one on every rank (FullOptimStateDictConfig(rank0_only=False)), in which each rank has the states "
            "of its own parts",
        )


def _gathered_in(entry: Any) -> list[str]:
    entries = entry.items() if isinstance(entry, Mapping) else ()
    return [str(key) for key, value in entries if isinstance(value, DTensor)]


def _names_by_model(model: nn.Module, whole: Sharded, names: list[Any]) -> list[tuple[Sharded, list[Any]]]:
    """The names that belong to `whole` and to each part that is sharded over other ranks: only the ranks of one group have
    the same states (an expert that was never called has none)."""
    root = unwrapped(model)
    parts = (
        {f"{without_wrappers(name)}.": part for name, _, part in parts_of(root)} if root in HANDLES else {}
    )
    own: dict[str, list[Any]] = {prefix: [] for prefix in ("", *parts)}
    for name in names:
        inside = (prefix for prefix in parts if isinstance(name, str) and name.startswith(prefix))
        own[max(inside, key=len, default="")].append(name)
    return [(parts.get(prefix, whole), mine) for prefix, mine in own.items()]


def _refuse_other_states(sharded: Sharded, mine: dict[Any, list[str]]) -> None:
    """Raises ShardingError on all ranks if their optimizers have states of different parameters.
    Collective."""
    together = Together(sharded.group, "gathering the optimizer's state")
    everybody = together.all([(name, keys) for name, keys in mine.items() if keys])
    if other := first_unlike(everybody):
        theirs, first = everybody[other], everybody[0]
        name = next(n for n, _ in theirs + first if dict(theirs).get(n) != dict(first).get(n))
        raise ShardingError(
            f"the optimizer state of {name!r} differs between {together.name(other)} and {together.name(0)}: give the "
            "optimizers of all ranks the same parameters, and step them all"
        )


def numbered(model: nn.Module, optim: Optimizer | None, named: State, optim_input: object = None) -> State:
    """The state dict by numbers. `optim`, `optim_input`: as for `names_of`."""
    numbers = {name: number for number, name in names_of(model, optim, optim_input).items()}

    def number_of(key: Any) -> Any:
        key = without_wrappers(key) if isinstance(key, str) else key
        if isinstance(key, str) and key not in numbers:
            raise ShardingError(
                f"the state dict has a state of {key!r}, which is not a parameter of the optimizer"
            )
        return numbers.get(key, key)

    ready = {**named, "state": {number_of(k): entry for k, entry in named["state"].items()}}
    if "param_groups" in named:
        groups = named["param_groups"]
        # In this optimizer's order: load_state_dict goes by position.
        ready["param_groups"] = [{**g, "params": sorted(map(number_of, g["params"]))} for g in groups]
    return ready


def names_of(model: nn.Module, optim: Optimizer | None, optim_input: object = None) -> dict[int, str]:
    """A parameter's number in the optimizer's state dict -> its name in the unwrapped model.

    Without `optim`, `optim_input` is what it was made with: parameters, or dicts of groups. Without both it has
    the model's parameters in the model's order.
    """
    root = unwrapped(model)
    names = {id(p): without_wrappers(name) for name, p in root.named_parameters()}
    given = optim.param_groups if optim is not None else optim_input
    if given is None:
        return dict(enumerate(names.values()))
    return {i: names[id(p)] for i, p in enumerate(_parameters_in(given)) if id(p) in names}


def _parameters_in(given: Any) -> Iterator[Tensor]:
    for each in given:
        held = each["params"] if isinstance(each, Mapping) else each
        yield from [held] if isinstance(held, Tensor) else held


def from_rank_0(model: nn.Module, given: State | None) -> State:
    """Rank 0's state dict on every rank, one full tensor after another. Collective."""
    sharded = first_sharded_in(model)
    _refuse_parts(model, "rank 0's alone")
    together = Together(sharded.group, "sending rank 0's optimizer state")
    tensors: list[Tensor] = []

    def noted(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if isinstance(value, DTensor):
            raise InvalidProblemError(
                "rank 0's optimizer state must consist of full tensors to be sent to the other "
                "ranks, but it has a DTensor"
            )
        tensors.append(value)
        return torch.empty_like(value, device="meta")

    form = together.done_first("describing rank 0's optimizer state", lambda: tree_map(noted, given))
    order = iter(tensors)

    def received(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if together.rank == 0:
            full = next(order).to(sharded.device).contiguous()
        else:
            full = torch.empty(value.shape, dtype=value.dtype, device=sharded.device)
        sharded.lane.collectives.broadcast([full])
        return full

    result: State = tree_map(received, form)
    return result
