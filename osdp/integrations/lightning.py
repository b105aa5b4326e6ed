"""OSDPStrategy: a strategy for Lightning's Trainer that shards the LightningModule by a plan.

    from osdp.integrations.lightning import OSDPStrategy

    trainer = Trainer(devices=2, strategy=OSDPStrategy(memory="8GiB", sample=(tokens,)))

The module is sharded in place before `configure_optimizers` runs, and its `*_step` methods gather parameters
like forward. Checkpoints have the format of one process and of DDP: full tensors, written by rank 0; each can
load the other's. Needs the extra `lightning`.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.optim import Optimizer

from osdp.base.modules import is_sharded
from osdp.errors import InvalidProblemError
from osdp.fsdp.first_forward import is_waiting, wait_for_inputs
from osdp.fsdp.optimizer_states import plain_state_dict
from osdp.fsdp.options import Options
from osdp.fsdp.shard import shard
from osdp.fsdp.wrap import mark_selected
from osdp.sharding.forward_methods import register_forward_method
from osdp.sharding.step_scopes import no_sync

STEPS = ("training_step", "validation_step", "test_step", "predict_step")
LAUNCH = ("accelerator", "parallel_devices", "cluster_environment", "checkpoint_io", "precision_plugin",
          "process_group_backend", "timeout", "start_method")  # fmt: skip


class OSDPStrategy(DDPStrategy):
    """Takes the arguments of `osdp.FullyShardedDataParallel` after the module, and the strategy's own
    `process_group_backend`, `timeout`, `start_method` and plugins.

    With `memory` rank 0 searches for the fastest plan that fits; `plan` is a given plan; with neither,
    everything is FULL_SHARD. `sample`: example inputs of the module's forward, of the same shapes on all
    ranks; by default its `example_input_array`. Without either the plan is made at the first `training_step`,
    which rank 0 traces on a copy of the module that has no trainer: self.log does nothing there, and with `memory`
    a step that needs the trainer or values of tensors is a DescribeError.

    Also takes the arguments of Lightning's FSDPStrategy (docs/frameworks.md): `activation_checkpointing_policy` selects
    layers that are recomputed, beside those that a plan recomputes.

    Raises InvalidProblemError for unknown arguments, and for `state_dict_type="sharded"`.
    """

    strategy_name = "osdp"
    model: nn.Module | None

    def __init__(
        self,
        *,
        activation_checkpointing: type[nn.Module] | Collection[type[nn.Module]] | None = None,
        activation_checkpointing_policy: Any = None,
        state_dict_type: str = "full",
        **options: Any,
    ) -> None:
        if state_dict_type != "full":
            raise InvalidProblemError(
                f"state_dict_type={state_dict_type!r} is not supported: the Trainer's checkpoints hold full tensors, which "
                "runs of any number of ranks can load; osdp.Checkpoints in a callback writes each "
                "rank's part"
            )
        self._recomputed = _policy_of(activation_checkpointing, activation_checkpointing_policy)
        launch = {name: options.pop(name) for name in LAUNCH if name in options}
        super().__init__(**launch)
        self._given = {"state_dict_on_rank_0_only": True, "state_dict_device": "cpu", **options}
        Options.of((), self._given)  # raises for invalid arguments before anything starts

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        return True  # each rank then copies its rows, and the optimizer's states are created for those

    def setup(self, trainer: Trainer) -> None:
        assert self.accelerator is not None and self.model is not None
        self.accelerator.setup(trainer)
        self.model = self.precision_plugin.convert_module(self.model)
        if not is_sharded(self.model):  # in `test` after `fit` it is sharded already
            self._shard(self.model)
        if trainer.state.fn == TrainerFn.FITTING:
            self.setup_optimizers(trainer)
        self.setup_precision_plugin()

    def _shard(self, model: nn.Module) -> None:
        given = {"device_id": self.root_device, **self._given}
        if isinstance(shape := given.get("device_mesh"), tuple):
            given["device_mesh"] = init_device_mesh(self.root_device.type, shape)
        if given.get("sample") is None and given.get("plan") is None:
            given["sample"] = _example_of(model)
        options = Options.of((), given)
        if self._recomputed is not None:
            apply_activation_checkpointing(model, auto_wrap_policy=self._recomputed)
        mark_selected(model, options)
        shard(model, options, options.form)
        wait_for_inputs(model, options)
        for step in STEPS:
            if getattr(type(model), step) is not getattr(LightningModule, step):
                register_forward_method(model, step)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        if self.model is None or not is_waiting(self.model, "training_step"):
            return super().training_step(*args, **kwargs)
        with warnings.catch_warnings():  # of the copy on which the first step is traced
            warnings.filterwarnings(
                "ignore", ".*`self.log\\(\\)` but the `self.trainer` reference is not registered"
            )
            return super().training_step(*args, **kwargs)

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Context for all but the last micro-batch of `accumulate_grad_batches`."""
        assert self.model is not None
        with no_sync(self.model):
            yield

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The full state on rank 0. Collective."""
        assert self.model is not None
        plain = getattr(optimizer, "optimizer", optimizer)  # inside Lightning's wrapper
        return plain_state_dict(self.model, plain)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            optimizer.load_state_dict(state)

    def teardown(self) -> None:
        """The module remains sharded on its device, since `trainer.test` may follow."""
        assert self.accelerator is not None and self.cluster_environment is not None
        self.cluster_environment.teardown()
        self.precision_plugin.teardown()
        self.accelerator.teardown()
        self.checkpoint_io.teardown()


def _policy_of(classes: type[nn.Module] | Collection[type[nn.Module]] | None, policy: Any) -> Any:
    """Which layers are recomputed, as a policy; None: none."""
    if classes is not None and policy is not None:
        raise InvalidProblemError(
            "pass activation_checkpointing_policy alone: activation_checkpointing is its older name"
        )
    given = policy if classes is None else {classes} if isinstance(classes, type) else set(classes)
    return ModuleWrapPolicy(given) if isinstance(given, set | frozenset) else given


def _example_of(model: nn.Module) -> Any:
    example = getattr(model, "example_input_array", None)
    return example if example is None or isinstance(example, (tuple, dict)) else (example,)


StrategyRegistry.register(
    "osdp",
    OSDPStrategy,
    description="shards everything with FULL_SHARD; OSDPStrategy(memory=...) searches for a plan",
)
