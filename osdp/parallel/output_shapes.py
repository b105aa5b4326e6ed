"""OutputShapes: what modules of other stages would return, without their parameters.

Note [Shapes of other stages]
A stage runs what the model's forward does between modules of other stages too, and that may only work with the shapes that
they have in one process: a class token is put before patches, positions are added. So a stand-in finds the shapes of what
its module returns with a copy on the meta device, once for each shape of inputs, and for all blocks that are alike. All
floating-point numbers of the copy are float32, since its inputs may have the dtype of another precision. Modules that get
something else than tensors and plain values (a cache that they write to), or whose forward does not run so, are taken to
return what passes between stages.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from osdp.base.kept_state import generators_kept
from osdp.base.tensor_trees import map_tensors, tensors_in
from osdp.description.passages import PLAIN

_log = logging.getLogger(__name__)
_MOST = 4096  # of shapes that are remembered, where sequences have many lengths
_OF_TORCH = frozenset(vars(nn.Module()))


class OutputShapes:
    """Of the modules of `model`, before it is cut."""

    def __init__(self, model: nn.Module) -> None:
        self._known: dict[Any, Any] = {}
        self._kinds: dict[str, Any] = {}  # by module
        self._copy: nn.Module | None = None
        held = [*model.parameters(), *model.buffers()]
        held += [t for m in model.modules() for t in tensors_in([v for v in vars(m).values() if _simple(v)])]
        try:
            self._copy = copy.deepcopy(model, {id(t): _like(t) for t in held})
        except Exception:  # a module that cannot be copied
            _log.debug("no copy of %s for shapes", type(model).__name__, exc_info=True)
            return
        for module in self._copy.modules():
            for hooks in (module._forward_pre_hooks, module._forward_hooks):
                hooks.clear()

    def of(self, name: str, args: Any, kwargs: Any) -> Any:
        """What the module `name` returns, on the meta device; None where that is not known."""
        if self._copy is None:
            return None
        if name not in self._kinds:
            self._kinds[name] = _kind(self._copy.get_submodule(name))
        try:
            key = self._kinds[name], _key(args), _key(kwargs)
        except TypeError:
            return None
        if key not in self._known:
            if len(self._known) == _MOST:
                self._known.clear()
            with torch._C.DisableTorchFunction():
                self._known[key] = self._computed(self._copy.get_submodule(name), name, args, kwargs)
        return self._known[key]

    def _computed(self, module: nn.Module, name: str, args: Any, kwargs: Any) -> Any:
        try:
            args, kwargs = map_tensors(_like, (args, kwargs))
            with torch.no_grad(), generators_kept():
                result = module(*args, **kwargs)
            _key(result)
        except Exception:  # of the model's own code
            _log.debug("shapes of what %s returns are not known", name, exc_info=True)
            return None
        return result if any(True for _ in tensors_in(result)) else None


def _like(tensor: Tensor) -> Tensor:
    dtype = torch.float32 if tensor.is_floating_point() else tensor.dtype
    empty = torch.empty(tensor.shape, dtype=dtype, device="meta")
    return nn.Parameter(empty, requires_grad=False) if isinstance(tensor, nn.Parameter) else empty


def _simple(value: Any) -> bool:
    return isinstance(value, (Tensor, list, tuple, dict))


def _kind(module: nn.Module) -> Any:
    """Equal for modules that are alike, but for the numbers of their tensors."""
    held = (*module.named_parameters(), *module.named_buffers())
    parts = tuple(
        (
            name,
            type(m),
            tuple(
                (k, v if isinstance(v, PLAIN) else id(v)) for k, v in vars(m).items() if k not in _OF_TORCH
            ),
        )
        for name, m in module.named_modules()
    )
    return tuple((name, t.shape, t.dtype) for name, t in held), parts


def _key(tree: Any) -> Any:
    """Equal for values of the same shapes. Raises TypeError for what is no tensor and no plain value."""
    if isinstance(tree, Tensor):
        return "tensor", tuple(tree.shape), tree.dtype
    if isinstance(tree, PLAIN):
        return type(tree), tree
    if type(tree) in (tuple, list):
        return type(tree), tuple(map(_key, tree))
    if isinstance(tree, Mapping) and (
        type(tree) is dict or type(tree).__module__.startswith("transformers.")
    ):
        return type(tree), tuple((name, _key(value)) for name, value in tree.items())
    raise TypeError(f"{type(tree).__name__} is not known")
