"""Gives a module's own state-dict code the values of sharded parameters of other modules, when it reads them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from osdp.base.tensor_parallel import layout_of
from osdp.sharding.sharded_model import Sharded

# Of a tensor's shape; they communicate nothing.
_SHAPES = {"shape", "size", "numel", "nelement", "nbytes", "__len__", "stride"}
# The same for this rank's rows.
_ALIKE = {
    *("dtype", "device", "layout", "ndim", "dim", "ndimension", "name", "names", "itemsize", "element_size"),
    *("is_cpu", "is_cuda", "is_meta", "is_sparse", "is_quantized", "is_nested", "is_floating_point"),
    *("is_complex", "is_leaf", "is_inference", "is_signed", "is_contiguous", "get_device", "__hash__"),
    *("requires_grad", "requires_grad_", "grad", "grad_fn", "_version", "untyped_storage"),
    *("_backward_hooks", "register_hook", "retain_grad", "retains_grad"),
}


class ReadValues(TorchFunctionMode):
    """Note [Parameters of other modules]
    A module's own state-dict code may read parameters of its children (`self.head.weight.norm()`), which are shown in full
    only while the child's own turn lasts. So functions of torch that such code calls are watched: one that gets a
    sharded parameter gets its full value, gathered then, and its shape without a gather. `keep`: where the module is
    loaded, the code may write to them: they stay full until its end, and each rank keeps its rows. Otherwise one value is
    held at a time.
    """

    def __init__(self, sharded: Sharded, keep: bool) -> None:
        super().__init__()
        self.sharded, self.keep = sharded, keep
        self._shown: list[int] = []
        self._last: tuple[int, Tensor] | None = None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._last = None
        shown, self._shown = self._shown, []
        self.sharded.runtime.show_local(shown, self.keep and error is None)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name == "__get__":
            name = func.__self__.__name__
        if name not in _ALIKE and not self.sharded.in_use:
            args = tuple(self._read(each, name) for each in args)
            kwargs = {key: self._read(each, name) for key, each in (kwargs or {}).items()}
        return func(*args, **(kwargs or {}))

    def _read(self, given: Any, name: str) -> Any:
        if type(given) in (list, tuple):
            return type(given)(self._read(each, name) for each in given)
        if not isinstance(given, nn.Parameter) or not self.sharded.tree.is_sharded(given):
            return given
        runtime, index = self.sharded.runtime, self.sharded.tree.index[id(given)]
        layout = layout_of(given)
        if name in _SHAPES:
            with torch._C.DisableTorchFunction():
                shape = runtime.full_shape(index) if layout is None else layout.shape
                return torch.empty(shape, dtype=given.dtype, device="meta")
        if self._last is not None and self._last[0] == index:
            return self._last[1]
        shown = runtime.show_full([index], self.keep)
        if not shown or self.keep:
            self._shown += shown
            return given if layout is None else layout.wrap(given.detach())
        with torch._C.DisableTorchFunction():
            self._last = index, given.detach() if layout is None else layout.wrap(given.detach())
        runtime.show_local(shown, False)
        return self._last[1]
