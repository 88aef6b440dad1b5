"""Forecasts six hours of a load from two days of load and temperature: windows as one array, a GRU, three epochs."""

import os

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import nn

SEED = int(os.environ.get("SEED", "0"))
torch.manual_seed(SEED)
torch.set_num_threads(1)
rng = np.random.default_rng(SEED)

HOURS, WINDOW, HORIZON, N_TRAIN = 2400, 48, 6, 1800
hours = np.arange(HOURS)
temperature = 10 + 4 * np.cos(2 * np.pi * hours / 24) + rng.normal(size=HOURS)
noise = np.convolve(rng.normal(size=HOURS), np.ones(4) / 4, "same")
load = 30 + 6 * np.sin(2 * np.pi * hours / 24) + 3 * np.sin(2 * np.pi * hours / 168) + 2 * noise

series = np.stack([load, temperature], axis=1)
mean, deviation = series[:N_TRAIN].mean(0), series[:N_TRAIN].std(0)
series = (series - mean) / deviation


def windows(part):
    """Returns windows (N, WINDOW, 2) and the next HORIZON loads (N, HORIZON)."""
    both = sliding_window_view(part, WINDOW + HORIZON, axis=0).swapaxes(1, 2)
    inputs, targets = both[:, :WINDOW], both[:, WINDOW:, 0]
    return torch.tensor(inputs.copy(), dtype=torch.float32), torch.tensor(targets.copy(), dtype=torch.float32)


train_x, train_y = windows(series[:N_TRAIN])
test_x, test_y = windows(series[N_TRAIN:])


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(2, 24, batch_first=True)
        self.out = nn.Linear(24, HORIZON)

    def forward(self, x):
        states, _ = self.gru(x)
        return self.out(states[:, -1])


net = Forecaster()
criterion = nn.MSELoss()
optimizer = torch.optim.Adam(net.parameters(), lr=6e-3)
for epoch in range(4):
    net.train()
    for rows in torch.randperm(len(train_x)).split(48):
        optimizer.zero_grad()
        loss = criterion(net(train_x[rows]), train_y[rows])
        loss.backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        error = criterion(net(test_x), test_y).item()
    print(epoch, loss.item(), error)
print("score", 1 - error / test_y.var().item())
