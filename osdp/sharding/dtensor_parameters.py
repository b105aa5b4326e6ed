"""Parameters that are DTensors between steps, as FSDP2's are.

Note [Parameters that are DTensors]
Scripts written for FSDP2 read `param.placements`, call `param.full_tensor()`, and have optimizers that need whole matrices
(Muon) work on DTensors. The parameter must stay one object, and a plain tensor inside: C++ switches its memory between rows
and full value, and hooks, optimizers and names refer to it (docs/dtensor.md compares the designs). So between passes its
class is `DTensorParameter`, whose `__torch_function__` gives torch a DTensor around the rows: every function and attribute,
`isinstance` included, has a DTensor's result. In a pass, where it shows the full value, the class is what it was: a step
computes with plain tensors and pays for the switch alone. Outside of passes it may show its full value, too (`unshard()`,
`summon_full_params`): then it is a plain tensor, as FSDP2's are.
  OSDP's own code always sees the tensor with the rows: the function looks where it is called from, and `as_rows` is for
calls of torch that read parameters.
  A gradient is a DTensor around `.grad` of the rows. No gradient leads from the DTensor of a parameter to the parameter: a
term of the loss that reads one between passes, which FSDP2 would differentiate, is refused in backward.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map

from osdp import _C
from osdp.errors import InvalidProblemError, ShardingError
from osdp.plan.plan import Plan
from osdp.sharding.dtensors import same_rows
from osdp.sharding.sharded_model import Sharded, splits_of
from osdp.sharding.sharded_parameters import ShardedParameter

_RECORD = "_osdp_dtensor"  # attribute of a parameter
_set_class: Any = object.__dict__["__class__"].__set__
# They are about the parameter itself; none reads its values.
_OWN = frozenset(
    (
        *("requires_grad", "requires_grad_", "is_leaf", "grad_fn", "retain_grad", "retains_grad", "_version"),
        *("register_hook", "register_post_accumulate_grad_hook"),
        *("_backward_hooks", "_post_accumulate_grad_hooks"),
        *("__hash__", "_is_param", "output_nr", "names", "_has_symbolic_sizes_strides"),
    )
)
_depth = 0  # of as_rows


@contextmanager
def as_rows() -> Iterator[None]:
    """Context in which torch's code, too, finds this rank's rows in parameters."""
    global _depth
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1


def finds_rows() -> bool:
    """Whether `as_rows` is running."""
    return _depth > 0


@dataclass
class _Record:
    """`shown`: the DTensor, whose writes count as the parameter's; `inner`: what it wraps, which has the rows' memory."""

    name: str
    kind: type[nn.Parameter]
    rows_shape: torch.Size
    wrap: Callable[[Tensor], Any]
    inner: Tensor
    shown: Any


class DTensorParameter(nn.Parameter):
    """The class of a parameter between passes: Note [Parameters that are DTensors]."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in ("__get__", "__set__"):
            name += func.__self__.__name__
        own = name.removeprefix("__get__").removeprefix("__set__") in _OWN or func is torch.autograd.grad
        if _depth or own or _sees_rows():
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if name == "__get__grad":
            return _gradient(args[0])
        if name in ("__set__grad", "__set__data"):
            return _assign(func, *args)
        # Of `inputs`, whose gradients are the parameters' own; hooks find DTensors.
        if func is torch.autograd.backward:
            edges = tuple(map(_edge, kwargs["inputs"] or ())) or None
            return func(*tree_map(_shown, args), **(kwargs | {"inputs": edges}))
        given = tree_map(_shown, args)
        with torch._C.DisableTorchFunctionSubclass():  # for those that show their full value
            result = func(*given, **tree_map(_shown, kwargs))
        # An in-place operation returns what it is given.
        return args[0] if args and type(args[0]) is cls and result is given[0] else result

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # of isinstance
        if _depth or _sees_rows():
            return type(self)
        return DTensor if _shows_rows(self) else nn.Parameter

    def __getattr__(self, name: str) -> Any:
        known = hasattr(DTensor, name) or name in ("_spec", "_local_tensor")
        if known and not _depth and not _sees_rows() and _shows_rows(self):
            return getattr(_shown(self), name)
        raise AttributeError(f"'{type(self).__name__}' object has no attribute {name!r}")


def _sees_rows() -> bool:
    """Whether what calls this was called by OSDP, or by torch to find a parameter's own node in the graph."""
    return str(sys._getframe(2).f_globals.get("__name__", "")).startswith(("osdp.", "torch.autograd.graph"))


def _record(parameter: Tensor) -> _Record | None:
    found: _Record | None = vars(parameter).get(_RECORD)
    return found


def _shows_rows(parameter: Tensor) -> bool:
    record = _record(parameter)
    with torch._C.DisableTorchFunctionSubclass():
        return record is not None and parameter.shape == record.rows_shape


def _shown(value: Any) -> Any:
    """The DTensor of a parameter that shows its rows; other values themselves."""
    if type(value) is not DTensorParameter or (record := _record(value)) is None:
        return value
    with torch._C.DisableTorchFunctionSubclass():
        if value.shape != record.rows_shape:
            return value
        if record.inner.data_ptr() != value.data_ptr() or record.inner.dtype != value.dtype:
            record.inner, record.shown = _wrapped(value, record.name, record.wrap)
        if record.shown.requires_grad != value.requires_grad:
            record.shown.requires_grad_(value.requires_grad)
    return record.shown


def _edge(value: Any) -> Any:
    """The edge of the graph that leads to such a parameter; other values themselves."""
    return torch.autograd.graph.get_gradient_edge(value) if type(value) is DTensorParameter else value


def _wrapped(parameter: Tensor, name: str, wrap: Callable[[Tensor], Any]) -> tuple[Tensor, Any]:
    with torch._C.DisableTorchFunctionSubclass():
        inner = parameter.detach()
    shown = wrap(inner)
    _C.Runtime.share_version(shown, parameter)
    shown._is_param = True
    if shown.is_floating_point() or shown.is_complex():
        shown.requires_grad_(True)
        shown.register_hook(functools.partial(_refuse_gradient, name))
        shown.requires_grad_(parameter.requires_grad)
    return inner, shown


def _refuse_gradient(name: str, gradient: object) -> NoReturn:
    raise ShardingError(
        f"a term of the loss reads parameter {name!r} outside of the model's forward (a penalty on the weights?), where it "
        "is this rank's part: no gradient leads from there to the parameter. Compute the term in forward, or use the "
        "optimizer's weight_decay"
    )


def _gradient(parameter: Tensor) -> Any:
    record = _record(parameter)
    with torch._C.DisableTorchFunctionSubclass():
        gradient = parameter.grad
        if gradient is None or record is None or gradient.shape != record.rows_shape:
            return gradient
    shown = record.wrap(gradient)
    _C.Runtime.share_version(shown, gradient)  # zeroing it under no_sync drops the gradient that is kept
    return shown


def _assign(setter: Any, parameter: Tensor, value: Any) -> None:
    """`parameter.grad = value`, and `.data`: DTensors, of which this rank's rows are taken."""
    if isinstance(value, Tensor):
        value = _shown(value)
    if isinstance(value, DTensor):
        spec = _shown(parameter)._spec
        if value.device_mesh != spec.mesh or value.placements != spec.placements:
            value = value.redistribute(spec.mesh, spec.placements)
        value = value._local_tensor
    with torch._C.DisableTorchFunctionSubclass():
        setter(parameter, value)


def refuse_slices(plan: Plan) -> None:
    """Raises InvalidProblemError for weights that are computed in slices."""
    if split := splits_of(plan):
        raise InvalidProblemError(
            f"dtensor_parameters=True: {min(split)!r} is computed in slices, and no placement of a DTensor describes what a "
            "rank holds of it: give its operator granularity 1 (osdp.search(..., granularity=1))"
        )


def show_dtensors(sharded: Sharded) -> None:
    """Make the model's parameters DTensors between passes, without those in slices. Collective where a mesh is made."""
    parameters = []
    for name, index in sharded.index.items():
        parameter = sharded.tree.known[index]
        # Another class of parameter may not be exchanged for ours: such a parameter stays as it is.
        if type(parameter) in (nn.Parameter, DTensorParameter) and not sharded.is_split(index):
            wrap = same_rows(ShardedParameter(sharded, index), parameter)
            inner, shown = _wrapped(parameter, name, wrap)
            kind = nn.Parameter if type(parameter) is DTensorParameter else type(parameter)
            vars(parameter)[_RECORD] = _Record(name, kind, parameter.shape, wrap, inner, shown)
            parameters.append(parameter)
    _place(parameters, False)
    sharded.dtensors = True
    disable: Any = torch.compiler.disable  # it runs within calls that may be compiled
    sharded.runtime.on_pass(functools.partial(disable(_place), parameters))


def shows_dtensors(parameters: Iterable[Tensor]) -> bool:
    """Whether any of them is a DTensor between passes, now or when it was sharded last."""
    return any(_record(p) is not None for p in parameters)


def _place(parameters: Sequence[nn.Parameter], in_pass: bool) -> None:
    for parameter in parameters:
        if (record := _record(parameter)) is not None:
            _set_class(parameter, record.kind if in_pass else DTensorParameter)


def hide_dtensors(parameters: Sequence[nn.Parameter]) -> None:
    """They are what they were before `show_dtensors`, until it or `show_again`."""
    _place(parameters, True)


def show_again(parameters: Sequence[nn.Parameter]) -> None:
    _place(parameters, False)


def shown_like(parameter: Tensor) -> Callable[[Tensor], Any] | None:
    """A function that wraps rows as `parameter`, a DTensor between passes, has them; None: it is a plain tensor."""
    record = _record(parameter)
    return None if record is None else record.wrap
