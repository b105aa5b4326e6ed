"""A small GPT under Lightning, two ranks on the CPU.

python examples/frameworks/train_lightning.py                      # DDP
python examples/frameworks/train_lightning.py --memory 40MiB       # sharded by the fastest plan that fits
python examples/frameworks/train_lightning.py --memory 40MiB --resume build/lightning/last.ckpt
"""

from __future__ import annotations

import argparse
import json

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy, Strategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from osdp.integrations.lightning import OSDPStrategy

WORDS, LENGTH, WIDTH = 256, 32, 64


class Words(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS)
        self.losses: list[Tensor] = []

    def forward(self, words: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        return self.head(self.blocks(self.embed(words), mask=mask, is_causal=True))  # type: ignore[no-any-return]

    def loss_of(self, batch: list[Tensor]) -> Tensor:
        (words,) = batch
        return nn.functional.cross_entropy(self(words)[:, :-1].flatten(0, 1), words[:, 1:].flatten())

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        loss = self.loss_of(batch)
        self.losses.append(loss.detach())
        self.log("loss", loss)
        return loss

    def on_train_end(self) -> None:
        self.losses = [self.all_gather(loss).mean() for loss in self.losses]

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        self.log("validation", self.loss_of(batch), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory", help="of a rank, such as 40MiB; without it the run is DDP's")
    parser.add_argument(
        "--sample", action="store_true", help="plan before the first step, from example inputs"
    )
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--directory", default="build/lightning")
    parser.add_argument("--resume", help="a checkpoint to go on from, written under either strategy")
    told = parser.parse_args()
    L.seed_everything(0, verbose=False)
    search = {"batch_size": 4}
    strategy: Strategy = DDPStrategy(process_group_backend="gloo")
    if told.memory:
        sample = (torch.zeros(4, LENGTH, dtype=torch.long),) if told.sample else None
        strategy = OSDPStrategy(
            memory=told.memory, sample=sample, search=search, process_group_backend="gloo"
        )
    data = DataLoader(TensorDataset(torch.randint(0, WORDS, (128, LENGTH))), batch_size=4)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        max_steps=told.steps,
        accumulate_grad_batches=told.accumulate,
        gradient_clip_val=1.0,
        callbacks=[ModelCheckpoint(told.directory, filename="last", save_top_k=1, every_n_train_steps=told.steps,
                                   enable_version_counter=False)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=2,
    )  # fmt: skip
    model = Words()
    trainer.fit(model, data, data, ckpt_path=told.resume)
    if trainer.is_global_zero:
        validation = [float(v) for name, v in trainer.callback_metrics.items() if name == "validation"]
        held = sum(p.numel() for p in model.parameters())
        print(
            json.dumps(
                {
                    "losses": [loss.item() for loss in model.losses],
                    "validation": validation,
                    "held parameters": held,
                }
            )
        )


if __name__ == "__main__":
    main()
