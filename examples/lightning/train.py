"""Trains a classifier of scikit-learn's digits with Lightning; does not use Luff.

luff run -- python examples/lightning/train.py            no findings
luff run -- python examples/lightning/train.py --forget   an optimizer with the last layer only
luff run --on-finding stop -- python examples/lightning/train.py --keep
                                                          gradients that are never cleared: Luff stops the training
"""

from __future__ import annotations

import argparse
from typing import Any

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Digits(pl.LightningModule):
    """A network of two layers."""

    def __init__(self, forget: bool, keep: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.forget, self.keep = forget, keep

    def _loss(self, batch: Any, name: str) -> torch.Tensor:
        x, y = batch
        loss = nn.functional.cross_entropy(self.body(x), y)
        self.log(name, loss, prog_bar=True)
        return loss

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Trains on one batch."""
        return self._loss(batch, "train_loss")

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Evaluates one batch."""
        self._loss(batch, "val_loss")

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: torch.optim.Optimizer) -> None:
        """Lightning calls this before each backward pass."""
        if not self.keep:
            optimizer.zero_grad()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Returns Adam, with all parameters unless `forget` is set."""
        return torch.optim.Adam((self.body[2] if self.forget else self).parameters(), lr=3e-3)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--forget", action="store_true", help="the optimizer gets the last layer only")
    parser.add_argument("--keep", action="store_true", help="gradients are never cleared")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    pl.seed_everything(0)
    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(y))
    data = TensorDataset(torch.tensor(x / 16.0, dtype=torch.float32)[order], torch.tensor(y)[order])
    train, validation = torch.utils.data.random_split(data, [1400, len(y) - 1400])
    trainer = pl.Trainer(
        max_epochs=options.epochs, accelerator="cpu", logger=False, enable_checkpointing=False
    )
    trainer.fit(
        Digits(options.forget, options.keep), DataLoader(train, 32, shuffle=True), DataLoader(validation, 128)
    )


if __name__ == "__main__":
    main()
