"""Layout: how a parameter of tensor parallelism is divided over its mesh, and the part of it that this rank holds.

torch's parallelize_module makes parameters DTensors. OSDP shards the part that a rank holds, as a plain parameter that
remembers its layout (osdp/sharding/tensor_parallel.py).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

_CLASSES = ("DTensor", "AsyncCollectiveTensor")
_LAYOUT = "_osdp_tensor_parallel"  # attribute of a plain parameter


@dataclass(frozen=True)
class Layout:
    """Of the whole parameter: `spec` is torch's DTensorSpec (mesh, placements, shape, strides)."""

    spec: Any

    @property
    def mesh(self) -> Any:
        return self.spec.mesh

    @property
    def placements(self) -> tuple[Any, ...]:
        return tuple(self.spec.placements)

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self.spec.tensor_meta.shape)

    @property
    def divided(self) -> bool:
        """Whether ranks hold different parts of it."""
        return any(not placement.is_replicate() for placement in self.placements)

    def parts_along(self, dim: int) -> int:
        """Into how many parts the dimension is divided."""
        sizes = self.mesh.mesh.shape
        return math.prod(n for n, p in zip(sizes, self.placements, strict=True) if p.is_shard(dim))

    def part_of(self, full: Tensor) -> Tensor:
        """This rank's part of a tensor of the full shape: a view."""
        lengths, begins = self._box()
        return full[tuple(slice(b, b + n) for b, n in zip(begins, lengths, strict=True))]

    def begins(self) -> tuple[int, ...]:
        """Where this rank's part begins in the whole, by dimension."""
        return self._box()[1]

    def _box(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        return compute_local_shape_and_global_offset(self.shape, self.mesh, self.placements)

    def wrap(self, local: Tensor) -> Any:
        """The DTensor of which `local` is this rank's part; it shares its memory and has no gradient."""
        from torch.distributed.tensor import DTensor

        make: Any = DTensor
        return make(local, spec_of(self.spec, local.dtype), requires_grad=False)

    def whole_of(self, local: Tensor) -> Tensor:
        """A tensor of the full shape, with memory of its own. Collective over the mesh."""
        return cast(Tensor, self.wrap(local).full_tensor()).clone(memory_format=torch.contiguous_format)

    def take_first(self, whole: Tensor) -> None:
        """Give a tensor that all ranks of the mesh have the values of the first. Collective over the mesh."""
        from torch import distributed as dist

        for axis in range(self.mesh.ndim):
            dist.broadcast(whole, group=self.mesh.get_group(axis), group_src=0)


def layout_of(tensor: Tensor) -> Layout | None:
    """The layout of a DTensor, or of a plain parameter that is a part of one; None for other tensors."""
    if is_dtensor(tensor):
        given: Any = tensor
        return Layout(given._spec)
    found: Layout | None = getattr(tensor, _LAYOUT, None)
    return found


def set_layout(parameter: Tensor, layout: Layout) -> None:
    setattr(parameter, _LAYOUT, layout)


def local_part(tensor: Any) -> Tensor:
    """What this rank holds of a DTensor, also one that is still in flight; other tensors themselves."""
    while name := _name_of(cast(type, type(tensor))):
        tensor = tensor._local_tensor if name == "DTensor" else tensor.elem
    result: Tensor = tensor
    return result


def storage_id(tensor: Tensor) -> int:
    """Identity of the storage of what this rank holds; 0 for sparse tensors, which have several."""
    tensor = local_part(tensor)
    return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else 0


def under_fsdp2(model: nn.Module) -> str | None:
    """The first module that torch's fully_shard has sharded, whose DTensors are not of tensor parallelism; None: none."""
    for name, module in model.named_modules():
        kinds: tuple[type, ...] = type(module).__mro__
        torchs = any(k.__name__ == "FSDPModule" and k.__module__.startswith("torch.") for k in kinds)
        if torchs and not getattr(type(module), "_osdp_fsdp_module", False):
            return str(name)
    return None


def is_dtensor(tensor: object) -> bool:
    """Also of a parameter that is one."""
    return _name_of(cast(type, type(tensor))) == "DTensor"


def wraps_local(types: Iterable[type]) -> bool:
    """Whether these classes, of the tensors that an ATen call is given, dispatch it to calls on what they wrap."""
    return any(map(_name_of, types))


# torch.distributed.tensor takes half a second to import, so it is not imported to ask.
@functools.cache
def _name_of(kind: type) -> str:
    """Of torch's classes of distributed tensors; "" of others."""
    for base in kind.__mro__:
        if base.__name__ in _CLASSES and base.__module__.startswith("torch.distributed."):
            return base.__name__
    return ""


def spec_of(spec: Any, dtype: torch.dtype) -> Any:
    """A DTensorSpec for values of `dtype`."""
    return (
        spec
        if spec.tensor_meta.dtype == dtype
        else spec.shallow_copy_with_tensor_meta(spec.tensor_meta._replace(dtype=dtype))
    )
