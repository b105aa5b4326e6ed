"""Converts RuntimeErrors of torch to classes of osdp.errors.

Note [Errors of backward]
Parameters' memory is read and gradients' shapes are compared deep inside autograd's engine. Exceptions thrown
there become RuntimeErrors before any of our hooks runs; the only Python frame that sees them is
torch.autograd's call of the engine. While there are sharded models that call goes through a function here, which
raises any exception only after the models have been reset (Note [A backward that ends elsewhere] in
csrc/runtime/step/autograd_hooks.hpp). With versions of torch that have no such function, the errors remain
RuntimeErrors with the same text. Errors in forward: see CallHook in csrc/bindings/runtime.cpp.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.autograd
from torch import Tensor

from osdp import _C
from osdp.errors import ShardingError
from osdp.sharding.sharded_model import sharded_models
from osdp.sharding.torch_patches.replaced import replace

_UNGATHERED = re.compile(r"OSDP: parameter '.*' was read while it is not gathered")
# A gradient with the shape of this rank's part where one of the full parameter's shape is expected.
_SHAPES = re.compile(
    r"returned an invalid gradient at index \d+ - got (\[[\d, ]*\]) but expected shape compatible with (\[[\d, ]*\])"
)
# This rank's part where a node of the graph expects all of a parameter that it has saved, which is itself.
_BROADCAST = re.compile(
    r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\) at non-singleton dimension"
)
_SLICES = re.compile(
    r"osdp::split_\w+ cannot be (differentiated twice|transformed by torch\.func)|jvp is not implemented for the c\+\+ API"
)
# C++ hooks, as ours, have no form in a graph of compiled autograd.
_COMPILED_AUTOGRAD = re.compile("compiled_args nyi, see .Note: Compiled Autograd")

# What torch says of operands of different dtypes.
_DTYPES = re.compile(
    r"must have the same dtype|to have the same dtype|not the same dtype|expected scalar type \w+ but found|mixed dtype"
    r"|Input type \(.*\) and (weight|bias) type \(.*\) should be the same|to match query dtype"
)


def typed(error: RuntimeError, runtime: _C.Runtime | None = None, module: str = "") -> ShardingError | None:
    """The error to raise instead; None if it does not concern a sharded parameter. `runtime`: of the model in whose
    forward it was raised, in the call of `module`."""
    text = str(error)
    if _UNGATHERED.match(text):
        message = text
    elif shapes := _SHAPES.search(text):
        names = _parameters(*shapes.groups())
        if not names:
            return None
        message = (
            f"OSDP: a gradient of shape {shapes[1]} arrived for a parameter of shape {shapes[2]}: "
            f"{' or '.join(map(repr, names))} was used in the loss outside of forward (a penalty on "
            "the weights?), where it is only this rank's part. Use the optimizer's weight_decay; or "
            "compute the term in forward, or in a method of the model that gathers what it reads "
            "(osdp.register_forward_method(model, name)); or choose NO_SHARD in the plan"
        )
    elif (
        runtime is None
        and (sizes := _BROADCAST.search(text))
        and (names := _cut_to(*map(int, sizes.groups())))
    ):
        message = (
            f"OSDP: {text.rstrip('.')}: a term that was kept from forward reads {' or '.join(map(repr, names))} in a "
            "backward that begins outside of the model's outputs, where it is only this rank's part. Add the term to the "
            "loss that the model's output gives and call backward once, or return it from forward"
        )
    elif _SLICES.search(text) and (names := _in_slices(runtime)):
        message = (
            f"OSDP: {' and '.join(map(repr, names))} {'is' if len(names) == 1 else 'are'} computed in slices, which has no "
            f"second derivatives, none in forward mode and no torch.func transforms ({text.rstrip('.')}). Choose "
            "granularity 1 in the plan"
        )
    elif _COMPILED_AUTOGRAD.search(text):
        message = (
            "OSDP: compiled autograd cannot run the backward of a sharded model, whose gathers and reductions it would "
            "have to trace. Leave it off (torch._dynamo.config.compiled_autograd = False, and no call of "
            "torch._dynamo.compiled_autograd): torch.compile of the model or of its blocks compiles it without that"
        )
    elif _DTYPES.search(text) and (dtype := _computed_in(runtime)) is not None:
        message = (
            f"OSDP: {text.rstrip('.')}, in {repr(module) if module else 'the forward'}. Under mixed precision parameters "
            f"are {dtype} in forward, and so are the arguments that the model and its blocks are called with; a tensor that "
            "the forward makes (torch.ones, a table of positions) is not cast. Make it in the dtype of what it meets "
            "(dtype=x.dtype), or keep modules in full precision: full_precision_modules= of osdp.MixedPrecision"
        )
    else:
        return None
    instead = ShardingError(message)
    instead.__traceback__ = error.__traceback__
    return instead


def _computed_in(runtime: _C.Runtime | None) -> torch.dtype | None:
    """The dtype of mixed precision's computation; None without."""
    policies = (s.policy for _, s in sharded_models() if s.runtime is runtime and s.policy is not None)
    return next(
        (own.param_dtype for p in policies for own in (p, *(o for _, o in p.parts or ())) if own.param_dtype),
        None,
    )


def _cut_to(one: int, other: int) -> list[str]:
    """Names of the parameters that are as long as one of the two along some dimension, and this rank's part as the other."""
    return _names(
        lambda part, whole: one != other and {one, other} in map(set, zip(part, whole, strict=False))
    )


def _in_slices(runtime: _C.Runtime | None) -> list[str]:
    models = [s for _, s in sharded_models() if runtime is None or s.runtime is runtime]
    return sorted({name for s in models for name in s.split_names})


def _parameters(part: str, whole: str) -> list[str]:
    """Names of the parameters whose part on this rank has this shape."""
    return _names(lambda own, full: (str(list(own)), str(list(full))) == (part, whole))


def _names(fits: Callable[[Sequence[int], Sequence[int]], bool]) -> list[str]:
    """Names of the sharded parameters for which `fits(shape of this rank's part, full shape)`."""
    found = [
        name
        for model, sharded in sharded_models()
        for name, parameter in model.named_parameters()
        if name in sharded.index and fits(parameter.shape, sharded.full_shape(name))
    ]
    return list(dict.fromkeys(found))


def _leaves(outputs: Iterable[Any]) -> list[Tensor]:
    """The tensors that a backward of `outputs` (tensors or edges of their graph) accumulates gradients into."""
    found: list[Tensor] = []
    nodes = [each.grad_fn if isinstance(each, Tensor) else each.node for each in outputs]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if node is None:
            continue
        if isinstance(leaf := getattr(node, "variable", None), Tensor):
            found.append(leaf)
        following = {next_node for next_node, _ in node.next_functions} - seen
        seen |= following
        nodes += following
    return found


def install_typed_errors() -> None:
    functorch: Any = torch._C._functorch
    is_differentiated = getattr(functorch, "is_gradtrackingtensor", lambda tensor: False)
    _C.set_python_functions(typed, is_differentiated, _unwrapped)
    if hasattr(torch.autograd, "_engine_run_backward"):
        replace(torch.autograd, "_engine_run_backward", _watched)


def _unwrapped(tensor: Tensor) -> Tensor | None:
    functorch: Any = torch._C._functorch
    return functorch.get_unwrapped(tensor) if functorch.is_functorch_wrapped_tensor(tensor) else None


def _watched(run: Callable[..., Any]) -> Callable[..., Any]:
    """torch's call of the engine, which every backward and autograd.grad of Python goes through."""

    @functools.wraps(run)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("accumulate_grad", len(args) > 6 and args[6]):
            _C.check_asked([each for each in _inputs(args, kwargs) if isinstance(each, Tensor)])
        try:
            gradients = run(*args, **kwargs)
        except BaseException as error:
            _C.await_backwards()
            instead = None
            if isinstance(error, RuntimeError) and type(error) in (RuntimeError, NotImplementedError):
                instead = typed(error)
            if instead is None:
                raise
        else:
            creates_graph = args[3] if len(args) > 3 else kwargs.get("create_graph", False)
            if creates_graph:
                _watch_graph_of(gradients, args, kwargs)
            return gradients
        raise instead

    return run_backward


def _inputs(args: Any, kwargs: Any) -> Any:
    return kwargs.get("inputs", args[4] if len(args) > 4 else ())


def _watch_graph_of(gradients: Any, args: Any, kwargs: Any) -> None:
    """A backward of these gradients is one of the models, too."""
    made: list[Any] = list(gradients or ())
    if not made:  # they are in .grad
        into = _inputs(args, kwargs) or _leaves(args[0])
        made = [leaf.grad for leaf in into if isinstance(leaf, Tensor)]
    ends: list[Any] = _C.ends_of_graph([each for each in made if each is not None])
    for gradient in ends:
        if gradient.grad_fn is not None:
            gradient.register_hook(_C.begin_backwards)
