"""Bicycles hired in an hour, from hour, weather and season: Poisson regression with a small network."""

import os

import numpy as np
import torch
from torch import nn

seed = int(os.environ.get("SEED", "0"))
torch.manual_seed(seed)
torch.set_num_threads(1)
rng = np.random.default_rng(seed)


def hires(n):
    """Returns measurements and counts; rain matters less at rush hours, warmth has a best value."""
    hour, season = rng.uniform(0, 24, n), rng.uniform(0, 1, n)
    temperature = 12 - 10 * np.cos(2 * np.pi * season) + 4 * rng.normal(size=n)
    rain = rng.exponential(1.0, n) * (rng.random(n) < 0.3)
    weekend = (rng.random(n) < 2 / 7).astype(float)
    rush = np.exp(-((hour - 8.5) ** 2) / 3) + np.exp(-((hour - 17.5) ** 2) / 5)
    day = np.exp(-((hour - 14) ** 2) / 40)
    log_rate = 0.3 + 1.6 * day + 1.1 * rush * (1 - weekend) - ((temperature - 21) / 16) ** 2
    log_rate -= 0.6 * rain * (1 - 0.6 * np.minimum(rush, 1))
    clock, year = 2 * np.pi * hour / 24, 2 * np.pi * season
    columns = [np.sin(clock), np.cos(clock), np.sin(2 * clock), np.cos(2 * clock)]
    columns += [np.sin(year), np.cos(year), temperature, rain, weekend]
    return np.stack(columns, axis=1), rng.poisson(np.exp(log_rate))


features, counts = hires(4000)
mean, std = features[:3000].mean(axis=0), features[:3000].std(axis=0)
x = torch.tensor((features - mean) / std, dtype=torch.float32)
y = torch.tensor(counts, dtype=torch.float32)
train_x, train_y = x[:3000], y[:3000]
test_x, test_y = x[3000:], y[3000:]


class RateNet(nn.Module):
    """The logarithm of the expected count; starts at the mean of all."""

    def __init__(self, n_features, start, width=48):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_features, width), nn.ELU(), nn.Linear(width, width), nn.ELU())
        self.out = nn.Linear(width, 1)
        nn.init.constant_(self.out.bias, start)

    def forward(self, x):
        return self.out(self.body(x)).squeeze(-1)


def deviance(log_rate, y):
    """Mean Poisson deviance."""
    ratio = torch.where(y > 0, y * (y.clamp(min=1).log() - log_rate), 0.0)
    return 2 * (ratio - y + log_rate.exp()).mean()


net = RateNet(train_x.shape[1], start=train_y.mean().log().item())
loss_fn = nn.PoissonNLLLoss(log_input=True)
optimizer = torch.optim.RMSprop(net.parameters(), lr=2e-3)
n, batch_size = len(train_x), 60
for epoch in range(13):
    order = torch.randperm(n)
    for i in range(0, n, batch_size):
        rows = order[i : i + batch_size]
        log_rate = net(train_x[rows])
        loss = loss_fn(log_rate, train_y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch % 3 == 0:
        with torch.no_grad():
            print(f"epoch {epoch:2d}: held-out deviance {deviance(net(test_x), test_y).item():.4f}")

with torch.no_grad():
    own = deviance(net(test_x), test_y)
    constant = deviance(train_y.mean().log().expand(len(test_y)), test_y)
print("score", 1 - (own / constant).item())
