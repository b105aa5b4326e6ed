"""Refuses other kinds of data parallelism around or inside a sharded model, before they change anything.

Note [Two data parallels]
DistributedDataParallel broadcasts rank 0's parameters when it is constructed: for a sharded model these are
rank 0's rows, which would overwrite those of all ranks. FSDP would shard each rank's rows again. torch calls
a hook when a module becomes part of another, and these wrappers register the module before they communicate
(`replicate` at its first forward, with a list of parameters); FSDP1 flattens parameters before, so its
constructor is patched to check first. Conversely, `fully_shard` looks for wrappers around the model among all
objects that Python's garbage collector tracks, and inside the model, where `replicate` leaves a mark on the
module.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Iterable
from functools import partial, wraps
from typing import Any, NoReturn

from torch import distributed as dist
from torch import nn
from torch.distributed._composable.contract import _get_registry
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp._fully_shard import _fully_shard as fsdp2
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DataParallel, DistributedDataParallel

from osdp.errors import ShardingError
from osdp.sharding.sharded_model import sharded_models, sharded_of
from osdp.sharding.torch_patches.replaced import hook, replace

_WRAPPERS = (DistributedDataParallel, DataParallel, FullyShardedDataParallel)


def install_refusals() -> None:
    hook(register_module_module_registration_hook(_registered))
    replace(FullyShardedDataParallel, "__init__", partial(_asking_first, "FullyShardedDataParallel", 1))
    for what, module in (("torch's fully_shard", fsdp2), ("torch's replicate", _replicate_with_fsdp())):
        if hasattr(module, "_validate_module"):  # the first function that they call
            replace(module, "_validate_module", partial(_asking_first, what, 0))


def _replicate_with_fsdp() -> Any:
    try:
        return importlib.import_module("torch.distributed._composable.replicate_with_fsdp")
    except ImportError:  # an older torch
        return None


def _registered(module: nn.Module, name: str, part: nn.Module | None) -> None:
    if isinstance(module, _WRAPPERS) and isinstance(part, nn.Module):
        _refuse_around(type(module).__name__, part)


def _asking_first(what: str, place: int, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def asking(*args: Any, **kwargs: Any) -> Any:
        given = args[place] if len(args) > place else kwargs.get("module")
        for module in given if isinstance(given, list | tuple) else [given]:
            if isinstance(module, nn.Module):
                _refuse_around(what, module)
        return original(*args, **kwargs)

    return asking


def _refuse_around(what: str, part: nn.Module) -> None:
    for name, module in part.named_modules():
        sharded = sharded_of(module)
        if sharded is None:
            continue
        ignored = getattr(part, "_ddp_params_and_buffers_to_ignore", ())
        if what == "DistributedDataParallel" and all(
            (f"{name}.{n}" if name else n) in ignored for n in sharded.names()
        ):
            return
        _refuse(what, f"the module '{name}' in it, which is" if name else "a model that is")
    if type(part) is nn.ParameterList and (held := _sharded_parameter(part)) is not None:
        _refuse(
            what.replace("DistributedDataParallel", "torch's replicate"),
            f"parameter '{held}' of a model that is",
        )


def _refuse(what: str, around: str) -> NoReturn:
    raise ShardingError(
        f"{_rank()}{what} around {around} sharded by OSDP: each rank holds only its own rows of the "
        f"parameters, but {what} would treat them as full parameters. OSDP averages gradients itself: "
        f"remove {what}, or shard the outermost model with osdp.fully_shard instead."
    )


def _sharded_parameter(part: nn.Module) -> str | None:
    given = {id(p) for p in part.parameters()}
    for model, _ in sharded_models():
        for name, p in model.named_parameters():
            if id(p) in given:
                return name
    return None


def refuse_others(model: nn.Module) -> None:
    """Raises ShardingError if a data-parallel wrapper is inside the model or around a part of it."""
    for name, module in model.named_modules():
        kind = type(module)
        place = f"'{name}'" if name else "the model itself"
        if "replicate" in (_get_registry(module) or ()):
            _refuse_inside(f"{place} is already under torch's replicate")
        if isinstance(module, _WRAPPERS) or _is_torchs(kind):
            what = "torch's fully_shard" if not isinstance(module, _WRAPPERS) else kind.__name__
            _refuse_inside(f"{place} is already under {what}")
    if _holder(model) is not None:
        gc.collect()  # an unreferenced one may not have been collected yet
        if (holder := _holder(model)) is not None:
            _refuse_inside(f"a part of the model is already in a {type(holder).__name__}")


def _is_torchs(kind: type[nn.Module]) -> bool:
    """Whether torch's fully_shard made this class. OSDP's FSDPModule is a subclass of torch's: Note [torch's FSDPModule]."""
    return issubclass(kind, fsdp2.FSDPModule) and not getattr(kind, "_osdp_fsdp_module", False)


def _holder(model: nn.Module) -> nn.Module | None:
    """A data-parallel wrapper around the model or a part of it."""
    parts = set(model.modules())
    kinds = {id(kind) for kind in _with_subclasses(_WRAPPERS)}
    for found in gc.get_objects():  # about a million: isinstance would take ten times as long
        if id(type(found)) not in kinds or "_modules" not in vars(found) or found in parts:
            continue
        holder: nn.Module = found
        if not parts.isdisjoint(holder.modules()):
            return holder
    return None


def _with_subclasses(classes: Iterable[type]) -> set[type]:
    return {each for kind in classes for each in (kind, *_with_subclasses(kind.__subclasses__()))}


def _refuse_inside(what: str) -> NoReturn:
    raise ShardingError(
        f"{_rank()}{what}, which averages or shards the same gradients itself. Pass the plain model "
        "to osdp.fully_shard (for a wrapper its .module, before it is wrapped)."
    )


def _rank() -> str:
    return f"rank {dist.get_rank()}: " if dist.is_initialized() else ""
