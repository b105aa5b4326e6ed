"""Notices a column-wise linear whose output the model's forward divides as one process would.

torch's ColwiseParallel gives each rank consecutive rows of the weight. Where forward cuts the output in parts (`chunk(3)` of
a fused projection of queries, keys and values), a rank's part is not a part of each of them. Where it views the output in
groups (heads), a rank has fewer, of the same size: `view(b, t, -1, size)` is right, and `view(b, t, heads, -1)` makes as
many smaller ones, and `view(b, -1, heads, size)` heads of several places of the sequence. All are other numbers, and nothing
in shapes tells, so the first step looks at the calls beside what the description found in one process
(osdp/description/output_uses.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from osdp.description.output_uses import groups_of, made_by, maker

_CUTS = (
    *("chunk", "split", "tensor_split", "split_with_sizes", "unsafe_chunk", "unsafe_split"),
    *("__getitem__", "narrow"),
)
_VIEWS = ("view", "reshape", "unflatten")


class SplitOutputs(TorchFunctionMode):
    """Context of a forward. `groups`: of `modules`, in how many groups one process views their outputs.

    `cut`, `grouped`: names of modules whose output was cut along its last dimension, and viewed in as many groups as in one
    process.
    """

    def __init__(self, modules: Mapping[str, nn.Module], groups: Mapping[str, int]) -> None:
        super().__init__()
        self.cut: set[str] = set()
        self.grouped: set[str] = set()
        self._groups = groups
        self._outputs = {name: m.out_features for name, m in modules.items() if isinstance(m, nn.Linear)}
        self._hooks = [m.register_forward_hook(_marking(name)) for name, m in modules.items()]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        called = getattr(func, "__name__", "")
        if called in _CUTS or called in _VIEWS:
            given: Any = args[0] if args else None
            if (name := maker(given)) is not None:
                self._look(name, called in _CUTS, given, result)
        return result

    def _look(self, name: str, cuts: bool, given: Tensor, result: Any) -> None:
        first = result[0] if isinstance(result, (tuple, list)) and result else result
        if not isinstance(first, Tensor) or not first.dim():
            return
        if cuts and first.shape[-1] != given.shape[-1]:
            self.cut.add(name)
        groups = self._groups.get(name, 0)
        if cuts or not groups:
            return
        whole = (groups, self._outputs[name] // groups)
        of_all = first.dim() > 2 and first.shape[-2:] == whole and first.shape[:-1] != given.shape[:-1]
        if of_all or groups_of(given.shape, first.shape) == groups:
            self.grouped.add(name)

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()


def _marking(name: str) -> Any:
    def mark(module: nn.Module, args: Any, output: Any) -> None:
        made_by(module, name, output)

    return mark
