"""FullyShardedDataParallel: the class that scripts written for FairScale or torch's FSDP construct."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from osdp.base.cast_floats import cast_floats
from osdp.base.compiled_modules import unwrapped
from osdp.errors import ShardingError
from osdp.fsdp.marks import MARKS, marked_plan, refuse_planned
from osdp.fsdp.options import Options
from osdp.fsdp.searched_plan import searched_plan
from osdp.fsdp.wrap import wrap_by_policy
from osdp.plan.plan import Plan
from osdp.sharding import step_scopes
from osdp.sharding.forward_methods import part_of
from osdp.sharding.fully_shard import fully_shard
from osdp.sharding.handover import Handover
from osdp.sharding.hybrid_mesh import GroupLike
from osdp.sharding.sharded_model import Sharded


class FullyShardedDataParallel(nn.Module):
    """Wraps `module`, sharded by a plan. Collective over `process_group` (default: all ranks).

    With neither `plan` nor `memory` everything is FULL_SHARD, as FSDP does. With `plan` that plan is obeyed. With
    `memory` ("8GiB", bytes) and `sample` (a tuple or dict of example inputs) rank 0 searches for the fastest plan that
    fits, and all obey it; `hardware` and `search` (a dict: batch_size, modes ...) are `osdp.search`'s. `whole` (patterns
    of what stays NO_SHARD) also goes without a search.

    All arguments of FairScale's class and of torch's FSDP are taken, by name or in either's order after `module` and
    `process_group`, with their objects as values: docs/drop-in.md says of each what it does. In short:

    `mixed_precision`: an osdp.MixedPrecision, or torch's (FSDP1's or FSDP2's); or True, as FairScale has it, with its
    `compute_dtype` (fp16), `buffer_dtype` (the same) and `fp32_reduce_scatter`. `force_input_to_fp32`: where that is not
    on, inputs are cast to float32.
    `sharding_strategy`: torch's ShardingStrategy, or its name, in place of a plan: that mode everywhere (_HYBRID_SHARD_ZERO2
    is taken as HYBRID_SHARD, which gathers again for backward: less memory, the same numbers). `reshard_after_forward=False`
    is SHARD_GRAD_OP. By default FULL_SHARD, or HYBRID_SHARD where `device_mesh` has two dimensions or `process_group` is
    a pair. `device_mesh`, `ranks_per_host`, `device_id` (`compute_device`), `param_init_fn`, `initialise` and
    `cpu_offload` (`move_params_to_cpu`): see `osdp.fully_shard`.

    Names of parameters, buffers and state dict entries are the unwrapped module's; other attributes, and indexing, are
    the module's. Raises InvalidProblemError for arguments that no class has or that are not supported, and what
    `osdp.fully_shard` and `osdp.search` raise.

    >>> model = osdp.FullyShardedDataParallel(model)
    >>> optimizer = torch.optim.AdamW(model.parameters())
    """

    _casts_inputs = False

    def __init__(
        self, module: nn.Module, process_group: GroupLike | None = None, *args: Any, **kwargs: Any
    ) -> None:
        super().__init__()
        options = Options.of(args, {"process_group": process_group, **kwargs})
        mixed_precision = options.precision
        self.module = module
        inner = self._osdp_wrapped
        refuse_planned(inner)
        if options.auto_wrap_policy is not None:
            _wrap_parts(inner, options)
        with Handover(inner) as handover:
            fully_shard(
                inner,
                _plan(inner, options),
                options.process_group,
                device_mesh=options.device_mesh,
                ranks_per_host=options.ranks_per_host,
                device_id=options.device,
                param_init_fn=options.param_init_fn,
                initialise=options.initialise,
                cpu_offload=options.offload,
                mixed_precision=mixed_precision,
                handover=handover,
            )
        self._mark(options)

    def _mark(self, options: Options) -> None:
        MARKS[self._osdp_wrapped] = options
        # FairScale casts what comes in only where nothing else does.
        self._casts_inputs = options.force_input_to_fp32 and options.precision is None

    @property
    def _osdp_wrapped(self) -> nn.Module:
        return unwrapped(self.module)

    def _sharded(self) -> Sharded:
        """Of the outermost model around this, or of this."""
        return part_of(self._osdp_wrapped)[1]

    def _outermost(self, method: str) -> None:
        model, _, name = part_of(self._osdp_wrapped)
        if name:
            raise ShardingError(
                f"{method} is for the outermost wrap: {name!r} is a part of a {type(model).__name__} that is sharded whole"
            )

    @property
    def plan(self) -> Plan:
        return self._sharded().plan

    @property
    def rank(self) -> int:
        return self._sharded().runtime.rank

    @property
    def world_size(self) -> int:
        return self._sharded().runtime.world

    @property
    def process_group(self) -> dist.ProcessGroup:
        return self._sharded().group

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._casts_inputs:
            args, kwargs = cast_floats(args, torch.float32), cast_floats(kwargs, torch.float32)
        return self.module(*args, **kwargs)

    def no_sync(self) -> AbstractContextManager[None]:
        """See `osdp.no_sync`."""
        self._outermost("no_sync")
        return step_scopes.no_sync(self.module)

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> Tensor:
        """See `osdp.clip_grad_norm_`."""
        self._outermost("clip_grad_norm_")
        return step_scopes.clip_grad_norm_(self.module, max_norm, norm_type, error_if_nonfinite)

    def summon_full_params(
        self, with_grads: bool = False, writeback: bool = True
    ) -> AbstractContextManager[None]:
        """See `osdp.summon_full_params`."""
        return step_scopes.summon_full_params(part_of(self._osdp_wrapped)[0], with_grads, writeback)

    # Names are the unwrapped module's: the wrapper adds no "module." to parameters, buffers and state dicts.

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """The wrapper and what is in it have one name; all parameters and buffers are named by this."""
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
        """Load a full state dict: each rank takes its part."""
        return self.module.load_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # Loaded as a part of a larger model, whose state dict has no "module." in the names.
        for key in [k for k in state_dict if k.startswith(prefix)]:
            state_dict[f"{prefix}module.{key.removeprefix(prefix)}"] = state_dict.pop(key)

    # What is added, or put in the place of something, is the module's too.

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
        self.module.register_parameter(name, param)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        self.module.register_buffer(name, tensor, persistent)

    def add_module(self, name: str, module: nn.Module | None) -> None:
        self.module.add_module(name, module)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return getattr(self.module, name)

    def __getitem__(self, key: Any) -> Any:
        return self.module[key]  # type: ignore[index]


def _plan(module: nn.Module, options: Options) -> Plan:
    if options.plan is not None:
        return options.plan
    if options.memory is not None:
        return searched_plan(module, options)
    return marked_plan(module, options)


def _wrap_parts(model: nn.Module, options: Options) -> None:
    """Wraps what the policy says, to be sharded with `model`."""
    policy = options.auto_wrap_policy
    own: dict[nn.Module, dict[str, Any]] = {}  # arguments that a CustomPolicy gives to some
    if hasattr(policy, "_run_policy"):
        own = policy._run_policy(model, set(), {})

    def chosen(module: nn.Module, recurse: bool) -> bool:
        return recurse or module in own

    def marked(module: nn.Module) -> nn.Module:
        wrapper = FullyShardedDataParallel.__new__(FullyShardedDataParallel)
        nn.Module.__init__(wrapper)
        wrapper.module = module
        told = Options.of((), own.get(module, {}))
        wrapper._mark(dataclasses.replace(options, **told.given(), auto_wrap_policy=None))
        return wrapper

    wrap_by_policy(model, chosen if own else policy, marked, only_children=True)
