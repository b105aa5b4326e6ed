"""OSDPTrainer: Hugging Face's Trainer with a model sharded by a plan.

    from osdp.integrations.transformers import OSDPTrainer

    trainer = OSDPTrainer(model, args, train_dataset=data, osdp={"memory": "8GiB"})

`osdp` contains the arguments of `osdp.FullyShardedDataParallel` after the module; with `memory` and no sample
the first batch is the sample. Checkpoints are the Trainer's own, with full weights and states: runs under DDP
can load them, and vice versa. Needs the extras `hf` and `accelerate`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from transformers import PreTrainedModel, Trainer

from osdp.description.describe import describe as describe_model
from osdp.description.model_description import ModelDescription


def describe(
    model: PreTrainedModel, *args: Any, precision: str = "fp32", device: str | None = None, **kwargs: Any
) -> ModelDescription:
    """`osdp.describe` of a model as it trains: in training mode, and without the cache of generation (`use_cache`), which
    transformers switches off too where it recomputes. Mode and config are restored.

    Blocks that change their inputs for another reason are not recomputed. Train with `use_cache=False`.

    >>> plan = osdp.search(osdp.integrations.transformers.describe(model, **batch, precision="bf16"), precision="bf16")
    """
    with _as_it_trains(model):
        return describe_model(model, *args, precision=precision, device=device, **kwargs)


@contextmanager
def _as_it_trains(model: PreTrainedModel) -> Iterator[None]:
    with ExitStack() as stack:
        for module in model.modules():
            stack.callback(setattr, module, "training", module.training)
            config: Any = getattr(module, "config", None)
            if getattr(config, "use_cache", False):
                stack.callback(setattr, config, "use_cache", config.use_cache)
                config.use_cache = False
        model.train()
        yield


class OSDPTrainer(Trainer):
    """Takes the arguments of `transformers.Trainer`, and `osdp`. Raises the errors of OSDPAccelerator."""

    def __init__(self, *args: Any, osdp: Mapping[str, Any], **kwargs: Any) -> None:
        self._osdp = dict(osdp)
        super().__init__(*args, **kwargs)

    def _build_accelerator_args(self, **kwargs: Any) -> dict[str, Any]:
        self._accelerator_args: dict[str, Any] = super()._build_accelerator_args(**kwargs)
        return self._accelerator_args

    def create_accelerator_and_postprocess(self) -> None:
        # Needs its own extra, which `describe` does not.
        from osdp.integrations.accelerate import OSDPAccelerator

        super().create_accelerator_and_postprocess()
        # Accelerators share one state: settings of the first one apply to this one.
        self.accelerator = OSDPAccelerator(**self._accelerator_args, **self._osdp)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Rank 0 writes; every rank must call this."""
        model: Any = self.model
        state = model.state_dict()
        self._save(output_dir, state_dict=state)
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save")

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        optimizer: Any = self.optimizer
        state = optimizer.state_dict()  # collective, but the Trainer calls it on rank 0 only
        optimizer.state_dict = lambda: state
        try:
            super()._save_optimizer_and_scheduler(output_dir)
        finally:
            del optimizer.state_dict
