"""Resharding: parts of a model that are sharded already are included in the sharding of the whole model.

Note [Parts and the whole]
Scripts written for FSDP wrap parts of a model first and the model last. Each wrapper shards immediately, so a
rank never holds more in full than the largest part, and each part may be used separately. When a module
around sharded parts is sharded, their runtimes are closed and one runtime is created for all parameters.
Meanwhile each rank keeps its rows, and parameters have their full shape but no memory, for descriptions and
checks. If the new plan shards a parameter in the same way, its rows stay where they are; otherwise it is
gathered, sharded again and freed, one parameter after another. Parameter objects do not change, so an optimizer that
holds them may have been created before. Until `begin`, an error restores the parts.
  A model that is sharded as a whole already, and of which a new plan changes no rows, keeps its runtime: see
Note [Units that change] in csrc/runtime/store/model_shards.hpp.
"""

from __future__ import annotations

from collections.abc import Collection
from types import TracebackType

import torch
from torch import Tensor, nn
from torch import distributed as dist

from osdp import _C
from osdp.base.modules import HANDLES
from osdp.base.tensor_trees import dtype_name
from osdp.errors import ShardingError
from osdp.plan.mixed_precision import MixedPrecision
from osdp.plan.plan import Plan
from osdp.sharding.dtensor_parameters import hide_dtensors, show_again
from osdp.sharding.forward_methods import register_forward_method
from osdp.sharding.hybrid_mesh import RankGrid, ways_to_tell_hosts_apart
from osdp.sharding.module_changes import ModuleChanges
from osdp.sharding.rollback import AsItWas
from osdp.sharding.sharded_model import Sharded, register, sharded_of
from osdp.sharding.torch_patches.install import hold_torch_tools, release_torch_tools

_WHOLE = "whole"
_ANEW = "The parts of the model that were sharded before cannot be restored: build the model again."


class Resharding:
    """Context in which `model` and its modules are as before sharding and wrapping, except for the
    parameters' memory.

    Raises ShardingError, with nothing changed, if a part is in use. `lent`: the parts are put back afterwards in any case.
    """

    def __init__(self, model: nn.Module, lent: bool = False) -> None:
        self.model, self.lent = model, lent
        self.parts = [(m, s) for m in model.modules() if m in HANDLES and (s := sharded_of(m)) is not None]
        self._rows: dict[int, Tensor] = {}
        self._source: dict[int, tuple[Sharded, int]] = {}
        self._alike: set[int] = set()  # parameters that are sharded as before
        self._given: set[int] = set()  # whose rows stay in their memory
        self._wrappers: list[tuple[nn.Module, str, nn.Module]] = []
        self._was: AsItWas | None = None
        self._begun = False

    def __enter__(self) -> Resharding:
        for module, sharded in self.parts:
            _refuse_in_use(module, sharded)
        if self.parts:
            self._was = AsItWas(self.model)
        for parent in list(self.model.modules()):
            for key, child in parent._modules.items():
                inner = getattr(child, "_osdp_wrapped", child)
                if child is not None and inner is not child:
                    self._wrappers.append((parent, key, child))
        for parent, key, child in self._wrappers:
            parent._modules[key] = getattr(child, "_osdp_wrapped")  # noqa: B009
        hold_torch_tools()
        for module, sharded in self.parts:
            ModuleChanges.on(module).take_off()
            HANDLES.pop(module)
            hide_dtensors(sharded.tree.known)
            present = {id(p) for p in module.parameters()}
            for index, parameter in enumerate(sharded.tree.known):
                if id(parameter) not in present:
                    continue
                self._rows[id(parameter)] = parameter.data
                self._source[id(parameter)] = (sharded, index)
                shape = sharded.runtime.full_shape(index)
                # On the device of computation, where the model is traced, also if the rows are offloaded.
                parameter.data = torch.zeros((), dtype=parameter.dtype, device=sharded.device).expand(shape)
        return self

    @property
    def without_memory(self) -> Collection[int]:
        """Ids of the parameters that have their full shape but no memory."""
        return self._rows.keys()

    def check_group(self, group: dist.ProcessGroup) -> None:
        for module, sharded in self.parts:
            theirs, ours = (dist.get_process_group_ranks(g) for g in (sharded.group, group))
            if theirs != ours:
                raise ShardingError(
                    f"the model, a {type(module).__name__}, is already sharded over ranks {theirs} and cannot also be "
                    f"sharded over {ours}: only a part of a model may have its own process group"
                )

    def keeps_rows(self, plan: Plan, policy: MixedPrecision | None) -> bool:
        """Whether the model is one sharded part, and every rank holds under `plan`, with the mixed precision `policy`, what
        it holds now, in messages of the same groups."""
        if len(self.parts) != 1 or self.parts[0][0] is not self.model:
            return False
        sharded = self.parts[0][1]
        before, now = (_layouts(p, sharded.grid) for p in (sharded.plan, plan))
        known = sharded.tree.known
        held = [(name, id(p)) for name, p in self.model.named_parameters()]  # tensors compare by elements
        as_planned = list(zip(sharded.planned, map(id, known), strict=False)) == held
        dtypes = {p.name: p.dtype for p in sharded.plan.description.parameters}
        lanes = sharded.device.type == "cpu" or plan.separate_reductions == sharded.plan.separate_reductions
        return (
            lanes
            and as_planned
            and len(known) == len(sharded.planned)
            and before == now
            and None not in now.values()
            and ways_to_tell_hosts_apart(plan) <= ways_to_tell_hosts_apart(sharded.plan)
            and policy == sharded.policy
            and all(
                dtypes.get(n) == dtype_name(self._rows[id(p)])
                for n, p in zip(sharded.planned, known, strict=True)
            )
        )

    def rows_stay(self) -> None:
        """The parameters show their rows again; see `keeps_rows`."""
        for _, sharded in self.parts:
            for parameter in sharded.tree.known:
                parameter.data = self._rows.pop(id(parameter))
                self._alike.add(id(parameter))

    def begun(self) -> None:
        """From here on an error cannot restore the parts."""
        self._begun, self._was = True, None

    def begin(self, plan: Plan, grid: RankGrid | None) -> None:
        """Called when all checks have passed on all ranks and the model will be sharded by `plan`; it cannot
        be undone."""
        self.begun()
        cut = _layouts(plan, grid)
        parameters = {id(p): name for name, p in self.model.named_parameters()}
        for _, sharded in self.parts:
            sharded.runtime.uninstall()
            cut_before = _layouts(sharded.plan, sharded.grid)
            planned = dict(enumerate(sharded.planned))
            for index, parameter in enumerate(sharded.tree.known):
                now = cut.get(parameters.get(id(parameter), ""))
                if now is not None and cut_before.get(planned.get(index, ""), _WHOLE) == now:
                    self._alike.add(id(parameter))

    def stays(self, parameter: Tensor) -> bool:
        """After `begin`: whether this rank holds the same rows as before."""
        return id(parameter) in self._alike

    def give(self, parameter: Tensor, home: torch.device) -> Tensor | None:
        """After `begin`: this rank's part of the parameter, if it may stay in its memory: on the device `home`."""
        rows = self._rows.get(id(parameter))
        if rows is None or not self.stays(parameter) or rows.device != home or not rows.is_contiguous():
            return None
        self._given.add(id(parameter))
        return self._rows.pop(id(parameter))

    def given(self, parameter: Tensor) -> bool:
        return id(parameter) in self._given

    def take(self, parameter: Tensor, index: int, runtime: _C.Runtime) -> Tensor | None:
        """This rank's part of the parameter in the new runtime's layout; None if no sharded part had it.
        Collective."""
        if id(parameter) not in self._source:
            return None
        rows = self._rows.pop(id(parameter))
        if id(parameter) in self._alike:
            return rows
        sharded, old = self._source[id(parameter)]
        return runtime.take_local(index, sharded.runtime.gather_whole(old, rows))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.parts and (self.lent or error is not None):
                self._put_back(error)
            for parent, key, child in self._wrappers:
                parent._modules[key] = child
            if error is None and self._begun:
                self._register_again()
        finally:
            release_torch_tools()

    def _register_again(self) -> None:
        for _, sharded in self.parts:
            registered, sharded.registered = sharded.registered, []
            for module, name, reads in registered:
                if (alive := module()) is not None:
                    register_forward_method(alive, name, reads)

    def _put_back(self, error: BaseException | None) -> None:
        if self._begun:
            if error is not None:
                error.add_note(_ANEW)
            return
        assert self._was is not None
        self._was.put_back()
        for module, sharded in self.parts:
            register(module, sharded)
            show_again(sharded.tree.known)


def _refuse_in_use(module: nn.Module, sharded: Sharded) -> None:
    sharded.runtime.end_read_only()
    if sharded.in_use:
        raise ShardingError(
            f"a part of the model, a {type(module).__name__}, is sharded and {sharded.in_use}: shard the whole "
            "model outside of that"
        )


def _layouts(plan: Plan, grid: RankGrid | None) -> dict[str, object]:
    """Parameter name -> its layout, equal if ranks hold the same rows; None: in slices, which are never
    reused."""
    found: dict[str, object] = {}
    for operator in plan.description.operators:
        choice = plan.choices.get(operator.name)
        if choice is None:
            continue
        layout: object = "rows"
        if not choice.traits.sharded:
            layout = _WHOLE
        elif choice.granularity > 1:
            layout = None
        elif choice.traits.inside_hosts and grid is not None and len(grid.lines) > 1:
            layout = grid.lines
        if choice.traits.on_host:
            layout = ("host", layout)
        found |= {p.name: layout for p in operator.parameters}
    return found
