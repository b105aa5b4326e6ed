"""Methods other than forward that read sharded parameters: registered ones gather, others raise an error with
advice.

Note [Methods that read parameters]
Hooks run in calls of modules, not in `model.loss_of(x)`. Outside of module calls a sharded parameter is this
rank's rows, and `F.linear(x, self.head.weight)` would silently use a smaller matrix. Such a use differs from
those of optimizers and moving averages only in the other operands: these use tensors of the parameter's own
shape, a model uses activations and indices. So methods whose code names a parameter are watched when they are
called outside of forward: if a function in them gets a sharded parameter together with a tensor of a
different shape, that is an error. Free functions are not watched.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from osdp.base.modules import unwrapped
from osdp.base.names import joined
from osdp.errors import ShardingError
from osdp.sharding.gathering_calls import gathering
from osdp.sharding.module_changes import ModuleChanges
from osdp.sharding.sharded_model import Sharded, sharded_models
from osdp.sharding.torch_patches.init_functions import refuse_part

if TYPE_CHECKING:
    from osdp import _C
Method = Callable[..., Any]
# These take a matrix or a table and its operand, which may happen to have the shape of this rank's part.
_DRAWS = re.compile(r"(normal|uniform|random|bernoulli|exponential|cauchy|log_normal|geometric)_")
_PRODUCTS = re.compile(
    r"(bi)?linear|matmul|__r?matmul__|(add)?m[mv]|(badd)?bmm|einsum|tensordot|embedding(_bag)?|conv(_transpose)?\dd"
    r"|(layer|rms|group|batch)_norm"
)


def register_forward_method(module: nn.Module, name: str, reads: Iterable[str] | None = None) -> None:
    """Make `module.name(...)` gather the parameters that it reads, like forward (FSDP2:
    register_fsdp_forward_method).

    `module` is a sharded model or a module in it. `reads`: names, as in `module.named_parameters()`, of the parameters
    that the method reads by itself; by default those that forward reads by itself, and those that the method's code
    names as `self.head.weight`. Modules that it calls gather theirs in any case: a method that only calls modules
    (`generate`) need not be registered. Every rank must call the method. Within the method parameters are
    full or, if not listed, not readable: do not step an optimizer there.

    Raises ShardingError when the module is not part of a sharded model, has no such method or parameter, or the parameter is
    computed in slices (its full tensor never exists: call its module).

    >>> osdp.register_forward_method(model, "loss_of")
    >>> model.loss_of(tokens).backward()
    """
    module = unwrapped(module)
    reads = (reads,) if isinstance(reads, str) else None if reads is None else tuple(reads)
    model, sharded, prefix = part_of(module)
    method = getattr(module, name, None)
    if not callable(method) or name in ("forward", "__call__"):
        raise ShardingError(
            f"{type(module).__name__} has no method {name!r} to register (forward needs no registration)"
        )
    method = getattr(method, "_osdp_method", method)  # it may be watched or registered already
    parameters = {id(p): n for n, p in model.named_parameters()}
    label = joined(prefix, f"{name}()")
    chosen = _chosen(module, method, reads, label) | _read_by_forward(sharded, prefix, parameters)
    indices = {i: sharded.tree.index.get(i) for i in chosen}
    if apart := [parameters[i] for i, index in indices.items() if index is None]:
        raise ShardingError(
            f"{label} reads '{apart[0]}', which the model's sharding leaves alone: it is ignored, or of a part that is "
            "sharded over other ranks. Give reads= without it, and call the part"
        )
    known = {index: parameters[i] for i, index in indices.items() if index is not None}
    if split := [name for index, name in known.items() if sharded.is_split(index)]:
        raise ShardingError(
            f"{label} reads '{split[0]}', which is computed in slices: its full tensor never exists. Call its "
            "module instead, or give the operator granularity 1 in the plan"
        )
    hook = sharded.runtime.add_call(label, sorted(known), False, False, True)
    whole = prefix == ""
    gathers = gathering(
        module, method, hook, sharded.policy if whole else None, sharded.inputs_device if whole else None
    )

    @functools.wraps(gathers)
    def registered(*args: Any, **kwargs: Any) -> Any:
        if sharded.before_method is not None and module is model:
            sharded.before_method(model, name, args, kwargs)
            if (now := vars(module)[name]) is not registered:
                return now(*args, **kwargs)  # the model was sharded anew, and the method registered again
        return gathers(*args, **kwargs)

    registered._osdp_method = method  # type: ignore[attr-defined]
    ModuleChanges.on(model).put(module, name, registered)
    sharded.registered.append((weakref.ref(module), name, reads))


def named_in_forward(module: nn.Module) -> list[nn.Parameter]:
    """Parameters that the code of the class's forward names, on any path through it."""
    return list(_named_in(module, type(module).forward, set()))


def part_of(module: nn.Module) -> tuple[nn.Module, Sharded, str]:
    """The sharded model that contains `module`, its Sharded, and the module's name in it; the innermost one, if `module` is
    in a part of a model that is sharded over other ranks."""
    return _models_around(module)[0]


def outermost_around(module: nn.Module) -> tuple[nn.Module, Sharded, str]:
    """Like `part_of`, but the outermost one."""
    return _models_around(module)[-1]


def _models_around(module: nn.Module) -> list[tuple[nn.Module, Sharded, str]]:
    found = [
        (model, sharded, name)
        for model, sharded in sharded_models()
        for name, part in model.named_modules()
        if part is module
    ]
    if not found:
        raise ShardingError(
            f"{type(module).__name__} is not part of a sharded model: call osdp.fully_shard(model, plan) first"
        )
    return sorted(found, key=lambda each: len(each[2].split(".")) if each[2] else 0)


def _chosen(module: nn.Module, method: Method, reads: Iterable[str] | None, label: str) -> set[int]:
    if reads is None:
        return {id(p) for p in _named_in(module, getattr(method, "__func__", method), set())}
    own = dict(module.named_parameters(remove_duplicate=False))
    reads = list(reads)
    if unknown := [r for r in reads if r not in own]:
        raise ShardingError(
            f"{label} was registered as reading {unknown[0]!r}, which is not a parameter of "
            f"{type(module).__name__}"
        )
    return {id(own[r]) for r in reads}


def _read_by_forward(sharded: Sharded, prefix: str, present: Collection[int]) -> set[int]:
    here = {p.name for o in sharded.plan.description.operators if prefix in o.gather_at for p in o.parameters}
    here -= sharded.split_names  # gathered slice by slice
    planned = zip(sharded.planned, sharded.tree.known, strict=False)
    return {id(parameter) for name, parameter in planned if name in here and id(parameter) in present}


# --- parameters that a method's code names


def _codes(code: CodeType) -> Iterator[CodeType]:
    """`code` and the code of functions and comprehensions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


@functools.lru_cache(maxsize=1024)
def _paths(code: CodeType) -> frozenset[tuple[str, ...]] | None:
    """What a method's source reads of its first argument: ("head", "weight") for `self.head.weight`. None: no source."""
    try:
        source = inspect.getsource(code)
        tree = ast.parse(f"if 1:\n{source}" if source[:1].isspace() else source)
    except (OSError, SyntaxError):
        return None
    found = set()
    for node in ast.walk(tree):
        path: list[str] = []
        while isinstance(node, ast.Attribute):
            path.append(node.attr)
            node = node.value
        if path and isinstance(node, ast.Name) and node.id == code.co_varnames[0]:
            found.add(tuple(reversed(path)))
    return frozenset(found)


def _named_in(module: nn.Module, function: object, seen: set[object]) -> Iterator[nn.Parameter]:
    """Parameters that the code names, such as `self.head.weight`, also in methods of `self` that it calls."""
    if not isinstance(function, FunctionType) or function in seen or not function.__code__.co_varnames:
        return
    seen.add(function)
    paths = _paths(function.__code__)
    if paths is None:  # as in an interactive session: what it may name
        names = {n for code in _codes(function.__code__) for n in code.co_names}
        yield from (p for name, p in module.named_parameters() if names.issuperset(name.split(".")))
    for path in sorted(paths or ()):
        at: nn.Module | None = module
        for name in path:
            assert at is not None
            if (parameter := at._parameters.get(name)) is not None:
                yield parameter
                break
            owner, at = at, at._modules.get(name)
            if at is None:
                if owner is module:
                    yield from _named_in(module, getattr(type(module), name, None), seen)
                break


def watch_methods(model: nn.Module, sharded: Sharded) -> None:
    """Make methods whose code names a sharded parameter ("weight") raise if it is used like the full one."""
    cut = {name: p for name, p in model.named_parameters() if not sharded.is_whole(name)}
    leaves = {name.rpartition(".")[2] for name in cut}
    for path, module in model.named_modules():
        if any(map(sharded.tree.is_sharded, module.parameters())):
            label = joined(path, "apply")
            module.apply = _watched(module.apply, _Watch(label, cut, sharded.runtime))
        for name, function in _methods(type(module)).items():
            names = {n for code in _codes(function.__code__) for n in code.co_names}
            if name in module.__dict__ or not names & leaves:
                continue
            label = joined(path, name)
            setattr(module, name, _watched(getattr(module, name), _Watch(label, cut, sharded.runtime)))


def _methods(kind: type) -> dict[str, FunctionType]:
    """Methods that classes outside of torch add to those of nn.Module."""
    found: dict[str, FunctionType] = {}
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] in ("torch", "builtins"):
            continue
        for name, value in vars(base).items():
            if isinstance(value, FunctionType) and not hasattr(nn.Module, name):
                found.setdefault(name, value)
    return found


def _watched(method: Method, watch: _Watch) -> Method:
    @functools.wraps(method)
    def watched(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or watch.runtime.in_pass or watch.runtime.summoned:
            return method(*args, **kwargs)
        with watch:
            return method(*args, **kwargs)

    watched._osdp_method = method  # type: ignore[attr-defined]
    return watched


class _Watch(TorchFunctionMode):
    """Raises if a function gets this rank's part of a parameter together with operands for the full one."""

    def __init__(self, label: str, cut: dict[str, nn.Parameter], runtime: _C.Runtime) -> None:
        super().__init__()
        self.label, self.cut, self.runtime = label, cut, runtime
        self.names: dict[int, str] = {}  # storage of this rank's part (which views share) -> parameter name

    def __enter__(self) -> Any:
        self.names = {p.untyped_storage()._cdata: name for name, p in self.cut.items()}
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not (self.runtime.in_pass or self.runtime.summoned):
            self._check(func, [*args, *kwargs.values()])
        return func(*args, **kwargs)

    def _check(self, func: Any, values: list[Any]) -> None:
        if values and isinstance(values[0], Tensor) and _DRAWS.fullmatch(getattr(func, "__name__", "")):
            refuse_part(values[0], f"{func.__name__}() in {self.label}()")
        given = [t for value in values for t in (value if isinstance(value, (list, tuple)) else (value,))]
        tensors = [t for t in given if isinstance(t, Tensor) and t.layout is torch.strided]
        if len(tensors) < 2:
            return
        parts = {
            i: name for i, t in enumerate(tensors) if (name := self.names.get(t.untyped_storage()._cdata))
        }
        for i, name in parts.items():
            others = [t for j, t in enumerate(tensors) if j not in parts and t.numel() > 1]
            product = _PRODUCTS.fullmatch(getattr(func, "__name__", ""))
            if product or any(t.shape != tensors[i].shape for t in others):
                method = self.label.rpartition(".")[2]
                register = (
                    "make the method gather what it reads with osdp.register_forward_method(model, "
                    f"'{method}'), or call"
                )
                raise ShardingError(
                    f"{self.label}() uses parameter '{name}' outside of forward, where it is only "
                    f"this rank's part, {tuple(self.cut[name].shape)}. "
                    f"{'Call' if method == 'apply' else register} it inside "
                    "osdp.summon_full_params(model), or from forward"
                )
