"""Three quantiles of a skewed quantity at once by the pinball loss: made-up wind power from weather."""

import os

import numpy as np
import torch

SEED = int(os.environ.get("SEED", "0"))
QUANTILES = torch.tensor([0.1, 0.5, 0.9])

torch.manual_seed(SEED)
torch.set_num_threads(1)
rng = np.random.default_rng(SEED)

n = 3000
wind = rng.weibull(2.0, n) * 8
direction = rng.uniform(0, 2 * np.pi, n)
temperature = rng.normal(12, 6, n)
power = 1 / (1 + np.exp(-(wind - 8) / 1.5)) * (1 + 0.15 * np.cos(direction)) - 0.004 * (temperature - 12)
power = power + (0.02 + 0.015 * wind) * rng.gamma(2.0, 0.7, n)  # the spread grows with the wind, to one side
columns = np.stack([wind, np.cos(direction), np.sin(direction), temperature], axis=1)

X = torch.tensor(columns, dtype=torch.float32)
Y = torch.tensor(power, dtype=torch.float32).unsqueeze(1)
train_x, test_x = X[:2400], X[2400:]
train_y, test_y = Y[:2400], Y[2400:]
mean, std = train_x.mean(dim=0), train_x.std(dim=0)
train_x, test_x = (train_x - mean) / std, (test_x - mean) / std


def pinball(prediction, target):
    error = target - prediction
    return torch.maximum(QUANTILES * error, (QUANTILES - 1) * error).mean()


class QuantileNet(torch.nn.Module):
    """Quantiles that cannot cross: each is the one below it plus a positive number."""

    def __init__(self, inputs, hidden=48):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(inputs, hidden), torch.nn.ELU(), torch.nn.Linear(hidden, hidden), torch.nn.ELU()
        )
        self.lowest = torch.nn.Linear(hidden, 1)
        self.gaps = torch.nn.Linear(hidden, len(QUANTILES) - 1)

    def forward(self, x):
        h = self.body(x)
        gaps = torch.nn.functional.softplus(self.gaps(h))
        return torch.cat([self.lowest(h), gaps], dim=1).cumsum(dim=1)


model = QuantileNet(train_x.shape[1])
optimizer = torch.optim.Adamax(model.parameters(), lr=4e-3)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1.0, end_factor=0.05, total_iters=15)
for epoch in range(15):
    model.train()
    for batch in torch.randperm(len(train_x)).split(60):
        optimizer.zero_grad()
        loss = pinball(model(train_x[batch]), train_y[batch])
        loss.backward()
        optimizer.step()
    scheduler.step()
    if epoch % 3 == 2:
        model.eval()
        with torch.no_grad():
            held_out = model(test_x)
        coverage = (test_y <= held_out).float().mean(dim=0)
        print(f"epoch {epoch}: pinball {pinball(held_out, test_y).item():.4f}, coverage {coverage.tolist()}")

model.eval()
with torch.no_grad():
    loss_model = pinball(model(test_x), test_y)
    loss_constant = pinball(torch.quantile(train_y, QUANTILES), test_y)
print("score", 1 - (loss_model / loss_constant).item())
