"""Notices a column-wise linear whose output the model's forward cuts in parts: a fused projection of queries and keys.

torch's ColwiseParallel gives each rank consecutive rows of the weight. Of a fused projection that is not a part of each of
the things that are fused: a rank's `chunk(3)` is of other rows than one process's, and the result another number. Nothing in
shapes tells, so the first step looks at the calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_CUTS = ("chunk", "split", "tensor_split", "split_with_sizes", "unsafe_chunk", "unsafe_split")
_NAME = "_osdp_divided_output"  # attribute of such an output


class SplitOutputs(TorchFunctionMode):
    """Context of a forward. `found`: names of `modules` whose output was cut along its last dimension."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.found: set[str] = set()
        self._hooks = [m.register_forward_hook(_marking(name)) for name, m in modules.items()]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in _CUTS and isinstance(result, (tuple, list)) and len(result) > 1:
            given: Any = args[0] if args else None
            name = getattr(given, _NAME, None)
            if name is not None and result[0].shape[-1] != given.shape[-1]:
                self.found.add(name)
        return result

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()


def _marking(name: str) -> Any:
    def mark(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            setattr(output, _NAME, name)

    return mark
