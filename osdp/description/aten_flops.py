"""Floating-point operations of one dispatched call: matrix products, convolutions, attention and recurrent
layers.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

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
