"""The values of a model that was built on the meta device, made a few modules at a time.

    with torch.device("meta"):
        model = Model()                     # no memory
    osdp.fully_shard(model, plan)           # every module's reset_parameters() runs, on one module's memory at a time

Note [Initialisation piece by piece]
Modules are initialised children first, in the order of `named_modules`, like constructors. In its turn a
module's own parameters and buffers get memory, its `reset_parameters` (or `_reset_parameters`, or the
caller's `param_init_fn`) fills them, rank 0's values are broadcast, each rank keeps its rows, and the memory
is freed. The order and the random numbers drawn depend on the model alone: any plan on any number of ranks
gives the same values. All ranks run it, although only rank 0's values are used, so that their random
generators stay synchronized.

If a module's reset also writes to its submodules (MultiheadAttention; a container that initialises its
layers), those need memory too. Such modules are found by first running each reset on the meta device, where
it costs nothing, and recording the tensors it writes to. Such a module and all its submodules are one turn,
with memory for all of them.

Modules inside a model of transformers are filled by that model's `_init_weights` instead (pretrained_resets.py).

FSDP2's scripts initialise after sharding (Note [Initialising after to_empty]), so `fully_shard` without a plan leaves
what no reset fills to them, or a reset leaves: it is NaN until then, with a warning. An integer would be a wrong number
that nothing notices, so it is refused.

A tied parameter is filled by the first module that holds it; later ones get scratch memory in its place.
A parameter that tensor parallelism divides is made in whole, and each rank keeps its rows of its part.
Tensors that a reset does not write would be garbage, so memory is filled with NaN first, and remaining NaNs
are an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from osdp.base.kept_state import generators_kept
from osdp.base.names import joined
from osdp.base.tensor_parallel import layout_of
from osdp.base.tensor_trees import written_to
from osdp.base.warned import warn
from osdp.errors import ShardingError

InitFunction = Callable[[nn.Module], Any]
Resets = Mapping[nn.Module, Callable[[], Any]]
_METHODS = ("reset_parameters", "_reset_parameters")


@dataclass(frozen=True)
class Turn:
    """Modules that are initialised with memory at the same time, children first; names as in `named_modules`."""

    modules: tuple[tuple[str, nn.Module], ...]


def own_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The module's own parameters and buffers on the meta device, by their names in the module."""
    for key, tensor in (*module._parameters.items(), *module._buffers.items()):
        if tensor is not None and tensor.is_meta:
            yield key, tensor


def turns_of(
    model: nn.Module,
    init: InitFunction | None,
    only_unsaved: bool,
    resets: Resets,
    lenient: bool,
) -> list[Turn]:
    """The turns in order. `only_unsaved`: only modules with buffers that checkpoints do not contain. `resets`: of modules
    that are filled by a model around them, in place of `reset_parameters`. `lenient`: floating-point tensors of a module
    that has neither are left to the script.

    Raises ShardingError naming a module that cannot be initialised: one that holds tensors on the meta device and has no
    `reset_parameters`, where there is no `init`.
    """
    order = list(_children_first(model, "", set()))
    turn_of = {id(module): position for position, (_, module) in enumerate(order)}
    filled: set[int] = set()
    for position, (name, module) in enumerate(order):
        own = [(key, t) for key, t in own_tensors(module) if id(t) not in filled]
        left = init is None and _reset_of(module, resets) is None
        floats = [key for key, t in own if t.is_floating_point() or t.is_complex()]
        if lenient and left and floats:
            where = joined(name, floats[0])
            _tell_left(where, f"{type(module).__name__} has no reset_parameters to")
        if (only_unsaved or lenient) and left:
            own = [(key, t) for key, t in own if key not in floats]
        if own and left and _wanted(module, only_unsaved):
            key, tensor = own[0]
            kind = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
            raise ShardingError(
                f"module {name!r} ({type(module).__name__}) has {kind} {key!r} on the meta device but "
                "no reset_parameters to fill it: add one, pass param_init_fn= to initialise modules, "
                "or build this module outside of torch.device('meta')"
            )
        filled |= {id(t) for _, t in own}
        if init is None and _writes_below(module, resets):
            for below in module.modules():
                turn_of[id(below)] = position
    groups: dict[int, list[tuple[str, nn.Module]]] = {}
    for name, module in order:
        groups.setdefault(turn_of[id(module)], []).append((name, module))
    turns, filled = [], set()
    for _, members in sorted(groups.items()):
        due = {
            id(t)
            for _, module in members
            if _wanted(module, only_unsaved)
            and not ((only_unsaved or lenient) and init is None and _reset_of(module, resets) is None)
            for _, t in own_tensors(module)
        }
        if due - filled:
            turns.append(Turn(tuple(members)))
            filled |= {id(t) for _, module in members for _, t in own_tensors(module)}
    return turns


def _tell_left(where: str, why: str) -> None:
    warn(
        f"OSDP: {where!r} is on the meta device, and {why} fill it: it is NaN until the script fills it, after to_empty() "
        "or by a state dict"
    )


def run_turn(
    turn: Turn,
    init: InitFunction | None,
    device: torch.device,
    filled: set[int],
    resets: Resets,
    lenient: bool,
) -> dict[int, Tensor]:
    """Run the turn on `device`; returns the values by the id of the meta tensors that they belong to.

    `filled`: ids of the tensors that have values already. The modules are restored. Raises ShardingError
    naming the module that failed, or left a tensor unwritten.
    """
    made: dict[int, Tensor] = {}
    versions: dict[int, int] = {}
    was = _held(module for _, module in turn.modules)
    meta = {(id(module), key): t for _, module in turn.modules for key, t in own_tensors(module)}
    try:
        due = {
            id(module)
            for _, module in turn.modules
            if any(id(t) not in filled for _, t in own_tensors(module))
        }
        for _, module in turn.modules:
            for key, tensor in list(own_tensors(module)):
                if id(tensor) not in made:
                    made[id(tensor)] = _with_memory(tensor, device)
                    versions[id(tensor)] = made[id(tensor)]._version
                _put(module, key, made[id(tensor)])
        for name, module in turn.modules:
            container = not _items(module) and init is None and _reset_of(module, resets) is not None
            if id(module) in due or container:
                _run(name, module, init, resets)
        result: dict[int, Tensor] = {}
        for name, module in turn.modules:
            for key, tensor in _items(module):
                wanted = meta.get((id(module), key))
                if wanted is None or id(wanted) in filled:
                    continue
                where = joined(name, key)
                if lenient and init is None and tensor.isnan().any():
                    if _reset_of(module, resets) is not None:  # of those without, `turns_of` has told
                        _tell_left(where, f"the reset of {type(module).__name__} does not")
                    continue
                _check(where, module, tensor, wanted, device, versions[id(wanted)])
                result[id(wanted)] = tensor.detach()
        return result
    finally:
        _put_back(was)


Held = tuple[nn.Module, dict[str, nn.Parameter | None], dict[str, Tensor | None]]


def _held(modules: Iterable[nn.Module]) -> list[Held]:
    return [(module, dict(module._parameters), dict(module._buffers)) for module in modules]


def _put_back(was: list[Held]) -> None:
    """Restore the modules' tensors as recorded by `_held`."""
    for module, parameters, buffers in was:
        module._parameters.clear()
        module._parameters.update(parameters)
        module._buffers.clear()
        module._buffers.update(buffers)


def _children_first(module: nn.Module, name: str, seen: set[int]) -> Iterator[tuple[str, nn.Module]]:
    seen.add(id(module))
    for key, child in module.named_children():
        if id(child) not in seen:
            yield from _children_first(child, joined(name, key), seen)
    yield name, module


def _wanted(module: nn.Module, only_unsaved: bool) -> bool:
    return not only_unsaved or any(
        key in module._non_persistent_buffers_set for key, _ in own_tensors(module)
    )


def _reset_of(module: nn.Module, resets: Resets) -> Callable[[], Any] | None:
    if module in resets:
        return resets[module]
    found = (getattr(module, method, None) for method in _METHODS)
    return next((reset for reset in found if callable(reset)), None)


def _run(name: str, module: nn.Module, init: InitFunction | None, resets: Resets) -> None:
    reset = _reset_of(module, resets)
    what = "param_init_fn" if init is not None else "reset_parameters"
    try:
        with torch.no_grad():
            if init is not None:
                init(module)
            elif reset is not None:
                reset()
    except Exception as error:
        raise ShardingError(
            f"{what} of module {name!r} ({type(module).__name__}) failed: {type(error).__name__}: {error}"
        ) from error


def _items(module: nn.Module) -> list[tuple[str, Tensor]]:
    found = (*module._parameters.items(), *module._buffers.items())
    return [(key, tensor) for key, tensor in found if tensor is not None]


def _put(module: nn.Module, key: str, tensor: Tensor) -> None:
    if key in module._parameters:
        assert isinstance(tensor, nn.Parameter)
        module._parameters[key] = tensor
    else:
        module._buffers[key] = tensor


def _with_memory(tensor: Tensor, device: torch.device) -> Tensor:
    fresh = torch.empty(_shape(tensor), dtype=tensor.dtype, device=device)
    if tensor.is_floating_point() or tensor.is_complex():
        fresh.fill_(torch.nan)
    if isinstance(tensor, nn.Parameter):
        fresh = nn.Parameter(fresh, requires_grad=tensor.requires_grad)
        fresh.__dict__.update(tensor.__dict__)
    return fresh


def _shape(tensor: Tensor) -> torch.Size:
    """Of the whole, where tensor parallelism has left this rank a part: it is initialised in whole."""
    layout = layout_of(tensor)
    return tensor.shape if layout is None else layout.shape


def _check(
    where: str, module: nn.Module, got: Tensor, wanted: Tensor, device: torch.device, version: int
) -> None:
    for what, now, then in (("shape", got.shape, _shape(wanted)), ("dtype", got.dtype, wanted.dtype)):
        if now != then:
            raise ShardingError(f"initialising {where} changed its {what} from {then} to {now}")
    if got.device.type != device.type:
        raise ShardingError(f"initialising {where} left it on {got.device}; expected {device}")
    if got.is_floating_point() or got.is_complex():
        unwritten = bool(got.isnan().any())
    else:
        unwritten = got._version == version and got.numel() > 0
    if unwritten:
        raise ShardingError(
            f"initialising module {type(module).__name__} did not write {where}: its "
            "reset_parameters, or param_init_fn, must fill every parameter and buffer created on the "
            "meta device"
        )


class _Written(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the storages that operators write to."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.storages.update(t.untyped_storage()._cdata for t in written_to(func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def _writes_below(module: nn.Module, resets: Resets) -> bool:
    """Whether the module's reset, run on the meta device, writes to tensors of its submodules. True if it
    fails there."""
    reset = _reset_of(module, resets)
    everything = list(module.modules())
    below = [t for each in everything if each is not module for _, t in own_tensors(each)]
    if reset is None or not below:
        return False
    was = _held(everything)
    watch = _Written()
    try:
        with torch.no_grad(), generators_kept(), watch:
            reset()
        replaced = any(
            now.get(key) is not tensor
            for each, parameters, buffers in was
            if each is not module
            for now, then in ((each._parameters, parameters), (each._buffers, buffers))
            for key, tensor in then.items()
        )
    except Exception:  # it depends on values; so it will run with memory for all submodules
        replaced = True
    finally:
        _put_back(was)
    own = {t.untyped_storage()._cdata for _, t in own_tensors(module)}
    return replaced or any(s in watch.storages for s in {t.untyped_storage()._cdata for t in below} - own)
