"""FullyShardedDataParallel: the class that scripts written for FairScale or torch's FSDP construct."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from osdp.base.cast_floats import cast_floats
from osdp.base.modules import unwrapped
from osdp.errors import ShardingError
from osdp.fsdp import former_optimizer_states as former
from osdp.fsdp import optimizer_states, rank_files, sharded_in, state_dict_types
from osdp.fsdp.class_or_instance import class_or_instance
from osdp.fsdp.deferred import is_deferred
from osdp.fsdp.first_forward import wait_for_inputs
from osdp.fsdp.fsdp_module import refused_method
from osdp.fsdp.marks import MARKS, refuse_planned
from osdp.fsdp.options import OPTIONS, Options
from osdp.fsdp.shard import separate_parts, shard
from osdp.fsdp.wrap import wrap_selected
from osdp.fsdp.wrapper_hooks import WrapperHooks, load_unwrapped
from osdp.plan.plan import Plan
from osdp.sharding import step_scopes
from osdp.sharding.forward_methods import outermost_around, part_of
from osdp.sharding.hybrid_mesh import GroupLike
from osdp.sharding.sharded_model import Sharded


def _fsdp_modules(module: nn.Module, root_only: bool = False) -> list[FullyShardedDataParallel]:
    """The wrappers in `module`; with `root_only` only those that are not inside another one."""
    found = [m for m in module.modules() if isinstance(m, FullyShardedDataParallel)]
    return [m for m in found if not root_only or m.check_is_root()]


class FullyShardedDataParallel(WrapperHooks):
    """Wraps `module`, sharded by a plan. Collective over `process_group` (default: all ranks).

    With neither `plan` nor `memory` everything is FULL_SHARD, as in FSDP, and each parameter is gathered by
    the module that reads it. With `plan`, that plan decides. With `memory` ("8GiB", bytes) rank 0 searches
    for the fastest plan that fits and broadcasts it; `hardware` and `search` (a dict: batch_size, modes ...)
    are `osdp.search`'s. `whole` (patterns of modules that stay NO_SHARD) also works without a search.
    `sample` (a tuple or dict of example inputs, alike on all ranks) is traced to find the modules that read
    each parameter, and is the search's sample; without it the first training forward is traced
    (docs/drop-in.md).

    All arguments of FairScale's class and of torch's FSDP are accepted, by name or in either class's order
    after `module` and `process_group`, with their objects as values: docs/drop-in.md describes each. In
    short:

    `process_group`: a part of the model may have one of its own (a mixture's experts): it is
    sharded, and its gradients are averaged, over that group.

    `mixed_precision`: an osdp.MixedPrecision, or torch's (FSDP1's or FSDP2's); or True, as in FairScale, with
    its `compute_dtype` (fp16), `buffer_dtype` (the same) and `fp32_reduce_scatter`. `force_input_to_fp32`:
    inputs are cast to float32 if mixed precision is off. `sharding_strategy`: torch's ShardingStrategy or its
    name, instead of a plan: the mode of all operators (_HYBRID_SHARD_ZERO2 is treated as HYBRID_SHARD, which
    gathers again for backward: less memory, the same results). `reshard_after_forward=False` is
    SHARD_GRAD_OP. By default FULL_SHARD, or HYBRID_SHARD where `device_mesh` has two dimensions or
    `process_group` is a pair. `device_mesh`, `ranks_per_host`, `device_id` (`compute_device`),
    `param_init_fn`, `initialise` and `cpu_offload` (`move_params_to_cpu`): see `osdp.fully_shard`.

    Names of parameters, buffers and state dict entries are the unwrapped module's; other attributes, and indexing, are
    the module's. Raises InvalidProblemError for unknown or unsupported arguments, and the errors of
    `osdp.fully_shard` and `osdp.search`.

    >>> model = osdp.FullyShardedDataParallel(model)
    >>> optimizer = torch.optim.AdamW(model.parameters())
    """

    _casts_inputs = False

    def __init__(
        self, module: nn.Module, process_group: GroupLike | None = None, *args: Any, **kwargs: Any
    ) -> None:
        super().__init__()
        options = Options.of(args, {"process_group": process_group, **kwargs})
        self.module = module
        inner = self._osdp_wrapped
        if options.auto_wrap_policy is not None:
            with separate_parts(inner, options):
                refuse_planned(inner)
            _wrap_parts(inner, options)
        shard(inner, options, options.form)
        self._mark(options)
        wait_for_inputs(inner, options)

    def _mark(self, options: Options) -> None:
        MARKS[self._osdp_wrapped] = options
        # As in FairScale, this applies only if mixed precision does not cast the inputs.
        self._casts_inputs = options.force_input_to_fp32 and options.precision is None

    @property
    def _osdp_wrapped(self) -> nn.Module:
        return unwrapped(self.module)

    def _sharded(self) -> Sharded:
        """The Sharded of the model that this wrapper was sharded with, which is the outermost one unless ranks differ."""
        return part_of(self._osdp_wrapped)[1]

    def _outermost(self, method: str) -> None:
        model, _, name = outermost_around(self._osdp_wrapped)
        if name:
            raise ShardingError(
                f"{method} must be called on the outermost wrap: {name!r} is a part of a "
                f"{type(model).__name__} that is sharded as a whole"
            )

    @property
    def plan(self) -> Plan:
        """The plan of the sharded model that this wrapper belongs to."""
        return self._sharded().plan

    @property
    def rank(self) -> int:
        """This rank, among the ranks over which the model is sharded."""
        return self._sharded().runtime.rank

    @property
    def world_size(self) -> int:
        """The number of ranks over which the model is sharded."""
        return self._sharded().runtime.world

    @property
    def process_group(self) -> dist.ProcessGroup:
        """The ranks over which the model is sharded."""
        return self._sharded().group

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the wrapped module; with `force_input_to_fp32`, on inputs cast to float32."""
        if self._casts_inputs:
            args, kwargs = cast_floats(args, torch.float32), cast_floats(kwargs, torch.float32)
        return self.module(*args, **kwargs)

    def no_sync(self) -> AbstractContextManager[None]:
        """See `osdp.no_sync`."""
        self._outermost("no_sync")
        return step_scopes.no_sync(self.module)

    def clip_grad_norm_(
        self,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        *,
        tp_group: dist.ProcessGroup | None = None,
        tp_parameters: str | Sequence[str] | None = None,
    ) -> Tensor:
        """See `osdp.clip_grad_norm_`."""
        self._outermost("clip_grad_norm_")
        return step_scopes.clip_grad_norm_(
            self.module,
            max_norm,
            norm_type,
            error_if_nonfinite,
            tp_group=tp_group,
            tp_parameters=tp_parameters,
        )

    # Called on the class with a model, as in FSDP1, or on an instance.
    summon_full_params = class_or_instance(sharded_in.summon_full_params)
    fsdp_modules = class_or_instance(_fsdp_modules)
    state_dict_type = class_or_instance(state_dict_types.state_dict_type)
    set_state_dict_type = class_or_instance(state_dict_types.set_state_dict_type)
    get_state_dict_type = class_or_instance(state_dict_types.get_state_dict_type)
    optim_state_dict = class_or_instance(optimizer_states.optim_state_dict)
    optim_state_dict_to_load = staticmethod(optimizer_states.optim_state_dict_to_load)
    full_optim_state_dict = class_or_instance(former.full_optim_state_dict)
    sharded_optim_state_dict = class_or_instance(former.sharded_optim_state_dict)
    shard_full_optim_state_dict = staticmethod(former.shard_full_optim_state_dict)
    scatter_full_optim_state_dict = staticmethod(former.scatter_full_optim_state_dict)
    flatten_sharded_optim_state_dict = staticmethod(former.flatten_sharded_optim_state_dict)
    rekey_optim_state_dict = staticmethod(former.rekey_optim_state_dict)
    gather_full_optim_state_dict = former.gather_full_optim_state_dict
    get_shard_from_optim_state_dict = former.get_shard_from_optim_state_dict
    local_metadata_dict = rank_files.local_metadata_dict
    consolidate_shard_weights = staticmethod(rank_files.consolidate_shard_weights)

    def local_state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """This rank's rows, under the unwrapped names; see osdp/fsdp/rank_files.py."""
        with state_dict_types.shown_as_rows(self):
            return self.module.state_dict(*args, **kwargs)

    def load_local_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load the result of `local_state_dict` of this rank."""
        with state_dict_types.shown_as_rows(self):
            return self.load_state_dict(*args, **kwargs)

    def apply(self, fn: Callable[[nn.Module], None]) -> FullyShardedDataParallel:
        """Like nn.Module.apply, with full parameters; each rank keeps the changes to its own rows.
        Collective."""
        if self._sharded().emptied and self._sharded().in_full is not None:
            return self._sharded().in_full(super().apply, "apply")(fn)  # type: ignore[no-any-return, misc]
        if self._sharded().runtime.summoned:
            return super().apply(fn)
        with sharded_in.summon_full_params(self):
            return super().apply(fn)

    def to_empty(self, *, device: Any, recurse: bool = True) -> FullyShardedDataParallel:
        """The module's. Until the next forward, what initialises gets full parameters: Note
        [Initialising after to_empty]."""
        self.module.to_empty(device=device, recurse=recurse)
        return self

    def check_is_root(self) -> bool:
        """Whether this is the outermost wrapper."""
        return outermost_around(self._osdp_wrapped)[2] == ""

    def assert_state(self, state: Any) -> None:
        """Raises ShardingError unless the model is in the given FairScale `TrainingState` (or one of
        several)."""
        runtime = self._sharded().runtime
        now = {"SUMMON_FULL_PARAMS"} if runtime.summoned else {"IDLE"}
        if runtime.in_pass:
            now = {"FORWARD", "BACKWARD_PRE", "BACKWARD_POST"}
        wanted = [each.name for each in (state if isinstance(state, (list, tuple)) else [state])]
        if not now & set(wanted):
            raise ShardingError(
                f"expected state {' or '.join(wanted)}, but the model is in {' or '.join(sorted(now))}"
            )

    @property
    def params_with_grad(self) -> list[nn.Parameter]:
        """The parameters that have a gradient."""
        return [p for p in self.parameters() if p.grad is not None]

    def non_shared_params(self) -> list[nn.Parameter]:
        """The parameters of this wrapper that are in no wrapper inside of it."""
        inside = {id(p) for m in _fsdp_modules(self) if m is not self for p in m.parameters()}
        return [p for p in self.parameters() if id(p) not in inside]

    @property
    def flatten_parameters(self) -> bool:
        """Whether FairScale's class would have put a module for flat parameters around the wrapped one: never here."""
        return False

    def _reset_lazy_init(self) -> None:
        """Accepted, without effect: fairseq calls it for wrapped parts before it wraps the model around them."""

    def append_shared_param(self, p: nn.Parameter) -> None:
        """Accepted, without effect: tied parameters are found automatically."""

    set_gradient_divide_factors = refused_method(
        "set_gradient_divide_factors", "gradients are means; scale the loss instead"
    )
    register_comm_hook = refused_method(
        "register_comm_hook",
        "set the dtype in which gradients are reduced by mixed_precision=MixedPrecision(reduce_dtype=...)",
    )

    def extra_repr(self) -> str:
        """The number of ranks, and of units in each mode; of the outermost wrapper."""
        if next(self.parameters(), None) is None:
            return "without parameters"
        if is_deferred(self._osdp_wrapped):
            return "tied: sharded with the model around it"
        plan = self._sharded().plan
        modes = Counter(plan.choices[unit[0]].mode for unit in plan.units)
        units = ", ".join(f"{count} {mode}" for mode, count in sorted(modes.items()))
        own = part_of(self._osdp_wrapped)[2] == ""
        return f"world_size={self.world_size}, units: {units}" if own else ""

    # Names are the unwrapped module's: the wrapper adds no "module." prefix in parameters, buffers and state
    # dicts.

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """The wrapper and its module have the same name; the names of parameters and buffers follow from
        this."""
        memo = set() if memo is None else memo
        if self not in memo:
            if remove_duplicate:
                memo.add(self)
            yield prefix, self
            yield from self.module.named_modules(memo, prefix, remove_duplicate)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """The full state dict, on every rank. Collective."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load a full state dict: each rank copies its part."""
        return load_unwrapped(self.module, *args, **kwargs)

    def _fqn_modifiers(self) -> dict[str, str]:
        """For torch.distributed.checkpoint.state_dict, which walks modules by itself: children that names do not contain."""
        return {**getattr(self.module, "_fqn_modifiers", dict)(), "module": "module"}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # Loading as a part of a larger model, whose state dict has no "module." in its names.
        for key in [k for k in state_dict if k.startswith(prefix)]:
            state_dict[f"{prefix}module.{key.removeprefix(prefix)}"] = state_dict.pop(key)

    # Attributes that are added or replaced belong to the wrapped module too.

    def __setattr__(self, name: str, value: Any) -> None:
        inner = self.__dict__.get("_modules", {}).get("module")
        own = inner is None or name == "module" or name in self.__dict__ or hasattr(type(self), name)
        if not own and (isinstance(value, nn.Module | nn.Parameter) or hasattr(inner, name)):
            setattr(inner, name, value)
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__ or name in self._modules:
            super().__delattr__(name)
        else:
            delattr(self.module, name)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Register the parameter in the wrapped module."""
        self.module.register_parameter(name, param)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Register the buffer in the wrapped module."""
        self.module.register_buffer(name, tensor, persistent)

    def add_module(self, name: str, module: nn.Module | None) -> None:
        """Add the module to the wrapped module."""
        self.module.add_module(name, module)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in ("module", "__deepcopy__"):  # the wrapped module's copies that alone
                raise
            if name in OPTIONS and not hasattr(self.module, name) and self._osdp_wrapped in MARKS:
                told = MARKS[self._osdp_wrapped]
                # The argument as it was given: FairScale's scripts expect a bool here, FSDP1's an object.
                as_said = name != "mixed_precision" or isinstance(told.mixed_precision, bool)
                return getattr(told, name) if as_said else told.precision or False
            return getattr(self.module, name)

    def __getitem__(self, key: Any) -> Any:
        return self.module[key]  # type: ignore[index]


def _wrap_parts(model: nn.Module, options: Options) -> None:
    """Wraps the modules that the policy selects; they are sharded together with `model`."""

    def marked(module: nn.Module, told: Options) -> nn.Module:
        if told.process_group is not None or told.device_mesh is not None:
            return FullyShardedDataParallel(module, **options.for_part(told))  # perhaps over other ranks
        wrapper = FullyShardedDataParallel.__new__(FullyShardedDataParallel)
        nn.Module.__init__(wrapper)
        wrapper.module = module
        wrapper._mark(dataclasses.replace(options, **told.given(), auto_wrap_policy=None))
        return wrapper

    wrap_selected(model, options, marked)
