"""FullyShardedDataParallel: the class that scripts written for FairScale or torch's FSDP construct."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from osdp.errors import InvalidProblemError, ProcessGroupError
from osdp.plan.choice import MODES
from osdp.plan.mixed_precision import MixedPrecision, fairscale_precision, precision_name
from osdp.plan.plan import Plan
from osdp.ranks.rank_group import Together
from osdp.sharding import step_scopes
from osdp.sharding.fully_shard import fully_shard, refuse_twice
from osdp.sharding.hybrid_mesh import GroupLike, RankGrid, given_or_found, model_ranks
from osdp.sharding.meta_init import InitFunction
from osdp.sharding.sharded_model import runtime_of


class FullyShardedDataParallel(nn.Module):
    """Wraps `module`, sharded by a plan. Collective over `process_group` (default: all ranks).

    With neither `plan` nor `memory` everything is FULL_SHARD, as FSDP does. With `plan` that plan is obeyed. With
    `memory` ("8GiB", bytes) and `sample` (a tuple or dict of example inputs) rank 0 searches for the fastest plan that
    fits, and all obey it; further keywords are `osdp.search`'s. `whole` (patterns of what stays NO_SHARD) also goes
    without a search.

    `mixed_precision`: an osdp.MixedPrecision, or torch's (FSDP1's or FSDP2's); or True, as FairScale has it, with its
    `compute_dtype` (fp16), `buffer_dtype` (the same) and `fp32_reduce_scatter`.
    `sharding_strategy`: torch's ShardingStrategy, or its name, in place of a plan: that mode everywhere (_HYBRID_SHARD_ZERO2
    is taken as HYBRID_SHARD, which gathers again for backward: less memory, the same numbers). By default FULL_SHARD, or
    HYBRID_SHARD where `device_mesh` has two dimensions or `process_group` is a pair. `device_mesh`, `ranks_per_host`,
    `device_id`, `param_init_fn`, `initialise` and `cpu_offload`: see `osdp.fully_shard`. `sync_module_states` changes
    nothing: rank 0's values always count.

    Names of parameters, buffers and state dict entries are the unwrapped module's; other attributes, and indexing, are
    the module's. Raises what `osdp.fully_shard` and `osdp.search` raise.

    >>> model = osdp.FullyShardedDataParallel(model)
    >>> optimizer = torch.optim.AdamW(model.parameters())
    """

    def __init__(
        self,
        module: nn.Module,
        process_group: GroupLike | None = None,
        plan: Plan | None = None,
        memory: int | float | str | None = None,
        *,
        sharding_strategy: Any = None,
        device_mesh: DeviceMesh | None = None,
        ranks_per_host: int | None = None,
        device_id: int | str | torch.device | None = None,
        param_init_fn: InitFunction | None = None,
        initialise: bool = True,
        sync_module_states: bool = True,
        cpu_offload: object = False,
        sample: Any = None,
        hardware: Any = None,
        mixed_precision: MixedPrecision | object | None = None,
        compute_dtype: torch.dtype | None = None,
        buffer_dtype: torch.dtype | None = None,
        fp32_reduce_scatter: bool = False,
        **search_options: Any,
    ) -> None:
        super().__init__()
        refuse_twice(module)
        mixed_precision = fairscale_precision(
            mixed_precision, compute_dtype, buffer_dtype, fp32_reduce_scatter
        )
        whole = search_options.pop("whole", ()) if memory is None and plan is None else ()
        _check_search_options(memory, {"sample": sample, "hardware": hardware}, search_options)
        if plan is not None and memory is not None:
            raise InvalidProblemError(
                "give plan= or memory=, not both: a plan was made for its own memory limit"
            )
        if sharding_strategy is not None and (plan is not None or memory is not None):
            raise InvalidProblemError(
                "sharding_strategy= is one mode for everything; with plan= or memory= the plan says the modes"
            )
        on: dict[str, Any] = {"device_mesh": device_mesh, "ranks_per_host": ranks_per_host}
        start: dict[str, Any] = {
            "device_id": device_id,
            "param_init_fn": param_init_fn,
            "initialise": initialise,
            "cpu_offload": cpu_offload,
        }
        del sync_module_states
        if memory is not None:
            if mixed_precision is not None:
                search_options["precision"] = precision_name(mixed_precision)
            plan = _searched(module, process_group, on, memory, sample, hardware, search_options)
        if plan is None:
            given = device_mesh if device_mesh is not None else process_group
            plan = Plan.uniform(module, _mode(sharding_strategy, given), whole=whole)
        fully_shard(module, plan, process_group, mixed_precision=mixed_precision, **on, **start)
        self.module = module

    @property
    def _osdp_wrapped(self) -> nn.Module:
        return self.module

    @property
    def plan(self) -> Plan:
        return runtime_of(self.module).plan

    @property
    def rank(self) -> int:
        return runtime_of(self.module).runtime.rank

    @property
    def world_size(self) -> int:
        return runtime_of(self.module).runtime.world

    @property
    def process_group(self) -> dist.ProcessGroup:
        return runtime_of(self.module).group

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def no_sync(self) -> AbstractContextManager[None]:
        """See `osdp.no_sync`."""
        return step_scopes.no_sync(self.module)

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> Tensor:
        """See `osdp.clip_grad_norm_`."""
        return step_scopes.clip_grad_norm_(self.module, max_norm, norm_type, error_if_nonfinite)

    def summon_full_params(
        self, with_grads: bool = False, writeback: bool = True
    ) -> AbstractContextManager[None]:
        """See `osdp.summon_full_params`."""
        return step_scopes.summon_full_params(self.module, with_grads, writeback)

    # Names are the unwrapped module's: the wrapper adds no "module." to parameters, buffers and state dicts.

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return self.module.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Tensor]]:
        return self.module.named_buffers(*args, **kwargs)

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


def _check_search_options(memory: object, own: dict[str, Any], options: dict[str, Any]) -> None:
    """`options`: keyword arguments that are none of the class's own, so the search's, or nobody's."""
    from osdp.planning.search import search

    decided_here = {"model", "memory", "world_size", "precision", *own}
    theirs = [name for name in inspect.signature(search).parameters if name not in decided_here]
    if unknown := [name for name in options if name not in theirs]:
        raise InvalidProblemError(
            f"FullyShardedDataParallel has no argument {unknown[0]!r}: the plan says what is gathered together, when, "
            f"and in which mode. Beside its own arguments it takes those of the search: {', '.join(theirs)}"
        )
    given = [name for name, value in own.items() if value is not None] + list(options)
    if memory is None and given:
        plural = len(given) > 1
        raise InvalidProblemError(
            f"{', '.join(given)} {'are' if plural else 'is'} for the search: give memory= too, or leave "
            f"{'them' if plural else 'it'} out"
        )


def _mode(strategy: Any, given: GroupLike | None) -> str:
    if strategy is None:
        lines = isinstance(given, tuple) or (isinstance(given, DeviceMesh) and given.ndim == 2)
        return "HYBRID_SHARD" if lines else "FULL_SHARD"
    name = str(getattr(strategy, "name", strategy)).removeprefix("_").removesuffix("_ZERO2")
    if name not in MODES:
        raise InvalidProblemError(f"sharding_strategy is {strategy!r}; it is one of {', '.join(MODES)}")
    return name


def _hosts(together: Together, grid: RankGrid | None, ranks_per_host: int | None) -> int:
    """Over how many hosts the ranks are spread evenly; 1 where they are not, which rules HYBRID_SHARD out."""
    try:
        return len(given_or_found(together, grid, ranks_per_host).lines)
    except ProcessGroupError:
        return 1


def _searched(
    module: nn.Module,
    process_group: GroupLike | None,
    on: dict[str, Any],
    memory: int | float | str,
    sample: Any,
    hardware: Any,
    options: dict[str, Any],
) -> Plan:
    """Rank 0's plan, on every rank."""
    from osdp.planning.search import search

    if sample is None:
        raise InvalidProblemError(
            "memory= needs sample=, a tuple or dict of example inputs: the search measures them"
        )
    group, grid = model_ranks(process_group, on["device_mesh"])
    together = Together(group, "the search for a plan")
    hosts = options.pop("hosts", None) or _hosts(together, grid, on["ranks_per_host"])

    def found() -> str:
        if together.rank != 0:
            return ""
        plan = search(
            module,
            sample,
            memory=memory,
            world_size=together.world_size,
            hosts=hosts,
            hardware=hardware,
            **options,
        )
        return plan.dumps()

    text = together.do("searching for a plan", found)
    return Plan.loads(together.all(text)[0])
