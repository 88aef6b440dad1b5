"""The usual loop with Accelerate, used by several tests."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def prepared(accelerator, lr=0.1):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 6, generator=generator)
    data = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), 8)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    return accelerator.prepare(model, optimizer, data, scheduler)


def fit(accelerator, model, optimizer, data, scheduler, clip=None):
    """Runs the usual loop; returns losses and the gradients that updates used."""
    losses, used = [], []
    for x, y in data:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                if clip is not None:
                    accelerator.clip_grad_norm_(model.parameters(), clip)
                used.append({name: p.grad.clone().numpy() for name, p in model.named_parameters()})
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        accelerator.log({"train/loss": loss.item(), "note": "text"})
    return losses, used
