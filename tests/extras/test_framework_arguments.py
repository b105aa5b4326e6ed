"""What scripts for the frameworks' FSDP do: a Trainer that trains twice, the arguments of Lightning's FSDPStrategy."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import pytest
from training_scripts import TORCHRUN, figures_of

EXAMPLES = Path(__file__).parents[2] / "examples" / "frameworks"

TWICE = f"""
import json, sys
sys.path.insert(0, {str(EXAMPLES)!r})
import torch, transformers as hf
from small_gpt import LENGTH, SAMPLES, WORDS, gpt
from osdp.integrations.transformers import OSDPTrainer

how, place = sys.argv[1:]
torch.manual_seed(0)
words = torch.randint(0, WORDS, (64, LENGTH))
args = hf.TrainingArguments(
    output_dir=place, max_steps=4, per_device_train_batch_size=SAMPLES, learning_rate=1e-3,
    lr_scheduler_type="constant", logging_steps=1, save_steps=2, use_cpu=True, report_to=[], disable_tqdm=True,
    log_level="error",
)
data = [{{"input_ids": w, "labels": w}} for w in words]
made = hf.Trainer if how == "ddp" else lambda *a, **k: OSDPTrainer(*a, **k, osdp={{}})
trainer = made(gpt(), args, train_dataset=data)
losses = []
for steps, resume in ((4, None), (6, f"{{place}}/checkpoint-2"), (8, None)):
    trainer.args.max_steps = steps
    trainer.train(resume_from_checkpoint=resume)
    losses += [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
if trainer.is_world_process_zero():
    print(json.dumps({{"losses": losses}}))
accelerator = trainer.accelerator
del trainer
accelerator.free_memory(), accelerator.end_training()
"""

ARGUMENTS = f"""
import json, sys
sys.path.insert(0, {str(EXAMPLES)!r})
import lightning as L, torch
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from train_lightning import LENGTH, WORDS, Words
from osdp.integrations.lightning import OSDPStrategy

how, place = sys.argv[1:]
L.seed_everything(0, verbose=False)
layers = {{nn.TransformerEncoderLayer}}
given = {{
    "fsdp": dict(auto_wrap_policy=layers, activation_checkpointing_policy=layers, state_dict_type="full",
                 sharding_strategy="SHARD_GRAD_OP", cpu_offload=False, use_orig_params=True),
    "mesh": dict(sharding_strategy="HYBRID_SHARD", device_mesh=(1, 2), activation_checkpointing=list(layers)),
}}
kind = DDPStrategy if how == "ddp" else OSDPStrategy
data = DataLoader(TensorDataset(torch.randint(0, WORDS, (64, LENGTH))), batch_size=4)
trainer = L.Trainer(
    accelerator="cpu", devices=2, max_steps=4, logger=False, enable_progress_bar=False, enable_model_summary=False,
    enable_checkpointing=False, strategy=kind(process_group_backend="gloo", **given.get(how, {{}})),
)
model = Words()
trainer.fit(model, data)
trainer.save_checkpoint(f"{{place}}/{{how}}.ckpt")
if trainer.is_global_zero:
    keys = list(torch.load(f"{{place}}/{{how}}.ckpt", weights_only=False)["state_dict"])
    print(json.dumps({{"losses": [loss.item() for loss in model.losses], "keys": keys}}))
"""


def run(command: list[str], script: str, place: Path, how: str) -> dict[str, Any]:
    file = place / f"{how}.py"
    file.write_text(script)
    return figures_of([*command, str(file), how, str(place / how)])


def test_a_trainer_that_trains_again_and_resumes(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    wanted, got = (run(TORCHRUN, TWICE, tmp_path, how) for how in ("ddp", "osdp"))
    assert got["losses"] == pytest.approx(wanted["losses"], rel=1e-3) and len(got["losses"]) > 15


def test_arguments_of_lightnings_strategy_for_fsdp(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    from lightning.pytorch.strategies import FSDPStrategy

    from osdp.errors import InvalidProblemError
    from osdp.integrations.lightning import OSDPStrategy

    for name, parameter in inspect.signature(FSDPStrategy.__init__).parameters.items():
        if parameter.default is not inspect.Parameter.empty:
            OSDPStrategy(**{name: parameter.default})
    with pytest.raises(InvalidProblemError, match="sharding_strategy'"):
        OSDPStrategy(sharding_strategyy="FULL_SHARD")
    with pytest.raises(InvalidProblemError, match=r"state_dict_type='sharded'.*full tensors"):
        OSDPStrategy(state_dict_type="sharded")
    with pytest.raises(InvalidProblemError, match="activation_checkpointing_policy alone"):
        OSDPStrategy(activation_checkpointing=int, activation_checkpointing_policy={int})
    wanted, *others = (run([sys.executable], ARGUMENTS, tmp_path, how) for how in ("ddp", "fsdp", "mesh"))
    for got in others:
        assert got["losses"] == pytest.approx(wanted["losses"], rel=1e-4)
        assert got["keys"] == wanted["keys"]
