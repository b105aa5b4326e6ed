"""transformers' Conv1D (GPT-2): an nn.Linear whose weight is stored as [in, out]."""

from __future__ import annotations

from torch import nn


def is_conv1d(module: nn.Module) -> bool:
    """Whether it is that class itself; subclasses may compute something else. transformers need not be installed."""
    cls = type(module)
    return cls.__name__ == "Conv1D" and cls.__module__ == "transformers.pytorch_utils"
