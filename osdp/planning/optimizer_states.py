"""What optimizers keep: one table of bytes per parameter."""

from __future__ import annotations

from dataclasses import dataclass

from osdp import _search
from osdp.errors import InvalidProblemError


@dataclass(frozen=True)
class OptimizerState:
    """Of a tensor: `copies` in its own dtype, and `per_256` bytes for every 256 elements, in so many `tensors`; where a rank
    holds fewer than `small` elements of it, `small_item` bytes for each instead."""

    copies: int = 0
    per_256: int = 0
    small: int = 0
    small_item: int = 0
    tensors: int | None = None  # None: as many as copies

    @property
    def kept_tensors(self) -> int:
        return self.copies if self.tensors is None else self.tensors

    def bytes(self, size: int, itemsize: int) -> int:
        """Of `size` bytes of a tensor whose elements have `itemsize`."""
        elements = -(-size // itemsize)
        if elements < self.small:
            return elements * self.small_item
        return self.copies * size + -(-elements * self.per_256 // 256)

    def core(self) -> _search.OptimizerState:
        return _search.OptimizerState(self.copies, self.per_256, self.small, self.small_item)


def _in_8_bits(moments: int) -> OptimizerState:
    """A byte for each element and an fp32 scale for every 256, as bitsandbytes and torchao have them; tensors of fewer than
    4,096 elements have fp32 moments."""
    return OptimizerState(0, moments * (256 + 4), 4096, 4 * moments, 2 * moments)


def _in_bf16(moments: int) -> OptimizerState:
    return OptimizerState(0, moments * 2 * 256, tensors=moments)


OPTIMIZERS = {
    "adamw": OptimizerState(2),
    "adam": OptimizerState(2),
    "sgd": OptimizerState(),
    "sgd-momentum": OptimizerState(1),
    "lion": OptimizerState(1),
    "rmsprop": OptimizerState(1),
    "adagrad": OptimizerState(1),
    "adamw-bf16": _in_bf16(2),
    "sgd-momentum-bf16": _in_bf16(1),
    "lion-bf16": _in_bf16(1),
    "adamw-8bit": _in_8_bits(2),
    "sgd-momentum-8bit": _in_8_bits(1),
    "lion-8bit": _in_8_bits(1),
}


def optimizer_state(name: str) -> OptimizerState:
    """Raises InvalidProblemError, with the names that there are."""
    if name not in OPTIMIZERS:
        raise InvalidProblemError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {name!r}")
    return OPTIMIZERS[name]
