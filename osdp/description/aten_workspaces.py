"""Memory of CPU kernels, saved for backward or temporary, that fake tensors do not show.

Sizes were measured, alone, with one thread (torch 2.13), on an AMD EPYC with AVX-512: LSTM layers of 64 to 512 features and
8 to 100 steps, convolutions of 3 to 512 channels with kernels of 1 to 8. oneDNN chooses its kernels by the processor: with
AMX (an Intel Xeon) convolutions in 16 bits take other memory, kernels of 1 to 16. A description says nothing of the
processor, so the larger of the two counts.
"""

from __future__ import annotations

from typing import Any

import torch

_PAGE_BYTES = 4096
_SLACK_BYTES = 4 * _PAGE_BYTES
_CHANNELS = 16  # in a block of oneDNN's layout


def hidden_workspace_bytes(func: Any, args: Any, out: Any) -> int:
    """Bytes of a workspace that the ATen call saves for backward, if it is empty in the fake result `out`.

    oneDNN's LSTM layer keeps gates and states of all steps in a private layout, whose rows have the larger of its
    input's and its own features.
    """
    if getattr(func, "overloadpacket", None) is not torch.ops.aten.mkldnn_rnn_layer or not args[15]:
        return 0
    if out[3].numel() > 0:
        return 0  # a real workspace: the saved-tensor hooks have counted it
    steps, batch, features = map(int, args[0].shape)  # whatever `batch_first` says: ATen has transposed it
    hidden, itemsize = int(args[10]), int(args[0].element_size())
    widest = max(features, hidden)
    if itemsize == 4:
        values = steps * (8.875 * hidden + 6.25 * widest) + 10 * widest
    else:
        values = steps * (10.625 * hidden + 10.875 * widest) + 19 * widest
    size = int(batch * values) * itemsize
    return (-(-size // _PAGE_BYTES) + 3) * _PAGE_BYTES


def scratch_bytes(func: Any, args: Any, out: Any) -> int:
    """Bytes of temporary memory of the ATen call, besides its results `out`."""
    packet = getattr(func, "overloadpacket", None)
    if packet is torch.ops.aten.convolution:
        return _convolution(out, *args[:2], stride=args[3], transposed=args[6])
    if packet is torch.ops.aten.convolution_backward:
        return _convolution_backward(*args[:3], stride=args[4])
    if packet is torch.ops.aten.mkldnn_rnn_layer:
        return _lstm(args[0], args[1:3], args[10], backward=False)
    if packet is torch.ops.aten.mkldnn_rnn_layer_backward:
        return _lstm(args[0], args[1:3], args[15], backward=True)
    return 0


def _lstm(sequence: torch.Tensor, weights: Any, hidden: int, *, backward: bool) -> int:
    """oneDNN computes on copies of the weights in its own layout, and on those of their gradients, which it sums in
    float32; with all gates of all steps in float32, and of the gradients in bfloat16 twice the states."""
    copies = int(weights[0].nbytes + weights[1].nbytes)
    states = int(sequence.shape[0] * sequence.shape[1]) * hidden * int(sequence.element_size())
    if sequence.element_size() == 4:
        return 2 * copies + 4 * states + 1024 * hidden if backward else copies + 4 * states + 48 * _PAGE_BYTES
    return 3 * copies + 2 * states + 48 * _PAGE_BYTES if backward else copies + 24 * _PAGE_BYTES


def _convolution(
    result: torch.Tensor, given: torch.Tensor, weight: torch.Tensor, *, stride: Any, transposed: bool
) -> int:
    """oneDNN computes on copies in its own layout, whose channels are whole blocks, and copies the result back."""
    if not _by_onednn(given, weight, stride):
        return 0
    size, blocks = result.nbytes, _in_blocks(result)
    read = given.nbytes + weight.nbytes
    if transposed:
        return max(2 * size, read + blocks) + _SLACK_BYTES
    if given.element_size() == 4:
        return max(read + blocks - size, blocks) + _SLACK_BYTES
    table = 68 * _PAGE_BYTES if _is_product(weight, stride) else 0
    avx512 = max(read + blocks - size + table, blocks) + _SLACK_BYTES
    of_inputs = _in_blocks(given) + _in_blocks(weight) if _is_thin(given) else read
    amx = of_inputs + (80 if _is_thin(given) else 62) * _PAGE_BYTES
    return max(avx512, amx, 2 * blocks + _PAGE_BYTES)


def _convolution_backward(
    result: torch.Tensor, given: torch.Tensor, weight: torch.Tensor, *, stride: Any
) -> int:
    """First the input's gradient, from copies of the result's gradient and the weight; then the weight's gradient with
    its copy. In bfloat16 the weight's gradient is summed in float32, from one sample after the other.

    One that is a product, and is not given to oneDNN, computes the input's gradient of one sample after the other.
    """
    samples = max(1, int(given.shape[0]))
    if not _by_onednn(given, weight, stride):
        return given.nbytes // samples if given.dim() > 3 else 0
    copied = 0 if result.is_contiguous() else result.nbytes
    both = given.nbytes + _in_blocks(result)
    if given.element_size() == 4:
        return copied + max(both, weight.nbytes) + _SLACK_BYTES
    if _is_thin(given):  # with AMX all copies have whole blocks, the weight's gradient twice
        amx = _in_blocks(given) + _in_blocks(result) + 4 * _in_blocks(weight) + 96 * _PAGE_BYTES
    else:
        amx = both + both // samples + 2 * weight.nbytes + 60 * _PAGE_BYTES
    return copied + max(amx, 2 * given.nbytes + _SLACK_BYTES)


def _by_onednn(given: torch.Tensor, weight: torch.Tensor, stride: Any) -> bool:
    """Whether ATen gives the convolution to oneDNN: a product in float32, by a single thread, only with 16 samples."""
    return given.element_size() == 2 or not _is_product(weight, stride) or int(given.shape[0]) >= 16


def _is_thin(given: torch.Tensor) -> bool:
    """Whether all input channels are less than one block."""
    return given.dim() > 1 and int(given.shape[1]) < _CHANNELS


def _is_product(weight: torch.Tensor, stride: Any) -> bool:
    """Whether the convolution is one matrix product on its unmodified input."""
    return all(n == 1 for n in weight.shape[2:]) and all(s == 1 for s in stride)


def _in_blocks(tensor: torch.Tensor) -> int:
    channels = max(1, int(tensor.shape[1]))
    return tensor.nbytes // channels * (-(-channels // _CHANNELS) * _CHANNELS)
