"""Notices a column-wise linear whose output the model's forward divides as one process would.

torch's ColwiseParallel gives each rank consecutive rows of the weight. Where forward cuts the output in parts (`chunk(3)` of
a fused projection of queries, keys and values), a rank's part is not a part of each of them. Where it views the output in
groups (heads), a rank has fewer, of the same size: `view(b, t, -1, size)` is right, and `view(b, t, heads, -1)` makes as
many smaller ones, and `view(b, -1, heads, size)` heads of several places of the sequence. What is computed over all outputs
(a softmax, a mean of squares, a gated linear unit) is computed over a part of them. All are other numbers, and nothing in
shapes tells, so the first step looks at the calls beside what the description found in one process
(osdp/description/output_uses.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode

from osdp.description.output_uses import groups_of, made_by, maker

_CUTS = (
    *("chunk", "split", "tensor_split", "split_with_sizes", "unsafe_chunk", "unsafe_split"),
    *("__getitem__", "narrow"),
)
_VIEWS = ("view", "reshape", "unflatten")
# What computes over a dimension, and the position of that argument.
_OVER = dict.fromkeys(("softmax", "log_softmax", "softmin", "glu", "cumsum", "flip", "sort", "logsumexp"), 1)
_OVER |= dict.fromkeys(("mean", "sum", "amax", "amin", "max", "min", "var", "std", "prod"), 1)
_OVER |= dict.fromkeys(("normalize", "norm", "vector_norm", "roll", "topk"), 2)
_OVER |= dict.fromkeys(("layer_norm", "rms_norm"), 9)  # always over the last
# Each element of a result is of one of the argument.
_EACH = {"add", "radd", "iadd", "sub", "rsub", "isub", "mul"}
_EACH |= {"rmul", "imul", "div", "truediv", "rtruediv", "itruediv"}
_EACH |= {"pow", "square", "sqrt", "rsqrt", "abs", "neg", "exp", "log", "clamp"}
_EACH |= {"sigmoid", "tanh", "relu", "gelu", "silu", "mish", "elu", "leaky_relu", "softplus"}
_EACH |= {"dropout", "to", "float", "double", "half", "bfloat16", "type_as", "contiguous", "clone"}


class SplitOutputs(TorchFunctionMode):
    """Context of a forward. `groups`: of `modules`, in how many groups one process views their outputs.

    `cut`, `grouped`, `mixed`: names of modules whose output was cut along its last dimension, viewed in as many groups as
    in one process, and computed over. `leaves`: the module whose output is the model's, or "".
    """

    def __init__(self, modules: Mapping[str, nn.Module], groups: Mapping[str, int]) -> None:
        super().__init__()
        self.cut: set[str] = set()
        self.grouped: set[str] = set()
        self.mixed: set[str] = set()
        self.leaves = ""
        self._groups = groups
        self._modules = modules
        self._outputs = {name: m.out_features for name, m in modules.items() if isinstance(m, nn.Linear)}
        self._hooks = [m.register_forward_hook(_marking(name)) for name, m in modules.items()]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        called = getattr(func, "__name__", "")
        if called in _CUTS or called in _VIEWS:
            given: Any = args[0] if args else None
            if (name := maker(given)) is not None:
                self._look(name, called in _CUTS, given, result)
        elif (called := called.strip("_")) in _OVER or called in _EACH:
            self._follow(called, args, kwargs or {}, result)
        return result

    def _follow(self, called: str, args: Any, kwargs: Mapping[str, Any], result: Any) -> None:
        first = result[0] if isinstance(result, tuple) and result else result
        # What is only looked at (logged) has no gradient, and DTensors know that they are parts.
        given = next((a for a in args[:2] if maker(a) is not None and not isinstance(a, DTensor)), None)
        if given is None or not isinstance(first, Tensor) or not first.requires_grad:
            return
        name = maker(given) or ""
        if called in _EACH:
            if first.shape == given.shape:
                made_by(self._modules[name], name, first)
        elif _is_over_last(called, args, kwargs, given.dim()):
            self.mixed.add(name)

    def left_by(self, output: Tensor) -> None:
        """`output` is the model's."""
        self.leaves = "" if isinstance(output, DTensor) else maker(output) or ""

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


def _is_over_last(called: str, args: Any, kwargs: Mapping[str, Any], dims: int) -> bool:
    asked = next((kwargs[key] for key in ("dim", "dims", "axis") if key in kwargs), args[_OVER[called] :])
    asked = asked if isinstance(asked, (tuple, list)) else (asked,)
    if any(isinstance(a, Tensor) for a in asked):  # the larger of two tensors
        return False
    asked = [d for a in asked for d in (a if isinstance(a, (tuple, list)) else (a,)) if type(d) is int]
    if not asked:  # the default: all, or the second of normalize
        return called != "normalize" or dims == 2
    return any(d % dims == dims - 1 for d in asked)


def _marking(name: str) -> Any:
    def mark(module: nn.Module, args: Any, output: Any) -> None:
        made_by(module, name, output)

    return mark
