"""OSDPAccelerator: Accelerate's training loop with a model sharded by a plan.

    from osdp.integrations.accelerate import OSDPAccelerator

    accelerator = OSDPAccelerator(memory="8GiB")
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

`prepare` shards the model in place, so that an optimizer created before has the same parameters. Without `sample=` the
plan is made at the model's first forward. Weights and states are saved as full tensors by rank 0: runs of one process or
under DDP can load them, and vice versa.
Needs the extra `accelerate`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from torch import nn

from osdp.base.modules import is_sharded, unwrapped
from osdp.errors import ShardingError
from osdp.fsdp.first_forward import wait_for_inputs
from osdp.fsdp.optimizer_states import plain_state_dict
from osdp.fsdp.options import OPTIONS, Options
from osdp.fsdp.shard import shard
from osdp.fsdp.wrap import mark_selected
from osdp.sharding.step_scopes import no_sync


class OSDPAccelerator(Accelerator):
    """Takes the arguments of `osdp.FullyShardedDataParallel` after the module, and those of
    `accelerate.Accelerator`; an argument of both (`mixed_precision`) has Accelerate's meaning: autocast.

    Raises InvalidProblemError for arguments that neither has, and the search's errors (in `prepare`).
    """

    def __init__(self, **options: Any) -> None:
        own = {name: options.pop(name) for name in list(options) if name in OURS}
        self._options = Options.of((), own)
        super().__init__(**options)
        if self._options.device is None:
            self._options = dataclasses.replace(self._options, device_id=self.device)
        self._sharded: list[nn.Module] = []

    def prepare(self, *args: Any, device_placement: Any = None) -> Any:
        """Like Accelerate's; models are prepared first, since optimizers step on their rows."""
        for model in args:
            if isinstance(model, nn.Module):
                self._shard(model)
        return super().prepare(*args, device_placement=device_placement)

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        self._shard(model)
        # Apart from autocast and torch.compile it would wrap the model in DDP.
        return super().prepare_model(model, device_placement=False, evaluation_mode=True)  # type: ignore[no-any-return]

    def prepare_optimizer(
        self, optimizer: torch.optim.Optimizer, device_placement: bool | None = None
    ) -> AcceleratedOptimizer:
        # Prepared before: a second call of a Trainer's train().
        if isinstance(optimizer, AcceleratedOptimizer):
            if all(known is not optimizer for known in self._optimizers):
                self._optimizers.append(optimizer)
            return optimizer
        prepared = _WholeStates(optimizer, device_placement=False, scaler=self.scaler)
        prepared.models = self._sharded
        self._optimizers.append(prepared)
        return prepared

    def _shard(self, model: nn.Module) -> None:
        inner = unwrapped(model)
        if not is_sharded(inner):
            mark_selected(inner, self._options)
            shard(inner, self._options, self._options.form)
            wait_for_inputs(inner, self._options)
        if all(known is not inner for known in self._sharded):
            self._sharded.append(inner)

    @contextmanager
    def no_sync(self, model: nn.Module) -> Iterator[None]:
        with no_sync(unwrapped(model)) if is_sharded(unwrapped(model)) else nullcontext():
            yield


class _WholeStates(AcceleratedOptimizer):
    """An optimizer whose state dict is full, on rank 0, with numbers as in torch's optimizers. Collective."""

    models: list[nn.Module]

    def state_dict(self) -> dict[str, Any]:
        return plain_state_dict(self._model(), self.optimizer)

    def _model(self) -> nn.Module:
        mine = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        for model in self.models:
            if mine <= {id(p) for p in model.parameters()}:
                return model
        raise ShardingError(
            "an optimizer's parameters do not belong to exactly one prepared model: pass the model "
            "to `prepare` together with its optimizer, and give each optimizer the parameters of one "
            "model only"
        )


OURS = frozenset(OPTIONS) - {"mixed_precision"}
