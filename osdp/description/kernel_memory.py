"""KernelMemory: what kernels of a CPU, or of an accelerator, hold that fake CPU tensors do not show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from osdp.description import aten_workspaces
from osdp.description.model_description import ACCELERATOR, CPU

aten = torch.ops.aten

# Note [Kernels of another device]
# A forward is traced on fake CPU tensors, so ATen takes a CPU's kernels. Three of them hold other memory than an
# accelerator's. Attention with dropout, or with a bias that is trained or one for each head, is computed step by step on a
# CPU, and saves its scores several times; an accelerator's fused kernels compute scores and dropout again in backward. They
# take no bias whose rows are not stored one after the other, which a CPU's do.
# Convolutions of a CPU copy into oneDNN's layouts. An LSTM of cuDNN packs the weights of its layers into one buffer, which
# is saved for backward, and so are their gradients.

# Of scaled_dot_product_attention, those that may be given by position, and left out.
_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_LEFT_OUT = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False}
_BIAS_ALIGNMENT = 16  # elements, to which the memory-efficient kernel pads the rows of a bias
_OTHERS = (aten.convolution, aten.convolution_backward, aten.mkldnn_rnn_layer, aten.mkldnn_rnn_layer_backward)


class KernelMemory(TorchFunctionMode):
    """While entered, attention is what the device computes. `differs`: whether a call took memory that is another on the
    other kind of device."""

    def __init__(self, *, accelerator: bool) -> None:
        super().__init__()
        self.accelerator = accelerator
        self.differs = False

    @property
    def device(self) -> str:
        """As descriptions say it."""
        return ACCELERATOR if self.accelerator else CPU

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        call = {**_LEFT_OUT, **dict(zip(_ARGUMENTS, args, strict=False)), **(kwargs or {})}
        query, mask = call["query"], call["attn_mask"]
        trained = mask is not None and mask.requires_grad and torch.is_grad_enabled()
        biased = mask is not None and (mask.dim() == 3 or trained)
        step_by_step = call["dropout_p"] > 0 or biased  # on a CPU
        # An accelerator's fused kernels do not take a bias that is stored by position (T5's); a CPU's do.
        fused = query.dim() == 4 and (mask is None or mask.stride(-1) == 1)
        differs = query.dim() == 4 and fused == step_by_step
        self.differs |= differs
        if not (differs and self.accelerator):
            return func(*args, **(kwargs or {}))
        if not fused:
            with sdpa_kernel(SDPBackend.MATH):
                return func(*args, **(kwargs or {}))
        call["dropout_p"] = 0.0  # what it drops is not kept
        return _biased(**call) if biased else func(**call)

    def hidden_bytes(self, func: Any, args: Any, out: Any) -> int:
        """Of what the ATen call saves for backward, if it is empty in the fake result `out`."""
        hidden = aten_workspaces.hidden_workspace_bytes(func, args, out)
        self.differs |= hidden > 0
        return hidden + _weights_bytes(args) if hidden and self.accelerator else hidden

    def scratch_bytes(self, func: Any, args: Any, out: Any) -> int:
        """Of temporary memory of the ATen call, besides its results `out`."""
        packet = getattr(func, "overloadpacket", None)
        if packet not in _OTHERS:
            return 0
        self.differs = True
        if not self.accelerator:
            return aten_workspaces.scratch_bytes(func, args, out)
        return 2 * _weights_bytes(args) if packet is aten.mkldnn_rnn_layer_backward else 0


def _weights_bytes(args: Any) -> int:
    """Of an LSTM layer's weights and biases."""
    return sum(t.nbytes for t in args[1:5])


def _biased(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor,
    dropout_p: float,
    is_causal: bool,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """As an accelerator's memory-efficient kernel computes it, which gives a bias a gradient."""
    if enable_gqa:
        key, value = (t.repeat_interleave(query.size(-3) // t.size(-3), -3) for t in (key, value))
    keys = key.size(-2)
    padded = F.pad(attn_mask, (0, -keys % _BIAS_ALIGNMENT)) if keys % _BIAS_ALIGNMENT else attn_mask
    bias = padded[..., :keys].expand(*query.shape[:-1], keys)
    out: Tensor = aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, True, dropout_p, is_causal, scale=scale
    )[0]
    return out
