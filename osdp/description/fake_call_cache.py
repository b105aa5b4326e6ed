"""FakeCallCache: computes the result of an ATen call on fake tensors once for all similar calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

aten = torch.ops.aten

# Note [Alike calls]
# The blocks of a model are alike, so most ATen calls of a forward and its backward repeat earlier ones on
# other tensors of the same sizes. The fake mode caches results too, but a lookup takes 60 us, also for views,
# which take less time to compute than to look up. Nothing is assumed about blocks: their Python code, hooks
# and branches run every time.
# A result is cached if the call's arguments determine it: the function writes nothing, returns new tensors
# and does not depend on values; its tensors are fake, and their sizes, strides, dtype, device and dispatch
# keys (conjugate, negative, sparse, ...) are in the key; and its other arguments are plain values, whose
# types are in the key too, since 1 and 1.0 are equal but make tensors of different dtypes. Only dense tensors
# in a storage of their own size (`_dense`) are cached.

VIEWS = {
    aten.view.default,
    aten._unsafe_view.default,
    aten.t.default,
    aten.transpose.int,
    aten.expand.default,
    aten.unsqueeze.default,
    aten.slice.Tensor,
    aten.detach.default,
}
PLAIN = {
    *(int, float, bool, str, complex, type(None)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
}
_DEPENDS_ON_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class _Dense(NamedTuple):
    """A returned tensor that is alone in a storage of exactly its size."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


_Result = _Dense | tuple[_Dense | None, ...]  # one tensor, or several, some of them undefined


class FakeCallCache:
    """Executes ATen calls inside of `mode`: `call(func, args, kwargs)` returns the same as `func(*args,
    **kwargs)`."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._can_keep: dict[Any, bool] = {}  # by function
        self._results: dict[tuple[Any, ...], _Result | None] = {}  # None: not cached

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func is aten._grouped_mm.default and args[0].dtype is not torch.bfloat16:
            return _grouped_product(func, args, kwargs)
        if func in VIEWS and isinstance(args[0], FakeTensor):
            return view(func, args, kwargs)
        if func not in self._can_keep:
            self._can_keep[func] = _depends_on_arguments_alone(func)
        parts: list[Any] = [func, torch.get_default_dtype()]
        if not (self._can_keep[func] and self._add(parts, args) and self._add(parts, kwargs.items())):
            return func(*args, **kwargs)
        key = tuple(parts)
        if key not in self._results:
            out = func(*args, **kwargs)
            self._results[key] = self._result(out)
            return out
        result = self._results[key]
        if result is None:
            return func(*args, **kwargs)
        if isinstance(result, _Dense):
            return self._make(result)
        return tuple(None if dense is None else self._make(dense) for dense in result)

    def _add(self, key: list[Any], values: Iterable[Any]) -> bool:
        """Add to `key` the properties on which a result may depend; False if there may be others."""
        for value in values:
            kind = type(value)
            if kind is FakeTensor:
                if value.fake_mode is not self._mode or not _is_plain(value):
                    return False
                keys = torch._C._dispatch_keys(value).raw_repr()
                key += (value.shape, value.stride(), value.dtype, value.fake_device, keys)
            elif kind in PLAIN:
                key += (kind, value)
            elif kind is list or kind is tuple:
                key += (kind, len(value))
                if not self._add(key, value):
                    return False
            else:
                return False
        return True

    def _result(self, out: Any) -> _Result | None:
        if isinstance(out, torch.Tensor):
            return self._dense(out)
        if type(out) is not tuple:
            return None
        tensors = [t for t in out if t is not None]
        all_dense = all(isinstance(t, torch.Tensor) and self._dense(t) for t in tensors)
        if not all_dense or len({t.untyped_storage()._cdata for t in tensors}) < len(tensors):
            return None
        return tuple(None if t is None else self._dense(t) for t in out)

    def _dense(self, tensor: torch.Tensor) -> _Dense | None:
        """The tensor's description; None if a tensor made from it would not be the same."""
        if type(tensor) is not FakeTensor or not _is_plain(tensor):
            return None
        dense = _Dense(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.fake_device)
        again = self._make(dense)
        same = (
            tensor.storage_offset() == 0
            and tensor.untyped_storage().nbytes() == again.untyped_storage().nbytes()
            and torch._C._dispatch_keys(tensor) == torch._C._dispatch_keys(again)
        )
        return dense if same else None

    def _make(self, dense: _Dense) -> FakeTensor:
        with in_kernel_invocation_manager(self._mode):
            inner = torch.empty_strided(dense.shape, dense.stride, dtype=dense.dtype, device="meta")
        return FakeTensor(self._mode, inner, dense.device)


def _grouped_product(func: Any, args: Any, kwargs: Any) -> Any:
    """As in bfloat16: the kernels of CPUs take other dtypes, the one of tensors without data does not."""
    low = [a.to(torch.bfloat16) if isinstance(a, FakeTensor) and a.is_floating_point() else a for a in args]
    return func(*low, **kwargs).to(args[0].dtype)


def view(func: Any, args: Any, kwargs: Any) -> torch.Tensor:
    """The fake mode's result for one of VIEWS: the same call on the meta tensor inside the fake one."""
    fake = args[0]
    with in_kernel_invocation_manager(fake.fake_mode):
        inner = func(*args, **kwargs)
    return FakeTensor(fake.fake_mode, inner, fake.fake_device)


def _is_plain(tensor: FakeTensor) -> bool:
    return tensor.constant is None and tensor.layout is torch.strided


def _depends_on_arguments_alone(func: Any) -> bool:
    if not isinstance(func, OpOverload) or func.namespace != "aten" or _DEPENDS_ON_VALUES & set(func.tags):
        return False
    arguments, returns = func._schema.arguments, func._schema.returns
    takes_tensors = any("Tensor" in str(a.type) for a in arguments)  # without, there is the default device
    return takes_tensors and all(a.alias_info is None for a in (*arguments, *returns))
