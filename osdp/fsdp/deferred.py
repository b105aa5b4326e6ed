"""Deferred: the modules of one fully_shard([...]) that share a parameter are sharded with the model around them.

Note [Tied parameters in a list]
FSDP2 puts tied parameters into one group by fully_shard([embedding, head]). Here a parameter belongs to one sharded
model, and neither module contains the other. So both stay in full, marked as units with their options, until the model
around them is sharded, which finds the shared parameter and shards it once. A call before that would train each rank by
itself, so it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

from torch import distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle

from osdp.errors import ShardingError
from osdp.fsdp.marks import MARKS
from osdp.fsdp.options import Options
from osdp.sharding.hybrid_mesh import model_ranks

_deferred: WeakKeyDictionary[nn.Module, RemovableHandle] = WeakKeyDictionary()


def share_parameters(modules: Sequence[nn.Module]) -> bool:
    """Whether a parameter is in two of the modules."""
    seen: set[int] = set()
    for module in modules:
        own = {id(p) for p in module.parameters()}
        if own & seen:
            return True
        seen |= own
    return False


def defer(module: nn.Module, options: Options) -> None:
    """Mark the module; its calls raise ShardingError until a model around it is sharded."""
    MARKS[module] = options
    if module in _deferred:
        _deferred.pop(module).remove()
    _deferred[module] = module.register_forward_pre_hook(_refuse_call)


def _refuse_call(module: nn.Module, inputs: Any) -> None:
    raise ShardingError(
        f"{type(module).__name__} shares a parameter with another module of its fully_shard([...]), so both are sharded "
        "with the model around them: call fully_shard on that model before the first forward"
    )


class Deferred:
    """Context in which `model`, which contains them, is sharded over `group` (None: the default group): afterwards they
    may be called, unless there was an error.

    Raises ShardingError for one that was to be sharded over other ranks. Collective as `model_ranks` is.
    """

    def __init__(self, model: nn.Module, options: Options) -> None:
        self._found = [m for m in model.modules() if m in _deferred]
        whole = _ranks(options) if self._found else []
        for module in self._found:
            if (own := _ranks(MARKS[module])) != whole:
                raise ShardingError(
                    f"{type(module).__name__} shares a parameter with another module of its fully_shard([...]), so both are "
                    f"sharded with the model around them: give both calls the same mesh (ranks {own} and {whole})"
                )

    def __enter__(self) -> None:
        for module in self._found:
            _deferred.pop(module).remove()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for module in self._found if error is not None else ():
            defer(module, MARKS[module])


def _ranks(options: Options) -> list[int]:
    return dist.get_process_group_ranks(model_ranks(options.process_group, options.device_mesh)[0])
