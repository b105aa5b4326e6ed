"""Memory that CPU kernels keep for backward and that fake tensors do not show."""

from __future__ import annotations

from typing import Any

import torch

_PAGE_BYTES = 4096


def hidden_workspace_bytes(func: Any, args: Any, out: Any) -> int:
    """Bytes of a workspace that the ATen call saves for backward, where `out`, a fake result, has it empty.

    oneDNN's LSTM layer keeps gates and states of all steps in a private layout. Its size was measured (fp32,
    hidden sizes 16 to 512): 15.1 values per step and 10 per sequence for each hidden unit, and three pages.
    """
    if getattr(func, "overloadpacket", None) is not torch.ops.aten.mkldnn_rnn_layer or not args[15]:
        return 0
    sequence, hidden_size, batch_first = args[0], args[10], args[14]
    if out[3].numel() > 0:
        return 0  # a real one: the saved-tensor hooks have seen it
    steps, batch = (sequence.shape[1], sequence.shape[0]) if batch_first else sequence.shape[:2]
    values = int(batch) * int(hidden_size) * (15.125 * int(steps) + 10)
    size = int(values) * int(sequence.element_size())
    return (-(-size // _PAGE_BYTES) + 3) * _PAGE_BYTES
