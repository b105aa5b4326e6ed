"""Deferred modules, which share a parameter with another module, and are sharded with the model around both.

Note [Tied parameters in a list]
FSDP2 puts tied parameters into one group by fully_shard([embedding, head]). Here a parameter belongs to one sharded
model, and neither module contains the other. So both stay in full, marked as units with their options, until the model
around them is sharded, which finds the shared parameter and shards it once. A call before that would train each rank by
itself, so it is refused.
  Where they are wrapped one after the other, the first is sharded already when the second comes, whose parameter is then
this rank's rows. So only the second waits, and neither it nor its state dict may be read as if it had values. The
model around both takes the first one over as it takes any part (Note [Parts and the whole]).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from torch import distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle

from osdp.base.names import joined
from osdp.errors import ShardingError
from osdp.fsdp.marks import MARKS
from osdp.fsdp.options import Options
from osdp.sharding.hybrid_mesh import model_ranks
from osdp.sharding.sharded_model import in_sharded_models

# Module -> why it waits, and the hooks that refuse its use.
_deferred: WeakKeyDictionary[nn.Module, tuple[str, list[RemovableHandle]]] = WeakKeyDictionary()
_IN_LIST = "shares a parameter with another module of its fully_shard([...])"


def share_parameters(modules: Sequence[nn.Module]) -> bool:
    """Whether a parameter is in two of the modules."""
    seen: set[int] = set()
    for module in modules:
        own = {id(p) for p in module.parameters()}
        if own & seen:
            return True
        seen |= own
    return False


def tied_to_sharded(module: nn.Module, inside: Set[nn.Module]) -> str | None:
    """In words: a parameter of `module` that another sharded model has too, which is none of the modules `inside` of it and
    does not contain the module that holds the parameter; None if there is none."""
    owners = {id(p): (joined(name, key), m) for name, m in module.named_modules()
              for key, p in m._parameters.items() if p is not None}  # fmt: skip
    for other, name, parameter in in_sharded_models(module.parameters()):
        own, owner = owners[id(parameter)]
        if other not in inside and owner not in set(other.modules()):
            return (
                f"is tied to a {type(other).__name__} that is sharded already: its parameter {own!r} is the other "
                f"one's {name!r}"
            )
    return None


def defer(module: nn.Module, options: Options, why: str = _IN_LIST) -> None:
    """Mark the module; its calls raise ShardingError until a model around it is sharded. `why`: in words; if not that of a
    list, its parameters are rows, and its state dict is refused too."""
    MARKS[module] = options
    _take_up(module)
    hooks = [module.register_forward_pre_hook(_refuse)]
    if why != _IN_LIST:
        hooks += [
            module.register_state_dict_pre_hook(_refuse),  # type: ignore[no-untyped-call]
            module.register_load_state_dict_pre_hook(_refuse),  # type: ignore[no-untyped-call]
        ]
    _deferred[module] = why, hooks


def is_deferred(module: nn.Module) -> bool:
    return module in _deferred


def _take_up(module: nn.Module) -> str:
    why, hooks = _deferred.pop(module, ("", []))
    for hook in hooks:
        hook.remove()
    return why


def _refuse(module: nn.Module, *_: Any) -> None:
    raise ShardingError(
        f"{type(module).__name__} {_deferred[module][0]}, so both are sharded with the model around them: wrap it, or call "
        "fully_shard on that model before the first forward"
    )


@contextmanager
def taking_up(model: nn.Module, options: Options) -> Iterator[None]:
    """Context in which `model`, which contains deferred modules, is sharded: afterwards they may be called, unless there was
    an error.

    Raises ShardingError for one that was to be sharded over other ranks. Collective as `model_ranks` is.
    """
    found = {m: _deferred[m][0] for m in model.modules() if m in _deferred}
    whole = _ranks(options) if found else []
    for module, why in found.items():
        if (own := _ranks(MARKS[module])) != whole:
            raise ShardingError(
                f"{type(module).__name__} {why}, so both are sharded with the model around them: give both calls the "
                f"same mesh (ranks {own} and {whole})"
            )
    for module in found:
        _take_up(module)
    try:
        yield
    except BaseException:
        for module, why in found.items():
            defer(module, MARKS[module], why)
        raise


def _ranks(options: Options) -> list[int]:
    return dist.get_process_group_ranks(model_ranks(options.process_group, options.device_mesh)[0])
