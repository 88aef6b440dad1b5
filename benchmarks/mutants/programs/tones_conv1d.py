"""Finds the tones in a short noisy signal: 1-d convolutions, several labels per row, on-the-fly noise."""

import math
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)

RATE, SAMPLES = 1000, 256
TONES = torch.tensor([40.0, 75.0, 120.0, 180.0, 260.0, 350.0])


def signals(count):
    """Mixtures of tones at random phases and loudness."""
    present = (torch.rand(count, len(TONES)) < 0.4).float()
    time = torch.arange(SAMPLES) / RATE
    phase = 2 * math.pi * torch.rand(count, len(TONES), 1)
    loudness = 0.5 + torch.rand(count, len(TONES), 1)
    waves = loudness * torch.sin(2 * math.pi * TONES[None, :, None] * time + phase)
    clean = (waves * present[..., None]).sum(1, keepdim=True)
    return clean + 0.3 * torch.randn(count, 1, SAMPLES), present


train_x, train_y = signals(1200)
test_x, test_y = signals(400)
scale = train_x.std()
train_x, test_x = train_x / scale, test_x / scale


def conv_block(c_in, c_out, kernel, stride):
    return nn.Sequential(
        nn.Conv1d(c_in, c_out, kernel, stride=stride, padding=kernel // 2), nn.BatchNorm1d(c_out), nn.ReLU()
    )


model = nn.Sequential(
    conv_block(1, 16, 33, 2),
    conv_block(16, 24, 9, 2),
    conv_block(24, 32, 5, 2),
    nn.AdaptiveMaxPool1d(1),
    nn.Flatten(),
    nn.Linear(32, len(TONES)),
)
loader = DataLoader(TensorDataset(train_x, train_y), batch_size=40, shuffle=True)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.8)
criterion = nn.BCEWithLogitsLoss()


def f1():
    model.eval()
    with torch.no_grad():
        predicted = (model(test_x) > 0).float()
    hit = (predicted * test_y).sum(0)
    return (2 * hit / (predicted.sum(0) + test_y.sum(0)).clamp(min=1)).mean().item()


for epoch in range(6):
    model.train()
    losses = []
    for wave, tones in loader:
        wave = wave + 0.05 * torch.randn_like(wave)
        optimizer.zero_grad()
        loss = criterion(model(wave), tones)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    scheduler.step()
    print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f}, macro F1 {f1():.3f}")
print("score", f1())
