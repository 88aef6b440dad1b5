"""The cost of watching a Lightning training, as under ``luff run`` and with the call-back."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import luff.lightning
import torch
from _pairs import compare, keep_memory
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = 100
BATCH, SIZE = 64, 32
LIMIT = 1.02


class Net(pl.LightningModule):
    """A small convolutional classifier; a step takes about 50 ms of one core."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, 10),
        )
        self.loss = nn.CrossEntropyLoss()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Trains one batch, and logs its loss."""
        loss = self.loss(self.body(batch[0]), batch[1])
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Evaluates one batch."""
        self.log("val_loss", self.loss(self.body(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        """Returns Adam."""
        return torch.optim.Adam(self.parameters(), 1e-3)


def train(*callbacks: Any) -> None:
    """Runs one training with an evaluation at its end."""
    torch.manual_seed(0)
    x = torch.randn(STEPS * BATCH, 3, SIZE, SIZE)
    data = TensorDataset(x, torch.randint(0, 10, (len(x),)))
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
    )
    evaluation = TensorDataset(x[: 10 * BATCH], data.tensors[1][: 10 * BATCH])
    trainer.fit(Net(), DataLoader(data, BATCH), DataLoader(evaluation, BATCH))


def watched(run: Path) -> None:
    """Like `train`, with the call-back, until the run is closed."""
    callback = luff.lightning.Callback(run)
    train(callback)
    callback.close()
    health = callback.hook.health()
    assert health["hook_errors"] == 0, health


def measure() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns results and gates."""
    warnings.filterwarnings("ignore")
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_num_threads(1)
    keep_memory()
    result, held = compare("Lightning, fit", train, watched, LIMIT)
    return [result], [held]
