"""Small trainings with Lightning, used by several tests."""

from __future__ import annotations

import logging

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

for name in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning_fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)


def points(count=64, seed=0):
    """Returns points in eight dimensions, each in one of three classes."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 8, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long())


def loader(count=64, seed=0, batch=16, shuffle=False):
    return DataLoader(points(count, seed), batch, shuffle=shuffle)


class Net(pl.LightningModule):
    """A classifier; keeps the gradients that updates use."""

    def __init__(self, lr=0.05, optimizer=torch.optim.SGD):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 3))
        self.loss = nn.CrossEntropyLoss()
        self.lr, self.kind = lr, optimizer
        self.used = []
        self.losses = []

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = self.loss(self(x), y)
        self.losses.append(loss.item())
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(self(batch[0]), batch[1]))

    def test_step(self, batch, batch_idx):
        self.log("test_loss", self.loss(self(batch[0]), batch[1]))

    def predict_step(self, batch, batch_idx):
        return self(batch[0])

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
        self.used.append({name: p.grad.clone().numpy() for name, p in self.named_parameters()})

    def configure_optimizers(self):
        optimizer = self.kind(self.parameters(), lr=self.lr)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


def trainer(*callbacks, **settings):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "accelerator": "cpu", "max_epochs": 2}
    return pl.Trainer(callbacks=list(callbacks), **{**quiet, **settings})
