"""Resistance of yacht hulls from their form and speed: a residual network, Accelerate with accumulation."""
# environment: lightning

import math
import os

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

set_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)
ACCUMULATE = 2


def hulls(n):
    """Buoyancy, prismatic coefficient, length, beam, and Froude number; resistance grows steeply with speed."""
    low = torch.tensor([-5.0, 0.53, 4.3, 2.8, 0.12])
    high = torch.tensor([0.0, 0.60, 5.1, 5.4, 0.45])
    x = low + (high - low) * torch.rand(n, 5)
    buoyancy, prismatic, length, beam, froude = x.T
    wave = torch.exp(9 * (froude - 0.3)) * (1 + 6 * (prismatic - 0.56)) * (5 / length) ** 2
    hump = 1.5 * torch.sin(30 * froude) * froude * (beam / 4)
    log_resistance = torch.log1p(wave + (0.2 * (buoyancy + 2.5)) ** 2) + 0.3 * hump
    return x, (log_resistance + 0.12 * torch.randn(n)).unsqueeze(1)


train_x, train_y = hulls(1200)
test_x, test_y = hulls(400)
mean, std = train_x.mean(0), train_x.std(0)
train_x, test_x = (train_x - mean) / std, (test_x - mean) / std
y_mean, y_std = train_y.mean(), train_y.std()
train_y, test_y = (train_y - y_mean) / y_std, (test_y - y_mean) / y_std


class ResidualBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.fc2(nn.functional.gelu(self.fc1(self.norm(x))))


class ResNetRegressor(nn.Module):
    def __init__(self, n_features=5, width=32, depth=2):
        super().__init__()
        self.stem = nn.Linear(n_features, width)
        self.blocks = nn.ModuleList([ResidualBlock(width) for _ in range(depth)])
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


def main(epochs=12):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
    model = ResNetRegressor()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3)
    train_loader = DataLoader(TensorDataset(train_x, train_y), batch_size=16, shuffle=True)
    test_loader = DataLoader(TensorDataset(test_x, test_y), batch_size=100)
    updates = epochs * math.ceil(len(train_loader) / ACCUMULATE)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=updates)
    model, optimizer, train_loader, test_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, test_loader, scheduler
    )
    criterion = nn.MSELoss()

    for epoch in range(epochs):
        model.train()
        for inputs, targets in train_loader:
            with accelerator.accumulate(model):
                loss = criterion(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()

        model.eval()
        squares = []
        with torch.no_grad():
            for inputs, targets in test_loader:
                predictions, targets = accelerator.gather_for_metrics((model(inputs), targets))
                squares.append((predictions - targets).square())
        mse = torch.cat(squares).mean().item()
        accelerator.print(
            f"epoch {epoch}: train {loss.item():.4f} test {mse:.4f} rate {scheduler.get_last_lr()[0]:.2e}"
        )
    return 1 - mse / test_y.var().item()


if __name__ == "__main__":
    print("score", main())
