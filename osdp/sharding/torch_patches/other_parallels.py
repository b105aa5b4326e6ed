"""Refuses other kinds of data parallelism around or inside a sharded model, before they change it.

Note [Two data parallels]
DistributedDataParallel broadcasts rank 0's parameters when it is constructed: for a sharded model these are
rank 0's rows, which would overwrite those of all ranks. FSDP would shard each rank's rows again. Nothing of torch is
replaced against that:
- torch calls a hook when a module becomes part of another. DistributedDataParallel and DataParallel register the module
  before they communicate, `replicate` a list of its parameters at its first forward.
- torch's composable APIs (fully_shard, replicate) leave marks on the modules that they were applied to, and look for each
  other's: a module may have only one of them, and they leave alone the parts of a model that another one manages. OSDP
  marks the modules of a sharded model in the same way, so fully_shard(outer) shards what is around it, FSDP1's constructor
  ignores it until it registers it and is refused, and applying one of them to a module of the model itself is refused.
- DataParallel copies modules by a method of theirs, which refuses.
Conversely, `fully_shard` looks for these marks inside the model, for the attribute with which both FSDPs mark modules for
the compiler, and for the hooks of DistributedDataParallel's reducer on parameters.
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from typing import Any, NoReturn

from torch import distributed as dist
from torch import nn
from torch.distributed._composable.contract import REGISTRY_KEY, STATE_KEY, RegistryItem
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DataParallel, DistributedDataParallel

from osdp import _C
from osdp.base.names import joined
from osdp.errors import ShardingError
from osdp.sharding.in_step import MARK
from osdp.sharding.sharded_model import in_sharded_models, sharded_of
from osdp.sharding.torch_patches.replaced import hook

_WRAPPERS = (DistributedDataParallel, DataParallel, FullyShardedDataParallel)
_COMPOSABLE = ("fully_shard", "replicate")


def install_refusals() -> None:
    hook(register_module_module_registration_hook(_registered))


def _registered(module: nn.Module, name: str, part: nn.Module | None) -> None:
    if isinstance(module, _WRAPPERS) and isinstance(part, nn.Module):
        _refuse_around(type(module).__name__, part)


class _Registry(OrderedDict[str, RegistryItem]):
    """The names of the composable APIs that a module is under: those that may not touch a sharded one, too."""


class _States(OrderedDict[Any, Any]):
    """Their states by function. torch asks for a function when it is applied."""

    def __contains__(self, function: object) -> bool:
        if (name := getattr(function, "__name__", "")) in _COMPOSABLE:
            _refuse(f"torch's {name}", "a model that is")
        return super().__contains__(function)


def mark_for_others(model: nn.Module) -> None:
    """Let torch's composable APIs and DataParallel see that the modules are sharded."""
    for module in model.modules():
        held = vars(module)
        registry, states = held.get(REGISTRY_KEY, {}), held.get(STATE_KEY, {})
        held[REGISTRY_KEY] = _Registry({**registry, **{name: RegistryItem() for name in _COMPOSABLE}})
        held[STATE_KEY] = _States(states)
        held["_replicate_for_data_parallel"] = _refuse_replicas


def _refuse_replicas() -> NoReturn:
    _refuse("DataParallel", "a model that is")


def _refuse_around(what: str, part: nn.Module) -> None:
    for name, module in part.named_modules():
        sharded = sharded_of(module)
        if sharded is None:
            continue
        ignored = getattr(part, "_ddp_params_and_buffers_to_ignore", ())
        if what == "DistributedDataParallel" and all(joined(name, n) in ignored for n in sharded.names()):
            return
        _refuse(what, f"the module '{name}' in it, which is" if name else "a model that is")
    for _, name, _ in in_sharded_models(part.parameters() if type(part) is nn.ParameterList else ()):
        _refuse(
            what.replace("DistributedDataParallel", "torch's replicate"),
            f"parameter '{name}' of a model that is",
        )


def _refuse(what: str, around: str) -> NoReturn:
    raise ShardingError(
        f"{_rank()}{what} around {around} sharded by OSDP: each rank holds only its own rows of the "
        f"parameters, but {what} would treat them as full parameters. OSDP averages gradients itself: "
        f"remove {what}, or shard the outermost model with osdp.fully_shard instead."
    )


def refuse_others(model: nn.Module) -> None:
    """Raises ShardingError if a data-parallel wrapper is inside the model or around a part of it."""
    for name, module in model.named_modules():
        kind = type(module)
        place = f"'{name}'" if name else "the model itself"
        registry = vars(module).get(REGISTRY_KEY, ())
        if "replicate" in registry and not isinstance(registry, _Registry):
            _refuse_inside(f"{place} is already under torch's replicate")
        if isinstance(module, _WRAPPERS):
            _refuse_inside(f"{place} is already under {kind.__name__}")
        if _is_torchs(kind):
            _refuse_inside(f"{place} is already under torch's fully_shard")
        if vars(module).get(MARK) is True:  # and not what fully_shard puts there: Note [Calls in step]
            _refuse_inside(f"{place} is already in a FullyShardedDataParallel, or under torch's fully_shard")
    if _has_reducer(model):
        gc.collect()  # DistributedDataParallel is in a reference cycle with its hooks, and may be let go of
        if _has_reducer(model):
            _refuse_inside("a part of the model is already in a DistributedDataParallel")


def _has_reducer(model: nn.Module) -> bool:
    return any(_C.has_reducer(p) for p in model.parameters())


def _is_torchs(kind: type[nn.Module]) -> bool:
    """Whether torch's fully_shard made this class. OSDP's FSDPModule is a subclass of torch's: Note [torch's FSDPModule]."""
    return issubclass(kind, FSDPModule) and not getattr(kind, "_osdp_fsdp_module", False)


def _refuse_inside(what: str) -> NoReturn:
    raise ShardingError(
        f"{_rank()}{what}, which averages or shards the same gradients itself. Pass the plain model "
        "to osdp.fully_shard (for a wrapper its .module, before it is wrapped)."
    )


def _rank() -> str:
    return f"rank {dist.get_rank()}: " if dist.is_initialized() else ""
