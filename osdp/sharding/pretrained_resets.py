"""How models of transformers fill their modules: by `_init_weights(module)` of the PreTrainedModel around each, which also
knows what has no `reset_parameters` (a rotary embedding's frequencies)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

import torch
from torch import nn

Reset = Callable[[], object]


def pretrained_resets(model: nn.Module) -> Mapping[nn.Module, Reset]:
    """The reset of each module inside a PreTrainedModel, the innermost one's; empty where there is none."""
    utils = sys.modules.get("transformers.modeling_utils")
    kind = getattr(utils, "PreTrainedModel", None)
    found: dict[nn.Module, Reset] = {}
    if kind is not None:
        for outer in model.modules():  # parents first
            if isinstance(outer, kind):
                found |= {module: _reset(outer, module) for module in outer.modules()}
    return found


def _reset(outer: nn.Module, module: nn.Module) -> Reset:
    def reset() -> None:
        outer._init_weights(module)  # type: ignore[operator]
        # What it does not know keeps its constructor's values in one process.
        own = [
            t for t in (*module.parameters(recurse=False), *module.buffers(recurse=False)) if not t.is_meta
        ]
        if any(t.is_floating_point() and bool(torch.isnan(t).any()) for t in own):
            again = getattr(module, "reset_parameters", None)
            if callable(again):
                again()

    return reset
