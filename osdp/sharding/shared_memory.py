"""Refuses to shard a parameter whose memory another tensor of the model shares.

Note [Aliases of parameters]
A module may hold a view of a parameter, or its `.data`, as a buffer or as another parameter (`head.weight.data =
embed.weight.data`, `load_state_dict(assign=True)` of tied weights). In one process it follows the parameter. A sharded
parameter gets other memory, so it would keep the first values, silently. One Parameter in several modules is the right way
to tie, and works. Blocks may be sharded before the model around them, whose tensors are not known then, so what a
parameter's memory was is remembered for as long as something else holds it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from osdp.errors import ShardingError


def elements_overlap(tensor: Tensor) -> bool:
    """Whether several elements share memory (`expand`, some of `as_strided`): it cannot be written to."""
    reach = 0  # of the dimensions with smaller strides
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and tensor.numel() > 0:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


@dataclass(frozen=True)
class _Memory:
    """What a tensor occupies of its storage, in elements."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @staticmethod
    def of(tensor: Tensor) -> _Memory:
        return _Memory(
            int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride()), tensor.element_size()
        )

    @property
    def end(self) -> int:
        return self.offset + 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))

    def overlaps(self, other: _Memory) -> bool:
        if 0 in self.shape or 0 in other.shape:
            return False
        if self.itemsize != other.itemsize:  # views of another dtype: by their bytes
            both = (self, other)
            return max(m.offset * m.itemsize for m in both) < min(m.end * m.itemsize for m in both)
        begin, end = min(self.offset, other.offset), max(self.end, other.end)
        if max(self.offset, other.offset) >= min(self.end, other.end):
            return False
        taken = torch.zeros(end - begin, dtype=torch.bool)
        self._on(taken, begin).fill_(True)
        return bool(other._on(taken, begin).any())

    def _on(self, flat: Tensor, begin: int) -> Tensor:
        return flat.as_strided(self.shape, self.strides, self.offset - begin)


@dataclass(frozen=True)
class _Former:
    storage: StorageWeakRef
    memory: _Memory
    name: str
    trained: bool


# Storage -> what sharded parameters occupied of it, while others hold it.
_former: dict[int, list[_Former]] = {}


def refuse_aliases(model: nn.Module, sharded: Collection[str]) -> None:
    """Raises ShardingError naming a parameter that will be sharded (`sharded`: names), or has been, and a tensor of the
    model that shares its memory. Pairs that are not trained stay equal in any case."""
    by_storage: dict[int, list[tuple[str, Tensor]]] = {}
    for label, tensor in _tensors(model):
        by_storage.setdefault(tensor.untyped_storage()._cdata, []).append((label, tensor))
    for storage, held in by_storage.items():
        formers = [f for f in _former.get(storage, ()) if not f.storage.expired()]  # type: ignore[no-untyped-call]
        for i, (label, tensor) in enumerate(held):
            for former in formers:
                trained = former.trained or tensor.requires_grad
                if trained and _Memory.of(tensor).overlaps(former.memory):
                    _refuse(label, former.name)
            for other, alias in held[:i]:
                cut = next((n for n in (label, other) if n.removeprefix("parameter ") in sharded), None)
                trained = tensor.requires_grad or alias.requires_grad
                if cut is not None and trained and _Memory.of(tensor).overlaps(_Memory.of(alias)):
                    _refuse(other if cut is label else label, cut.removeprefix("parameter "))


def note_former(parameters: Iterable[tuple[str, nn.Parameter, Tensor]]) -> None:
    """Remember the memory that parameters had (name, parameter, former data) before they were sharded."""
    for key in [key for key, held in _former.items() if all(f.storage.expired() for f in held)]:  # type: ignore[no-untyped-call]
        del _former[key]
    for name, parameter, data in parameters:
        storage = data.untyped_storage()
        if not data.is_meta and data.numel() > 1 and parameter.untyped_storage()._cdata != storage._cdata:
            held = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            former = _Former(held, _Memory.of(data), name, parameter.requires_grad)
            _former.setdefault(storage._cdata, []).append(former)


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in model.named_parameters():
        if not parameter.is_meta:
            yield f"parameter {name}", parameter
    for name, buffer in model.named_buffers():
        if not buffer.is_meta and buffer.layout is torch.strided:
            yield f"buffer {name}", buffer


def _refuse(label: str, parameter: str) -> None:
    what, _, name = label.partition(" ")
    raise ShardingError(
        f"{what} '{name}' shares memory with parameter '{parameter}', which is sharded and gets other memory: it "
        "would keep the values of before. Tie modules by registering the same Parameter in each, compute a view in "
        "forward, or register a copy (.clone()), before fully_shard"
    )
