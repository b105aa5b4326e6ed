"""OSDPTrainer: Hugging Face's Trainer with a model sharded by a plan.

    from osdp.integrations.transformers import OSDPTrainer

    trainer = OSDPTrainer(model, args, train_dataset=data, osdp={"memory": "8GiB"})

`osdp` contains the arguments of `osdp.FullyShardedDataParallel` after the module; with `memory` and no sample
the first batch is the sample. Checkpoints are the Trainer's own, with full weights and states: runs under DDP
can load them, and vice versa. Needs the extras `hf` and `accelerate`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import Trainer

from osdp.integrations.accelerate import OSDPAccelerator


class OSDPTrainer(Trainer):
    """Takes the arguments of `transformers.Trainer`, and `osdp`. Raises the errors of OSDPAccelerator."""

    def __init__(self, *args: Any, osdp: Mapping[str, Any], **kwargs: Any) -> None:
        self._osdp = dict(osdp)
        super().__init__(*args, **kwargs)

    def _build_accelerator_args(self, **kwargs: Any) -> dict[str, Any]:
        self._accelerator_args: dict[str, Any] = super()._build_accelerator_args(**kwargs)
        return self._accelerator_args

    def create_accelerator_and_postprocess(self) -> None:
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
