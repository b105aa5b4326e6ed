"""A small GPT under Hugging Face's Trainer.

torchrun --nproc-per-node 2 examples/frameworks/train_trainer.py                  # DDP
torchrun --nproc-per-node 2 examples/frameworks/train_trainer.py --memory 40MiB   # the fastest plan that fits
"""

from __future__ import annotations

import argparse
import json

import torch
import transformers as hf
from small_gpt import LENGTH, SAMPLES, WORDS, gpt

from osdp.integrations.transformers import OSDPTrainer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory", help="of a rank, such as 40MiB; without it the run is DDP's")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--directory", default="build/trainer")
    parser.add_argument("--resume", help="a checkpoint to go on from, written under either")
    told = parser.parse_args()
    torch.manual_seed(0)
    words = torch.randint(0, WORDS, (256, LENGTH))
    args = hf.TrainingArguments(
        output_dir=told.directory,
        max_steps=told.steps,
        per_device_train_batch_size=SAMPLES,
        gradient_accumulation_steps=2,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_steps=told.steps,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        log_level="error",
    )
    data = [{"input_ids": w, "labels": w} for w in words]
    osdp = {"memory": told.memory, "search": {"batch_size": SAMPLES}}
    if told.memory:
        trainer: hf.Trainer = OSDPTrainer(gpt(), args, train_dataset=data, eval_dataset=data[:16], osdp=osdp)
    else:
        trainer = hf.Trainer(gpt(), args, train_dataset=data, eval_dataset=data[:16])
    trainer.train(resume_from_checkpoint=told.resume)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    validation = [trainer.evaluate()["eval_loss"]]
    if trainer.is_world_process_zero():
        held = sum(p.numel() for p in trainer.model.parameters())
        print(json.dumps({"losses": losses, "validation": validation, "held parameters": held}))
    accelerator = trainer.accelerator
    del trainer  # its DDP model would outlive the process group
    accelerator.free_memory()
    accelerator.end_training()  # without it torch's threads abort the process at exit now and then


if __name__ == "__main__":
    main()
