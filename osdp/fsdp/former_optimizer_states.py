"""FSDP1's functions for optimizer state dicts that preceded optim_state_dict, and FairScale's.

`optim_input` is what the optimizer was made with, where a script passes that instead of the optimizer: it says in which
order the optimizer numbers its parameters.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.fsdp import OptimStateKeyType
from torch.optim import Optimizer

from osdp.fsdp.optimizer_states import FULL_ON_RANK_0, State, by_name, from_rank_0, names_of, numbered
from osdp.sharding.state_dict_form import StateDictForm


def full_optim_state_dict(
    model: nn.Module,
    optim: Optimizer,
    optim_input: object = None,
    rank0_only: bool = True,
    group: object = None,
) -> State:
    """Full state dict by names, in host memory; {} on other ranks with `rank0_only`. Collective."""
    return by_name(model, optim, StateDictForm("full", on_host=True, rank0_only=rank0_only))


def sharded_optim_state_dict(model: nn.Module, optim: Optimizer, group: object = None) -> State:
    """State dict by names, with DTensors."""
    return by_name(model, optim, StateDictForm("sharded"))


def shard_full_optim_state_dict(
    full_optim_state_dict: State, model: nn.Module, optim_input: object = None, optim: Optimizer | None = None
) -> State:
    """Convert a full state dict that every rank has to the input of `optim.load_state_dict`."""
    return numbered(model, optim, full_optim_state_dict, optim_input)


def scatter_full_optim_state_dict(
    full_optim_state_dict: State | None,
    model: nn.Module,
    optim_input: object = None,
    optim: Optimizer | None = None,
    group: object = None,
) -> State:
    """Convert rank 0's full state dict to the input of `optim.load_state_dict`. Collective."""
    return numbered(model, optim, from_rank_0(model, full_optim_state_dict), optim_input)


def flatten_sharded_optim_state_dict(
    sharded_optim_state_dict: State, model: nn.Module, optim: Optimizer
) -> State:
    """Convert the result of `sharded_optim_state_dict` to the input of `optim.load_state_dict`."""
    return numbered(model, optim, sharded_optim_state_dict)


def rekey_optim_state_dict(
    optim_state_dict: State,
    optim_state_key_type: OptimStateKeyType,
    model: nn.Module,
    optim_input: object = None,
    optim: Optimizer | None = None,
) -> State:
    """Replace names by numbers, or numbers by names; `model` need not be sharded."""
    names = names_of(model, optim, optim_input)
    keys: dict[Any, Any] = {number: name for number, name in names.items()}
    if optim_state_key_type is OptimStateKeyType.PARAM_ID:
        keys = {name: number for number, name in names.items()}
    groups = optim_state_dict["param_groups"]
    return {
        **optim_state_dict,
        "state": {keys.get(k, k): entry for k, entry in optim_state_dict["state"].items()},
        "param_groups": [{**g, "params": [keys.get(k, k) for k in g["params"]]} for g in groups],
    }


def gather_full_optim_state_dict(model: nn.Module, optim: Optimizer, **ignored: object) -> State | None:
    """FairScale's: the unwrapped model's optimizer state dict, by numbers, in host memory on rank 0; None
    elsewhere. Collective."""
    full = by_name(model, optim, FULL_ON_RANK_0)
    if not full:
        return None
    state = numbered(model, optim, full)
    count = sum(len(g["params"]) for g in state["param_groups"])
    return {**state, "param_id_map": {i: i for i in range(count)}, "uncollected_local_ids": []}


def get_shard_from_optim_state_dict(model: nn.Module, full_optim_state_dict: State) -> State:
    """FairScale's: convert the result of `gather_full_optim_state_dict`, given on every rank, to the input of
    `optim.load_state_dict`. Its tensors are full; loading copies this rank's part."""
    return {key: full_optim_state_dict[key] for key in ("state", "param_groups")}
