"""Forecasts of an hourly load from the last day with an LSTM: a chronological split, best weights kept."""

import copy
import os

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

seed = int(os.environ.get("SEED", "0"))
torch.manual_seed(seed)
torch.set_num_threads(1)

WINDOW, HORIZON = 24, 3


def load_series(hours=1600):
    """Daily and weekly rhythm, weather that wanders, measurement noise."""
    rng = np.random.default_rng(seed)
    t = np.arange(hours)
    weather = np.zeros(hours)
    for i in range(1, hours):
        weather[i] = 0.95 * weather[i - 1] + 0.3 * rng.normal()
    daily = 3 * np.sin(2 * np.pi * t / 24) + np.sin(4 * np.pi * t / 24 + 1)
    weekend = (t // 24 % 7 >= 5) * -2.0
    return (50 + daily + weekend + weather + 0.3 * rng.normal(size=hours)).astype(np.float32)


class WindowDataset(Dataset):
    def __init__(self, series):
        self.series = torch.from_numpy(series)

    def __len__(self):
        return len(self.series) - WINDOW - HORIZON + 1

    def __getitem__(self, i):
        middle = i + WINDOW
        return self.series[i:middle].unsqueeze(-1), self.series[middle : middle + HORIZON]


class LSTMForecaster(nn.Module):
    def __init__(self, hidden_size=32):
        super().__init__()
        self.lstm = nn.LSTM(1, hidden_size, batch_first=True)
        self.linear = nn.Linear(hidden_size, HORIZON)

    def forward(self, x):
        out, _ = self.lstm(x)
        return x[:, -1] + self.linear(out[:, -1])  # predicts the difference from the last hour


series = load_series()
n_train, n_val = 1000, 250
mu, sigma = series[:n_train].mean(), series[:n_train].std()
scaled = (series - mu) / sigma
train_set, val_set = WindowDataset(scaled[:n_train]), WindowDataset(scaled[n_train : n_train + n_val])
test_set = WindowDataset(scaled[n_train + n_val :])
train_loader = DataLoader(train_set, batch_size=32, shuffle=True)


def mse_of(model, dataset):
    model.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in DataLoader(dataset, batch_size=256):
            total += nn.functional.mse_loss(model(x), y, reduction="sum").item()
    return total / len(dataset) / HORIZON


model = LSTMForecaster()
criterion = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
best_val, best_state, patience = float("inf"), None, 0
for epoch in range(12):
    model.train()
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    val_loss = mse_of(model, val_set)
    print(f"epoch {epoch:02d} train {loss.item():.4f} validation {val_loss:.4f}")
    if val_loss < best_val:
        best_val, best_state, patience = val_loss, copy.deepcopy(model.state_dict()), 0
    else:
        patience += 1
        if patience >= 4:
            break
model.load_state_dict(best_state)

last_hour = np.mean(
    [(x[-1] - y).square().mean().item() for x, y in map(test_set.__getitem__, range(len(test_set)))]
)
print(f"the last hour again would have an error of {last_hour:.4f}")
print("score", 1 - mse_of(model, test_set) / float(last_hour))
