"""Memory of CPU kernels, saved for backward or temporary, that fake tensors do not show."""

from __future__ import annotations

from typing import Any

import torch

_PAGE_BYTES = 4096


def hidden_workspace_bytes(func: Any, args: Any, out: Any) -> int:
    """Bytes of a workspace that the ATen call saves for backward, if it is empty in the fake result `out`.

    oneDNN's LSTM layer keeps gates and states of all steps in a private layout. Its size was measured (fp32,
    hidden sizes 16 to 512): 15.1 values per step and 10 per sequence for each hidden unit, and three pages.
    """
    if getattr(func, "overloadpacket", None) is not torch.ops.aten.mkldnn_rnn_layer or not args[15]:
        return 0
    sequence, hidden_size, batch_first = args[0], args[10], args[14]
    if out[3].numel() > 0:
        return 0  # a real workspace: the saved-tensor hooks have counted it
    steps, batch = (sequence.shape[1], sequence.shape[0]) if batch_first else sequence.shape[:2]
    values = int(batch) * int(hidden_size) * (15.125 * int(steps) + 10)
    size = int(values) * int(sequence.element_size())
    return (-(-size // _PAGE_BYTES) + 3) * _PAGE_BYTES


def scratch_bytes(func: Any, args: Any) -> int:
    """Bytes of temporary memory of the ATen call, besides its results.

    Convolutions: oneDNN computes on copies in its own layout. Measured (fp32, 3 to 512 channels, kernels of 1
    to 3, strides of 1 and 2): within 16 KiB of this, but for 0.2 MB more in backward with few channels. One that
    is a product is not given to oneDNN by a single thread where a batch is small: its backward computes the
    input's gradient of one sample after the other in a temporary.
    """
    packet = getattr(func, "overloadpacket", None)
    if packet is torch.ops.aten.convolution and not _is_product(args[1], args[3]):
        given, weight = args[:2]
        return _bytes(given) + _bytes(weight) + 4 * _PAGE_BYTES
    if packet is torch.ops.aten.convolution_backward and not _is_product(args[2], args[4]):
        # First the input's gradient, from copies of the result's gradient and the weight; then the weight's
        # gradient with its copy.
        result, given, weight = args[:3]
        return max(_bytes(given) + _bytes(result), _bytes(weight)) + 4 * _PAGE_BYTES
    if packet is torch.ops.aten.convolution_backward and args[1].dim() > 3 and args[1].shape[0] > 0:
        return _bytes(args[1]) // int(args[1].shape[0])
    return 0


def _is_product(weight: torch.Tensor, stride: Any) -> bool:
    """Whether the convolution is one matrix product on its unmodified input."""
    return all(n == 1 for n in weight.shape[2:]) and all(s == 1 for s in stride)


def _bytes(tensor: torch.Tensor) -> int:
    return int(tensor.numel()) * int(tensor.element_size())
