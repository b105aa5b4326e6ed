"""The tensors and values of a model and its optimizer, by name, as boxes of full tensors. See boxes.py."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from osdp.base.modules import without_wrappers
from osdp.base.names import joined
from osdp.base.tensor_parallel import is_dtensor, local_part
from osdp.base.tensor_trees import dtype_name
from osdp.base.warned import warn
from osdp.checkpoint.boxes import Chunk, Piece, WholePiece, chunks
from osdp.checkpoint.dcp_planners import Tensors
from osdp.checkpoint.manifest import Group, Manifest, OptimizerEntry, TensorEntry, model_key, state_key
from osdp.checkpoint.stages import Names, merged, names_of
from osdp.errors import FormatError, ShardingError
from osdp.ranks.rank_group import Together
from osdp.sharding.dtensor_parameters import shown_like
from osdp.sharding.nested_models import refuse_parts
from osdp.sharding.sharded_model import Sharded, sharded_of
from osdp.sharding.torch_patches.states_of_optimizers import holds_states

# The largest box that is written at once, and so the memory that reading needs besides its destination.
CHUNK_BYTES = 8 << 20

_PLAIN = (bool, int, float, str, type(None))


class Layout(Protocol):
    """The part of every parameter that this rank holds: a sharded model's runtime."""

    def names(self) -> Sequence[str]: ...
    def full_shape(self, name: str) -> tuple[int, ...]: ...
    def pieces(self, name: str) -> Sequence[Piece]: ...


@dataclass
class State:
    """A model's and an optimizer's tensors under the names in the checkpoint.

    `states[parameter][key]` are the optimizer's tensors: when saving, the existing ones; when loading, new
    ones to be filled, which `install` gives to the optimizer.
    """

    parameters: Mapping[str, nn.Parameter]
    pieces: Mapping[str, Sequence[Piece]]  # that this rank holds, by parameter
    buffers: Mapping[str, Tensor]
    optimizer: Optimizer | None
    states: dict[str, dict[str, Tensor]]
    manifest: Manifest
    writes: set[str] | None = None  # the buffers that this rank saves; None: all
    cast: Mapping[str, Tensor] = field(default_factory=dict)  # buffers whose dtype in the model differs
    options: list[dict[str, Any]] = field(default_factory=list)  # for the optimizer's groups

    @staticmethod
    def of_save(model: nn.Module, optimizer: Optimizer | None, layout: Layout | None = None) -> State:
        """The present state. ShardingError if an option or state of the optimizer cannot be represented."""
        state = _of_model(model, layout)
        _warn_of_extra_state(model)
        if optimizer is None:
            return state
        names = _names(state.parameters, optimizer)
        tensors: dict[str, dict[str, TensorEntry]] = {}
        values: dict[str, dict[str, Any]] = {}
        for parameter, name in names.items():
            for key, value in optimizer.state.get(parameter, {}).items():
                where = f"the optimizer's state {key!r} of {name}"
                if isinstance(value, Tensor):
                    value = value if shown_like(parameter) is None else local_part(value)
                    full = state.manifest.parameters[name].shape
                    tensors.setdefault(name, {})[key] = _state_entry(full, parameter, value, where)
                    state.states.setdefault(name, {})[key] = value
                else:
                    values.setdefault(name, {})[key] = _plain(value, where)
        groups = tuple(
            Group(
                tuple(names[p] for p in group["params"]),
                {
                    k: _plain(v, f"the optimizer's option {k!r}")
                    for k, v in group.items()
                    if k not in _NOT_OPTIONS
                },
            )
            for group in optimizer.param_groups
        )
        entry = OptimizerEntry(_kind(optimizer), groups, tensors, values)
        return replace(state, optimizer=optimizer, manifest=replace(state.manifest, optimizer=entry))

    @staticmethod
    def names_of(model: nn.Module) -> Names:
        """Of the parameters and buffers that a checkpoint of the model holds."""
        return names_of(_of_model(model, None).manifest)

    @staticmethod
    def of_load(
        model: nn.Module, optimizer: Optimizer | None, saved: Manifest, layout: Layout | None = None
    ) -> State:
        """The destination of the checkpoint `saved`. FormatError naming the first mismatch; changes
        nothing."""
        state = _of_model(model, layout)
        _match("parameter", saved.parameters, state.manifest.parameters)
        _match("buffer", saved.buffers, state.manifest.buffers)
        if optimizer is None:
            return state
        names = _names(state.parameters, optimizer)
        entry = saved.optimizer
        if entry is None:
            raise FormatError(
                "the checkpoint holds no optimizer; load it with optimizer=None", field="optimizer"
            )
        if entry.kind != _kind(optimizer):
            raise FormatError(
                f"the checkpoint is of {entry.kind}, but the optimizer is {_kind(optimizer)}",
                field="optimizer.kind",
            )
        _match_groups(entry, optimizer, names)
        options = _options(entry, optimizer, names)
        by_name = {name: parameter for parameter, name in names.items()}
        for name, tensors in entry.tensors.items():
            if name not in by_name:
                raise FormatError(
                    f"the checkpoint has optimizer state of {name}, but the optimizer has no such parameter",
                    name,
                )
            for key, tensor in tensors.items():
                full = state.manifest.parameters[name].shape
                if tensor.shape != full and math.prod(tensor.shape) != 1:
                    raise FormatError(
                        f"the state {key!r} of {name} has shape {list(tensor.shape)}, which is "
                        f"neither the parameter's {list(full)} nor a scalar's",
                        name,
                    )
                local = by_name[name].shape if tensor.shape == full else tensor.shape
                device = _state_device(optimizer, by_name[name], len(local))
                fresh = torch.empty(local, dtype=tensor.torch_dtype, device=device)
                state.states.setdefault(name, {})[key] = fresh
        manifest = replace(state.manifest, optimizer=entry)
        return replace(state, optimizer=optimizer, manifest=manifest, options=options)

    def agree(self, together: Together, stages: bool = False) -> Manifest:
        """The common manifest of all ranks: equal models, groups and options, and the union of their states. With `stages`
        ranks have parts of one model (stages.py).

        A rank that holds no row of a parameter may lack its state. Raises ShardingError on all ranks if they
        differ.
        """
        all_manifests = together.all(self.manifest)
        before = all_manifests[: together.rank]
        self.writes = {name for name in self.buffers if not any(name in m.buffers for m in before)}
        if stages:
            return merged(all_manifests, _agreed)
        return _agreed(dict(enumerate(all_manifests)))

    def tensors(self, manifest: Manifest, box_bytes: int | None = None) -> Tensors:
        """This rank's boxes of every tensor of `manifest`, of at most `box_bytes`; by default, CHUNK_BYTES."""
        limit = CHUNK_BYTES if box_bytes is None else box_bytes
        held: dict[str, Sequence[Chunk]] = {}
        for name, parameter in self.parameters.items():
            pieces = self.pieces[name]
            held[model_key(name)] = chunks(pieces, parameter, limit)
            for key, tensor in self.states.get(name, {}).items():
                shape = tuple(tensor.shape)
                of_state = pieces if tensor.shape == parameter.shape else [WholePiece(shape)]
                held[state_key(name, key)] = chunks(of_state, tensor, limit)
        for name, buffer in self.buffers.items():
            mine = self.writes is None or name in self.writes
            whole = [WholePiece(tuple(buffer.shape))] if mine else []
            held[model_key(name)] = chunks(whole, buffer, limit)
        return Tensors(manifest.tensors(), held)

    def install(self) -> None:
        """Give the filled states and the saved options to the optimizer, and cast buffers to the model."""
        for name, buffer in self.cast.items():
            buffer.copy_(self.buffers[name])
        optimizer, entry = self.optimizer, self.manifest.optimizer
        if optimizer is None or entry is None:
            return
        holds_states(optimizer)
        names = _names(self.parameters, optimizer)
        for group, options in zip(optimizer.param_groups, self.options, strict=True):
            group.update(options)
        for parameter, name in names.items():
            loaded = {**self.states.get(name, {}), **entry.values.get(name, {})}
            wrap = shown_like(parameter)
            if wrap is not None:
                states = self.states.get(name, {})
                loaded |= {key: wrap(rows) for key, rows in states.items() if rows.shape == parameter.shape}
            if loaded:
                optimizer.state[parameter] = loaded
            else:
                optimizer.state.pop(parameter, None)


def _agreed(manifests: Mapping[int, Manifest]) -> Manifest:
    """Of ranks that have the same model."""
    (begin, first), *others = manifests.items()
    union = first
    for rank, other in others:
        if (other.parameters, other.buffers) != (first.parameters, first.buffers):
            raise ShardingError(f"rank {rank} and rank {begin} save different models")
        if first.optimizer is None or other.optimizer is None:
            if first.optimizer is not other.optimizer:
                raise ShardingError(f"only one of rank {rank} and rank {begin} saves an optimizer")
            continue
        assert union.optimizer is not None
        mine, theirs = first.optimizer, other.optimizer
        if (mine.kind, mine.groups) != (theirs.kind, theirs.groups):
            raise ShardingError(
                f"rank {rank} and rank {begin} save different optimizers, parameter groups or options"
            )
        tensors = {
            name: {**theirs.tensors.get(name, {}), **union.optimizer.tensors.get(name, {})}
            for name in [*union.optimizer.tensors, *theirs.tensors]
        }
        values = {**theirs.values, **union.optimizer.values}
        union = replace(union, optimizer=replace(mine, tensors=tensors, values=values))
    return union


_NOT_OPTIONS = ("params", "param_names")


def _of_model(model: nn.Module, layout: Layout | None) -> State:
    layout = layout or layout_of(model)
    model = unwrapped(model)
    own = layout.cast_buffers(model) if isinstance(layout, Sharded) else {}
    named = dict(model.named_parameters())
    if layout is not None and (odd := sorted(map(without_wrappers, set(layout.names()) ^ set(named)))):
        raise ShardingError(
            "the model's parameters have changed since it was sharded, or its wrap ignores some of "
            f"them: {odd[0]}. Ignored parameters may differ between ranks and are in no checkpoint: "
            "save model.state_dict() on each rank"
        )
    parameters: dict[str, nn.Parameter] = {}
    pieces: dict[str, Sequence[Piece]] = {}
    entries: dict[str, TensorEntry] = {}
    for name, p in named.items():
        key = without_wrappers(name)
        shape = tuple(p.shape) if layout is None else tuple(layout.full_shape(name))
        parameters[key], entries[key] = p, TensorEntry(shape, dtype_name(p))
        pieces[key] = [WholePiece(shape)] if layout is None else layout.pieces(name)
    found = _persistent_buffers(model).items()
    held = {without_wrappers(n): (b, own.get(n, b.dtype)) for n, b in found}
    buffers = {n: b.to(dtype) for n, (b, dtype) in held.items()}
    cast = {n: b for n, (b, _) in held.items() if buffers[n] is not b}
    manifest = Manifest(
        entries, {n: TensorEntry(tuple(b.shape), dtype_name(b)) for n, b in buffers.items()}, None
    )
    return State(parameters, pieces, buffers, None, {}, manifest, cast=cast)


def layout_of(model: nn.Module) -> Layout | None:
    """The runtime of a sharded model; None: every rank holds all of every parameter. ShardingError if only a part is
    sharded."""
    sharded = sharded_of(model)
    if sharded is not None:
        refuse_parts(
            model,
            "A checkpoint",
            "Save model.state_dict() on each rank, or each part by itself, in a directory per group",
        )
        return sharded
    for name, module in unwrapped(model).named_modules():
        if sharded_of(module) is not None:
            raise ShardingError(
                f"only the submodule {name!r} is sharded: save and load that submodule instead"
            )
    return None


def is_stage(model: nn.Module) -> bool:
    """Whether osdp.parallelize has cut the model to a stage of several."""
    sharded = sharded_of(model)
    return sharded is not None and sharded.pipeline is not None


def look_at_tree(model: nn.Module) -> None:
    """Add parameters that a sharded model has got since it was sharded. Collective if there are any."""
    sharded = sharded_of(model)
    if sharded is not None:
        sharded.tree.look_between_steps(unwrapped(model))


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside the drop-in class or DistributedDataParallel: its names are those of the checkpoint."""
    from osdp.fsdp.drop_in import FullyShardedDataParallel

    while isinstance(model, FullyShardedDataParallel | DistributedDataParallel):
        model = model.module
    return model


def _warn_of_extra_state(model: nn.Module) -> None:
    for name, module in unwrapped(model).named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            warn(
                "OSDP: osdp.save keeps parameters, buffers and the optimizer, and not the extra state (get_extra_state) of "
                f"{name!r}, a {type(module).__name__}: give it to Checkpoints.save(extra=...), or save model.state_dict()",
            )
            return


def _persistent_buffers(model: nn.Module) -> dict[str, Tensor]:
    """The buffers in state dicts; a shared one once, under its first name."""
    kept: dict[str, Tensor] = {}
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set and id(buffer) not in seen:
                seen.add(id(buffer))
                kept[joined(prefix, name)] = buffer
    return kept


def _names(parameters: Mapping[str, nn.Parameter], optimizer: Optimizer) -> dict[nn.Parameter, str]:
    """Parameter -> name, for the optimizer's parameters."""
    by_identity = {id(p): name for name, p in parameters.items()}
    result: dict[nn.Parameter, str] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in by_identity:
                raise ShardingError(
                    f"the optimizer updates a parameter of shape {list(parameter.shape)} that is not "
                    "one of the model's: create the optimizer from model.parameters()"
                )
            result[parameter] = by_identity[id(parameter)]
    return result


def _state_entry(full: tuple[int, ...], parameter: Tensor, value: Tensor, where: str) -> TensorEntry:
    if is_traceable_wrapper_subclass(value) and not is_dtensor(value):
        raise ShardingError(
            f"{where} is a {type(value).__name__}, which holds other tensors than it shows: a checkpoint has plain ones. "
            "Save optimizer.state_dict() on each rank"
        )
    if value.shape == parameter.shape:
        return TensorEntry(full, dtype_name(value))
    if value.numel() != 1:
        raise ShardingError(
            f"{where} has shape {list(value.shape)}, which is neither the parameter's "
            f"{list(parameter.shape)} nor a scalar's: it cannot be resharded for other ranks"
        )
    return TensorEntry(tuple(value.shape), dtype_name(value))


def _state_device(optimizer: Optimizer, parameter: Tensor, dims: int) -> torch.device:
    """The device on which torch's optimizers keep a state: the CPU for scalars, unless the optimizer is fused
    or capturable."""
    group = next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
    if dims > 0 or group.get("fused") or group.get("capturable"):
        return parameter.device
    return torch.device("cpu")


def _match(kind: str, saved: Mapping[str, TensorEntry], here: Mapping[str, TensorEntry]) -> None:
    for name, entry in here.items():
        found = saved.get(name)
        if found is None:
            raise FormatError(
                f"the checkpoint has no {kind} {name}: it was saved from another model", field=name
            )
        if found != entry:
            raise FormatError(
                f"{kind} {name} is {found.dtype} {list(found.shape)} in the checkpoint but "
                f"{entry.dtype} {list(entry.shape)} in the model",
                field=name,
            )
    for name in saved:
        if name not in here:
            raise FormatError(f"the checkpoint has a {kind} {name} that the model does not have", field=name)


def _match_groups(entry: OptimizerEntry, optimizer: Optimizer, names: Mapping[nn.Parameter, str]) -> None:
    """Groups may differ, but all parameters of a group here must have the same saved options."""
    options = {name: group.options for group in entry.groups for name in group.parameters}
    missing = sorted(set(options) ^ set(names.values()))
    if missing:
        which = "the checkpoint's" if missing[0] in options else "this"
        raise FormatError(f"only {which} optimizer updates {missing[0]}", field=missing[0])
    for group in optimizer.param_groups:
        of_group = [names[p] for p in group["params"]]
        for name in of_group[1:]:
            if options[name] != options[of_group[0]]:
                raise FormatError(
                    f"{of_group[0]} and {name} are in one parameter group here, but have different "
                    f"options in the checkpoint: {options[of_group[0]]} and {options[name]}",
                    field=name,
                )


def _options(
    entry: OptimizerEntry, optimizer: Optimizer, names: Mapping[nn.Parameter, str]
) -> list[dict[str, Any]]:
    """For each group here the saved options, converted to the types of its present ones."""
    saved = {name: group.options for group in entry.groups for name in group.parameters}
    result: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        result.append({})
        for key, value in (saved[names[group["params"][0]]] if group["params"] else {}).items():
            try:
                result[-1][key] = _like(group.get(key), value)
            except (TypeError, ValueError, RuntimeError) as error:
                raise FormatError(
                    f"the optimizer's option {key!r} cannot be set to {value!r:.80}: {error}", key
                ) from None
    return result


def _plain(value: Any, where: str) -> Any:
    """`value` in a form that JSON can represent."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, list | tuple):
        return [_plain(v, where) for v in value]
    if isinstance(value, _PLAIN):
        return value
    _refuse(value, where)


def _refuse(value: object, where: str) -> NoReturn:
    raise ShardingError(f"{where} is a {type(value).__name__}, which a checkpoint cannot hold")


def _like(current: Any, saved: Any) -> Any:
    """The saved option in the type of the present one: tensors remain tensors, JSON's lists become tuples."""
    if isinstance(current, Tensor):
        return torch.full_like(current, saved)
    if current is not None and isinstance(saved, str) != isinstance(current, str):
        raise TypeError(f"it is a {type(current).__name__} here")
    return tuple(saved) if isinstance(saved, list) and not isinstance(current, list) else saved


def _kind(optimizer: Optimizer) -> str:
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
