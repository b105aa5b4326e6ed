"""Options: the arguments of a wrapper, independent of the class for which the script was written."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from osdp.base.warned import warn
from osdp.errors import InvalidProblemError
from osdp.fsdp.arguments import HARMLESS, REFUSED, by_position, check_names, check_search
from osdp.plan.choice import MODES
from osdp.plan.mixed_precision import MixedPrecision, as_mixed_precision, fairscale_precision
from osdp.plan.plan import Plan
from osdp.sharding.cpu_offload import wants_offload
from osdp.sharding.hybrid_mesh import GroupLike
from osdp.sharding.meta_init import InitFunction
from osdp.sharding.state_dict_form import StateDictForm


@dataclass(frozen=True)
class Options:
    """The arguments that have an effect; see FullyShardedDataParallel and docs/drop-in.md."""

    process_group: GroupLike | None = None
    auto_wrap_policy: Any = None
    plan: Plan | None = None
    memory: int | float | str | None = None
    sample: Any = None
    hardware: Any = None
    search: Mapping[str, Any] | None = None
    whole: str | Sequence[str] = ()
    sharding_strategy: Any = None
    reshard_after_forward: bool | None = None
    device_mesh: DeviceMesh | None = None
    ranks_per_host: int | None = None
    device_id: int | str | torch.device | None = None
    compute_device: int | str | torch.device | None = None
    ignored_modules: Iterable[nn.Module] | None = None
    ignored_states: Iterable[nn.Parameter | nn.Module] | None = None
    param_init_fn: InitFunction | None = None
    initialise: bool | None = True  # None: what a method fills; the rest is the script's, as in FSDP2
    cpu_offload: object = False
    move_params_to_cpu: bool = False
    move_grads_to_cpu: bool | None = None
    mixed_precision: MixedPrecision | object | None = None
    compute_dtype: torch.dtype | None = None
    buffer_dtype: torch.dtype | None = None
    fp32_reduce_scatter: bool = False
    force_input_to_fp32: bool = False
    state_dict_device: int | str | torch.device | None = None
    state_dict_on_rank_0_only: bool = False

    @staticmethod
    def of(positional: Sequence[object], named: Mapping[str, Any]) -> Options:
        """Options from the arguments after `module` and `process_group`. Raises InvalidProblemError."""
        placed = by_position(positional)
        if twice := sorted(placed.keys() & named.keys()):
            raise InvalidProblemError(f"{twice[0]} is passed both by position and by name")
        given = {**placed, **named}
        if isinstance(classes := given.get("auto_wrap_policy"), set | frozenset):
            given["auto_wrap_policy"] = ModuleWrapPolicy(classes)
        own = [f.name for f in dataclasses.fields(Options)]
        check_names(given, own)
        for name in ("ignored_modules", "ignored_states"):  # generators: iterated more than once
            if given.get(name) is not None:
                given[name] = tuple(given[name])
        options = Options(**{k: v for k, v in given.items() if k not in HARMLESS and k not in REFUSED})
        options._check()
        return options

    def _check(self) -> None:
        if self.plan is not None and self.memory is not None:
            raise InvalidProblemError(
                "pass plan= or memory=, not both: a plan was made for its own memory limit"
            )
        if self.sharding_strategy is not None and (self.plan is not None or self.memory is not None):
            raise InvalidProblemError(
                "sharding_strategy= sets one mode for the whole model; it cannot be combined with "
                "plan= or memory=, where the plan sets the modes"
            )
        own = {"hardware": self.hardware, "search": self.search}
        given = [name for name, value in own.items() if value is not None]
        if self.memory is None and given:
            verb, rest = ("are", "them") if len(given) > 1 else ("is", "it")
            raise InvalidProblemError(
                f"{', '.join(given)} {verb} used only by the search: pass memory= too, or leave {rest} out"
            )
        if self.move_grads_to_cpu not in (None, self.offload):
            raise InvalidProblemError(
                f"move_grads_to_cpu={self.move_grads_to_cpu} with shards "
                f"{'in host memory' if self.offload else 'on the device'} is not supported: gradients "
                "stay where their shards are, so set only move_params_to_cpu"
            )
        check_search(self.search or {})
        policy = self.auto_wrap_policy
        if not (policy is None or callable(policy) or hasattr(policy, "_run_policy")):
            raise InvalidProblemError(
                "auto_wrap_policy must be a function, a set of classes, or torch's ModuleWrapPolicy or CustomPolicy, "
                f"got {policy!r}"
            )
        _ = self.mode
        if as_mixed_precision(self.precision) and os.environ.get("FSDP_USE_FULL_PREC_IN_EVAL") == "1":
            warn(
                "FSDP_USE_FULL_PREC_IN_EVAL has no effect on OSDP: the model evaluates in the "
                "precision that it trains in. To evaluate in full precision, load the state dict "
                "into a model without mixed precision.",
            )

    def given(self) -> dict[str, Any]:
        """The options that differ from the defaults."""
        fields = dataclasses.fields(self)
        return {f.name: v for f in fields if (v := getattr(self, f.name)) is not f.default}

    def for_part(self, told: Options) -> dict[str, Any]:
        """The arguments of a part's wrapper that has a group of its own: `told`, and those of the model's that hold for a
        part."""
        of_whole = (
            *("process_group", "device_mesh", "auto_wrap_policy", "plan", "memory"),
            *("sample", "hardware", "search"),
        )
        kept = {name: value for name, value in self.given().items() if name not in of_whole}
        return {**kept, **told.given()}

    @property
    def offload(self) -> bool:
        return wants_offload(self.cpu_offload) or self.move_params_to_cpu

    @property
    def form(self) -> StateDictForm:
        """The form of state dicts: on the host, or on the model's device."""
        on_host = self.state_dict_device is not None and torch.device(self.state_dict_device).type == "cpu"
        return StateDictForm("full", on_host, self.state_dict_on_rank_0_only)

    @property
    def device(self) -> int | str | torch.device | None:
        return self.compute_device if self.device_id is None else self.device_id

    @property
    def precision(self) -> object:
        """The mixed precision, OSDP's object or torch's; None: the plan's."""
        wanted = self.mixed_precision
        fairscale = (
            self.compute_dtype is not None or self.buffer_dtype is not None or self.fp32_reduce_scatter
        )
        made = fairscale_precision(
            False if wanted is None and fairscale else wanted,
            self.compute_dtype,
            self.buffer_dtype,
            self.fp32_reduce_scatter,
        )
        as_mixed_precision(made)  # may raise
        return made

    @property
    def mode(self) -> str:
        """The mode of every operator if no plan is given."""
        given = self.device_mesh if self.device_mesh is not None else self.process_group
        if self.sharding_strategy is None:
            if self.reshard_after_forward is False:
                return "SHARD_GRAD_OP"
            lines = isinstance(given, tuple) or (isinstance(given, DeviceMesh) and given.ndim == 2)
            return "HYBRID_SHARD" if lines else "FULL_SHARD"
        told = self.sharding_strategy
        name = str(getattr(told, "name", told)).removeprefix("_").removesuffix("_ZERO2")
        if name not in MODES:
            raise InvalidProblemError(f"sharding_strategy must be one of {', '.join(MODES)}, got {told!r}")
        return name


OPTIONS = frozenset(f.name for f in dataclasses.fields(Options))
