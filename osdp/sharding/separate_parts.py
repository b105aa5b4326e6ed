"""SeparateParts: parts of a model that are sharded over other ranks stay out of the sharding of the whole model.

Note [Parts over other ranks]
In a mixture of experts `FSDP(expert, process_group=experts)` is wrapped inside `FSDP(model)`: an expert is
sharded over its group of ranks and its gradients are averaged there, and other groups hold other experts. Such
a part stays a sharded model of its own, with its own runtime, lane and plan; the model around it neither
broadcasts, gathers nor reduces its tensors. Its first call and its backward happen within those of the whole:
each runtime joins autograd's graph task by itself, and collectives of the two run on different lanes, so
neither waits for the other.
  While the whole is described and sharded, a ModuleProxy takes the part's place, so that nothing finds its tensors.
Where the whole's forward is traced, the part computes as it did before it was sharded, on tensors without data
(`readable`).
  Functions for a whole model (no_sync, clip_grad_norm_, summon_full_params, state dicts) include its parts, see
nested_models.py.

`set_aside` does the same to single parameters and buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from torch import distributed as dist

from osdp.base.module_proxy import ModuleProxy
from osdp.base.modules import unwrapped
from osdp.sharding.nested_models import ranks_of
from osdp.sharding.resharding import Resharding
from osdp.sharding.sharded_model import runtime_of, sharded_models, sharded_of


class SeparateParts:
    """Context in which proxies take the places of the parts of `model` that are sharded over other ranks than those of
    `group` (None: the default group). Parts inside such parts go with them."""

    def __init__(
        self, model: nn.Module, group: dist.ProcessGroup | None, *, of_same_ranks: bool = False
    ) -> None:
        """`of_same_ranks`: also the parts that are sharded over the same ranks."""
        self._ranks: list[int] = []
        self._all = of_same_ranks
        self._places: list[tuple[nn.Module, str, nn.Module]] = []
        self._proxies: dict[nn.Module, ModuleProxy] = {}
        # Tensor by id: bytes on the device, whether it is trained.
        self._held: dict[int, tuple[int, int, bool]] = {}
        if not sharded_models() or not dist.is_initialized():
            return
        self._ranks = dist.get_process_group_ranks(group)
        self._places = list(self._found(model, set()))

    def _found(self, parent: nn.Module, seen: set[nn.Module]) -> Iterator[tuple[nn.Module, str, nn.Module]]:
        seen.add(parent)
        for key, child in parent._modules.items():
            if child is None:
                continue
            sharded = sharded_of(child)
            if sharded is not None and (self._all or ranks_of(sharded) != self._ranks):
                yield parent, key, child
            elif child not in seen:
                yield from self._found(child, seen)

    def __enter__(self) -> SeparateParts:
        for parent, key, child in self._places:
            part = unwrapped(child)
            for tensor in (*part.parameters(), *part.buffers()):
                if tensor.device == runtime_of(part).device:  # else it is offloaded
                    self._held[id(tensor)] = tensor.nbytes, tensor.element_size(), tensor.requires_grad
            parent._modules[key] = self._proxies.setdefault(part, ModuleProxy(part))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for parent, key, child in self._places:
            parent._modules[key] = child
            if error is None and (sharded := sharded_of(child)) is not None:
                sharded.runtime.part = True

    def resting_bytes(self, state: Callable[[int, int], int]) -> int:
        """Bytes of this rank's rows of the parts, of their gradients, and of an optimizer's `state`, of the rows' bytes and
        those of an element. Full parameters, which a part has while it computes, do not count."""
        held = self._held.values()
        return sum(size + (size + state(size, item) if trained else 0) for size, item, trained in held)

    @contextmanager
    def readable(self) -> Iterator[None]:
        """Context in which the parts can be traced. Raises ShardingError, with nothing changed, if one is in use."""
        with ExitStack() as stack:
            for part in self._proxies:
                stack.enter_context(Resharding(part, lent=True))
            yield


@contextmanager
def set_aside(model: nn.Module, tensors: Set[int]) -> Iterator[bool]:
    """Context in which these parameters and buffers of `model` (by id) are plain attributes of their modules, so that
    forwards find them and nothing else does. Gives whether there are any."""
    homes: list[tuple[dict[str, Any], str, list[tuple[str, Tensor | None]]]] = []
    for attributes in map(vars, model.modules()) if tensors else ():
        for held in ("_parameters", "_buffers"):
            container = attributes[held]
            if any(id(t) in tensors for t in container.values()):
                homes.append((attributes, held, list(container.items())))
                for key in [k for k, t in container.items() if id(t) in tensors]:
                    attributes[key] = container.pop(key)
    try:
        yield bool(homes)
    finally:
        for attributes, held, items in homes:
            container = attributes[held]
            now = dict(container)
            container.clear()
            for key, tensor in items:  # in the former order; others may be new objects, from the meta device
                container[key] = attributes.pop(key) if id(tensor) in tensors else now[key]
