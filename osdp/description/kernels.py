"""Kernels: what the ATen calls of a forward and its backward compute, and the bytes that they move, by module."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from osdp.base.tensor_trees import tensors_in
from osdp.description.model_description import Kernel

aten = torch.ops.aten

# Note [Kernels]
# A call is one kernel, or the few of `_SEVERAL`, that reads its inputs and writes its outputs once: what caches keep from
# one kernel to the next is left out, and so is fusion, which torch.compile would do. Views move nothing. Attention counts
# the half of its square that a causal kernel executes, and its backward 2.5 forwards, since it computes the scores again.
# A convolution in 16 bits whose channels are not last reads and writes its tensors once more before, and once after: cuDNN
# converts them. On an H100 a ResNet-50 in bf16, predicted 42% too fast without, is 18% too fast with that
# (benchmarks/gpu_steps.py).

_ATTENTION_BACKWARD = (
    aten._scaled_dot_product_flash_attention_for_cpu_backward,
    aten._scaled_dot_product_flash_attention_backward,
    aten._scaled_dot_product_efficient_attention_backward,
    aten._scaled_dot_product_cudnn_attention_backward,
)
_PRODUCTS = (aten.mm, aten.addmm, aten.bmm, aten.baddbmm)
_CONVOLUTIONS = {aten.convolution: 8, aten.convolution_backward: 9}  # and where their groups are
# What is read and written again while channels become the last dimension, and the first again.
_CONVERSIONS = 3
_NO_KERNEL = (aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided)
_READ_PARTLY = (aten.embedding, aten.index_select, aten.gather, aten.index)  # as much as they write
_SEVERAL = {aten.native_layer_norm_backward: 2}  # its input's gradient, and its parameters'


@dataclass(frozen=True)
class Call:
    """One ATen call at one batch size."""

    name: str
    kind: str
    flops: int
    bytes: int
    dimensions: tuple[int, ...]  # of a product: rows, columns and what is summed over
    kernels: int


def call_of(func: Any, args: Any, kwargs: Any, out: Any) -> Call | None:
    """What the call `func(*args, **kwargs)` computed and moved; None if no kernel runs."""
    packet: Any = getattr(func, "overloadpacket", None)
    outputs = list(tensors_in(out if isinstance(out, (tuple, list)) else (out,)))
    inputs = list(tensors_in((args, kwargs)))
    if packet in _NO_KERNEL or not outputs or not any(t.numel() for t in outputs):
        return None
    given = {_identity(t) for t in inputs}
    if not func._schema.is_mutable and all(_identity(t) in given for t in outputs):
        return None  # a view
    if packet in _READ_PARTLY:
        inputs = [*inputs[1:], outputs[0]]
    moved = sum(_bytes(t) for t in {_identity(t): t for t in inputs}.values()) + sum(map(_bytes, outputs))
    if packet in _CONVOLUTIONS and _converted(args, groups=args[_CONVOLUTIONS[packet]]):
        moved *= _CONVERSIONS
    kind, flops, dimensions = _computed(packet, func, args, kwargs, out)
    return Call(str(packet), kind, flops, moved, dimensions, _SEVERAL.get(packet, 1))


def _converted(args: Any, groups: int) -> bool:
    """Whether a convolution's tensors change their layout: matrix units take 16 bits with channels last."""
    image: torch.Tensor = args[0]
    return groups == 1 and image.element_size() == 2 and image.dim() > 2 and image.stride(1) != 1


def _computed(packet: Any, func: Any, args: Any, kwargs: Any, out: Any) -> tuple[str, int, tuple[int, ...]]:
    if packet in ATTENTION:
        query, key, value = args[:3]
        causal = _argument(func, args, kwargs, "is_causal")
        return "attention", attention_flops(query, key, value) // (2 if causal else 1), ()
    if packet in _ATTENTION_BACKWARD:
        query, key, value = args[1:4]
        causal = _argument(func, args, kwargs, "is_causal")
        return "attention", attention_flops(query, key, value) * 5 // (4 if causal else 2), ()
    flops = flops_of(func, args, kwargs, out)
    if not flops:
        return "other", 0, ()
    if packet in _PRODUCTS:
        left, right = [a for a in args if isinstance(a, torch.Tensor)][-2:]
        return "product", flops, (left.shape[-2], right.shape[-1], left.shape[-1])
    if packet is aten.convolution and not kwargs:
        weight = args[1]
        return "product", flops, (weight.shape[0], weight[0].numel())
    return "product", flops, ()


def _argument(func: Any, args: Any, kwargs: Any, name: str) -> Any:
    """The argument of that name in the call; False where it is left out."""
    position = [a.name for a in func._schema.arguments].index(name)
    return args[position] if position < len(args) else kwargs.get(name, False)


def kernels_of(first: Sequence[Call], second: Sequence[Call] | None, batch: int) -> tuple[Kernel, ...]:
    """The calls at `batch` samples and at twice as many, as functions of the batch; equal ones together.

    Without a second list, or where it has other calls, everything grows with the batch.
    """
    if second is None or [c.name for c in first] != [c.name for c in second]:
        pairs: Iterable[tuple[Call, Call | None]] = ((c, None) for c in first)
    else:
        pairs = zip(first, second, strict=True)
    counts: dict[tuple[Any, ...], int] = {}
    for one, two in pairs:
        key = (
            one.kind,
            *parts(one.flops, two.flops if two else None, batch),
            *parts(one.bytes, two.bytes if two else None, batch),
            *_least(one.dimensions, two.dimensions if two else one.dimensions, batch),
        )
        counts[key] = counts.get(key, 0) + one.kernels
    return tuple(Kernel(key[0], count, *key[1:]) for key, count in counts.items())


def parts(one: int, two: int | None, batch: int) -> tuple[int, int]:
    """Of an amount at `batch` samples and at twice as many (None: not known), the part that grows with the batch, per
    sample, and the fixed one; exact at `batch` and, unless it grows faster than the batch, at twice that."""
    if two is None:
        return -(-one // batch), 0
    per_sample = min(max(0, two - one), one) // batch
    return per_sample, one - per_sample * batch


def _least(one: tuple[int, ...], two: tuple[int, ...], batch: int) -> tuple[int, int]:
    """The least dimension that does not grow with the batch, and the least that does, per sample; 0: none."""
    fixed = [a for a, b in zip(one, two, strict=True) if a == b]
    growing = [a // batch for a, b in zip(one, two, strict=True) if a != b]
    return min(fixed, default=0), min(growing, default=0)


def _identity(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else id(tensor)


def _bytes(tensor: torch.Tensor) -> int:
    """Bytes that are read or written: of an expanded tensor once."""
    own = tensor.numel() * tensor.element_size()
    return min(own, tensor.untyped_storage().nbytes()) if tensor.layout is torch.strided else own


aten = torch.ops.aten
ATTENTION = (
    aten._scaled_dot_product_flash_attention_for_cpu,
    aten._scaled_dot_product_flash_attention,
    aten._scaled_dot_product_efficient_attention,
    aten._scaled_dot_product_cudnn_attention,
)


def flops_of(func: Any, args: Any, kwargs: Any, out: Any) -> int:
    """2 x multiplications of the ATen call `func(*args, **kwargs)`; 0 if products do not dominate it."""
    packet = getattr(func, "overloadpacket", None)
    if packet in ATTENTION:  # torch 2.11's own count takes no grouped queries
        return attention_flops(*args[:3])
    if packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=out))
    if packet is aten.mkldnn_rnn_layer:
        return _recurrent(args[0], args[1:3])
    if packet in (aten.mv, aten.dot):
        return 2 * int(args[0].numel())
    if packet is aten._trilinear:  # nn.Bilinear, contracted one output feature at a time
        return 2 * int(args[1].numel()) * int(args[0].numel() // max(1, args[0].shape[-1]))
    return 0


def attention_flops(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> int:
    """Of both products of attention's forward, of the whole square."""
    *rows, inner = query.shape
    return 2 * math.prod(rows) * key.shape[-2] * (inner + value.shape[-1])


def _recurrent(sequence: torch.Tensor, weights: Any) -> int:
    """Flops of one direction of one layer: every step of every sequence multiplies by both weight
    matrices."""
    steps = sequence.numel() // max(1, sequence.shape[-1])
    return 2 * steps * sum(int(w.numel()) for w in weights)
