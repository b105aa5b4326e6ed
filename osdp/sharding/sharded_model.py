"""Sharded: the record of a sharded model, and the registry of all sharded models."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from osdp import _C
from osdp.base.modules import HANDLES, unwrapped
from osdp.base.names import joined
from osdp.base.tensor_parallel import Layout, layout_of
from osdp.errors import ShardingError
from osdp.plan.choice import uneven
from osdp.plan.mixed_precision import MixedPrecision
from osdp.plan.plan import Plan
from osdp.plan.plan_fields import parameters_with
from osdp.ranks.process_groups import lane_group
from osdp.ranks.rank_group import Together
from osdp.sharding.hybrid_mesh import RankGrid
from osdp.sharding.model_call import ModelCall
from osdp.sharding.state_dict_form import StateDictForm


class ModuleTree(Protocol):
    """The record of the model's modules: osdp.sharding.module_tree.Tree."""

    index: dict[int, int]  # id of a parameter -> its index in the runtime
    known: list[nn.Parameter]  # in the order of the runtime's indices

    def is_sharded(self, parameter: Tensor) -> bool: ...

    def look(self, model: nn.Module, when: str) -> None: ...

    left_alone: list[nn.Parameter]  # in the model, but not in the runtime

    def leave_alone(self, model: nn.Module, parameters: list[nn.Parameter]) -> None: ...

    def join(self, model: nn.Module, new: dict[str, nn.Parameter]) -> None: ...

    def has_lost(self, model: nn.Module) -> bool: ...

    def look_between_steps(self, model: nn.Module) -> None: ...


@dataclass(frozen=True)
class PartPiece:
    """A _C.Piece of the part of a parameter that tensor parallelism gives this rank, at its place in the whole."""

    piece: _C.Piece
    global_offsets: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self.piece.sizes)

    @property
    def replicated(self) -> bool:
        return self.piece.replicated

    def view(self, local: Tensor) -> Tensor:
        return self.piece.view(local)


@dataclass(frozen=True)
class Manner:
    """What all ranks have agreed on before a model is changed."""

    plan: Plan
    together: Together  # the ranks that it is sharded over
    number: int  # of the model, on their process group
    grid: RankGrid | None  # where some mode tells hosts apart; otherwise None
    device: torch.device  # of computation
    policy: MixedPrecision | None
    offload: bool  # of all operators (`cpu_offload`)
    backend_memory: bool  # whether the process group's backend allocates what is gathered
    mesh: DeviceMesh | None  # of these ranks, where one was given

    @property
    def group(self) -> dist.ProcessGroup:
        assert self.together.group is not None
        return self.together.group


class Sharded:
    """A sharded model's plan, and access to the C++ runtime by parameter names. See `runtime_of`."""

    def __init__(self, how: Manner, names: Sequence[str], runtime: _C.Runtime) -> None:
        self.how = how  # but for the plan, as it was first
        self.plan, self.group, self.device = how.plan, how.group, how.device
        self.lane = lane_group(how.group, how.device)  # lives as long as this does
        self.mesh: Any = how.mesh
        self.grid, self.policy = how.grid, how.policy
        self.tensor_parallel = False  # whether parameters are parts by tensor parallelism
        # All ranks of a pipeline, if this is a stage of several.
        self.pipeline: dist.ProcessGroup | None = None
        # Of these, those that have the other stages of what this rank has, if osdp.parallelize made the stages.
        self.stages: dist.ProcessGroup | None = None
        self.runtime = runtime
        self.call: ModelCall | None = None
        self.tree: ModuleTree
        self.dtensors = False  # whether parameters are DTensors between passes
        self.form = StateDictForm()
        self.saving: Any = None  # the Snapshot of the state_dict() that is running
        self.initialising: Any = None  # the Initialising of the method that initialises after to_empty()
        self.emptied: set[int] = set()  # indices of parameters without a value since to_empty()
        # Then: a function, and its name, as one that gets full parameters.
        self.in_full: Callable[[Callable[..., Any], str], Callable[..., Any]] | None = None
        self.shown: WeakSet[nn.Module] = WeakSet()  # modules whose state dicts show full parameters
        # Names as the plan has them, by index; those in `index` are the present ones, of renamed and moved modules too.
        self.planned = tuple(names)
        self.index = {name: i for i, name in enumerate(names)}
        # By the plan's names: weights that are computed in slices, and parameters that are sharded over a line of ranks, of
        # which every line holds a copy (none if there is one line).
        self.split_names = frozenset(splits_of(how.plan))
        several = how.grid is not None and len(how.grid.lines) > 1
        self.hybrid_names = frozenset(parameters_with(how.plan, "inside_hosts") if several else ())
        # Methods that were registered to gather: module, name, reads.
        self.registered: list[tuple[ref[nn.Module], str, tuple[str, ...] | None]] = []
        # Called before a registered method of the model, with the model, the method's name and its arguments.
        self.before_method: Callable[[nn.Module, str, Any, Any], None] | None = None
        # Of buffers that mixed precision has cast, by module and key: what they were.
        self.buffer_dtypes: WeakKeyDictionary[nn.Module, dict[str, torch.dtype]] = WeakKeyDictionary()
        self.unsettled = ""  # why this rank's rows may become others at the first forward
        self.copied_in_no_sync: WeakSet[nn.Module] = WeakSet()  # copies of this model, made within no_sync
        self.resting_bytes = 0  # live CPU bytes right after sharding, as the meter counts them
        self.local_bytes = 0  # the part of them that is this rank's parameters and buffers

    @property
    def inputs_device(self) -> torch.device | None:
        """Where arguments of the model's call are moved, as FSDP and DDP do it; None on a CPU."""
        return None if self.device.type == "cpu" else self.device

    @property
    def in_use(self) -> str:
        """Why the model cannot be changed or copied now, in words; "" if it can."""
        self.end_interrupted()
        if self.runtime.summoned:
            return "inside summon_full_params"
        return "in its forward or backward" if self.runtime.in_pass else ""

    def end_interrupted(self) -> None:
        """End a call that Ctrl-C has left running: Note [Interrupted hooks]."""
        if self.call is not None:
            self.call.end_interrupted()

    def names(self) -> list[str]:
        """Parameter names, as in `named_parameters()` of the unwrapped model."""
        return list(self.index)

    def cast_buffers(self, model: nn.Module) -> dict[str, torch.dtype]:
        """The buffers of `model` that mixed precision has cast, by their present names: what they were."""
        return {
            joined(prefix, key): dtype
            for prefix, module in model.named_modules()
            for key, dtype in self.buffer_dtypes.get(module, {}).items()
        }

    def name_of(self, index: int) -> str:
        """The parameter's present name; one that is not in the model any more has its last one."""
        return next((name for name, i in self.index.items() if i == index), self.runtime.name(index))

    def is_planned_in(self, index: int, names: Collection[str]) -> bool:
        """Whether the parameter is among these, which are names of the plan. One that was added since is not."""
        return index < len(self.planned) and self.planned[index] in names

    def is_split(self, index: int) -> bool:
        """Whether it is a weight that is computed in slices."""
        return self.is_planned_in(index, self.split_names)

    def is_hybrid(self, index: int) -> bool:
        """Whether it is sharded over a line of ranks, of which every line holds a copy."""
        return self.is_planned_in(index, self.hybrid_names)

    def pieces(self, name: str) -> Sequence[Any]:
        """The boxes of the full parameter that this rank holds, each with global_offsets, sizes, replicated
        and view(local)."""
        pieces: Sequence[Any] = self.runtime.pieces(self.index[name])
        layout = self.layout(name)
        if layout is None or not layout.divided:
            return pieces
        begins = layout.begins()
        return [
            PartPiece(piece, tuple(map(sum, zip(piece.global_offsets, begins, strict=True))))
            for piece in pieces
        ]

    def full_shape(self, name: str) -> tuple[int, ...]:
        layout = self.layout(name)
        return tuple(layout.shape) if layout is not None else tuple(self.runtime.full_shape(self.index[name]))

    def layout(self, name: str) -> Layout | None:
        """How tensor parallelism divides the parameter; None: it does not."""
        return layout_of(self.tree.known[self.index[name]])

    def is_whole(self, name: str) -> bool:
        """Whether this rank holds the full parameter."""
        return not self.tree.is_sharded(self.tree.known[self.index[name]])

    def gather_whole(self, name: str, local: Tensor) -> Tensor:
        """The full tensor of which `local` is this rank's part: the parameter, its gradient, optimizer state. Collective."""
        return self.runtime.gather_whole(self.index[name], local.detach())

    def gathered_bytes(self) -> int:
        """Bytes of full parameters that exist at this moment; 0 between steps (except where kept for a backward)."""
        return self.runtime.gathered_bytes()


_sharded = cast(WeakKeyDictionary[nn.Module, Sharded], HANDLES)


_registrations = 0


def register(model: nn.Module, sharded: Sharded) -> None:
    global _registrations
    _registrations += 1
    _sharded[model] = sharded


def unregister(model: nn.Module) -> None:
    _sharded.pop(model, None)


def registrations() -> int:
    """How often a model was registered in this process: what was found for parameters is stale once this has changed. The
    number of models that are alive would not do, because ranks collect garbage at different times."""
    return _registrations


def sharded_models() -> list[tuple[nn.Module, Sharded]]:
    return list(_sharded.items())


def in_sharded_models(tensors: Iterable[Tensor]) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    """Those of `tensors` that sharded models have as parameters, each with the model and its name there."""
    given = {id(t) for t in tensors}
    for model, sharded in sharded_models() if given else ():
        for name, parameter in model.named_parameters():
            if id(parameter) in given and id(parameter) in sharded.tree.index:
                yield model, name, parameter


def sharded_of(model: nn.Module) -> Sharded | None:
    """The Sharded of a model that was given to `fully_shard` or wrapped; None for other models."""
    return _sharded.get(unwrapped(model))


def runtime_of(model: nn.Module) -> Sharded:
    """Like `sharded_of`; raises ShardingError if the model is not sharded."""
    found = sharded_of(model)
    if found is None:
        raise ShardingError(
            f"{type(model).__name__} is not sharded: call osdp.fully_shard(model, plan) first"
        )
    return found


def splits_of(plan: Plan) -> dict[str, _C.SplitSpec]:
    """Weight name -> its slices, for the operators that the plan computes in slices."""
    return {
        joined(o.name, "weight"): _C.SplitSpec(
            choice.granularity, choice.slices_sharded, 0 if uneven(o, choice.split or "out") else 1
        )
        for o in plan.description.operators
        if o.parameters and (choice := plan.choices[o.name]).granularity > 1
    }


def sliced_modules(plan: Plan) -> dict[str, tuple[str, ...]]:
    """Operator -> the modules that compute with its weight, for the operators that the plan computes in slices."""
    return {
        o.name: o.gather_at
        for o in plan.description.operators
        if o.parameters and plan.choices[o.name].granularity > 1
    }
