"""Progression of diabetes from ten measurements: a trainer class, Huber loss, rate cut on plateaus."""

import os

import numpy as np
import torch
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SEED = int(os.environ.get("SEED", "0"))
torch.manual_seed(SEED)
torch.set_num_threads(1)

features, target = load_diabetes(return_X_y=True)
shuffled = np.random.default_rng(SEED).permutation(len(features))
train_rows, val_rows, test_rows = np.split(shuffled, [300, 360])
x_scaler = StandardScaler().fit(features[train_rows])
y_scaler = StandardScaler().fit(target[train_rows, None])


def tensors(rows):
    x = torch.tensor(x_scaler.transform(features[rows]), dtype=torch.float32)
    y = torch.tensor(y_scaler.transform(target[rows, None]), dtype=torch.float32)
    return x, y


train_x, train_y = tensors(train_rows)
val_x, val_y = tensors(val_rows)
test_x, test_y = tensors(test_rows)


class Regressor(nn.Module):
    def __init__(self, n_features):
        super().__init__()
        self.hidden = nn.Linear(n_features, 32)
        self.dropout = nn.Dropout(0.1)
        self.out = nn.Linear(32, 1)

    def forward(self, x):
        return self.out(self.dropout(torch.tanh(self.hidden(x))))


class Trainer:
    def __init__(self, model, lr=1e-3, weight_decay=1e-2):
        self.model = model
        self.loss_fn = nn.SmoothL1Loss()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=weight_decay)
        self.scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer, factor=0.5, patience=3)
        self.history = []

    def fit(self, loader, epochs):
        for epoch in range(epochs):
            self.model.train()
            for x, y in loader:
                self.optimizer.zero_grad()
                loss = self.loss_fn(self.model(x), y)
                loss.backward()
                self.optimizer.step()
            val_loss = self.validate(val_x, val_y)
            self.scheduler.step(val_loss)
            self.history.append(val_loss)
            if epoch % 5 == 0:
                print(f"epoch {epoch:2d}  train {loss.item():.4f}  validation {val_loss:.4f}")
        return self

    @torch.no_grad()
    def validate(self, x, y):
        self.model.eval()
        return self.loss_fn(self.model(x), y).item()

    @torch.no_grad()
    def r2(self, x, y):
        self.model.eval()
        residual = (y - self.model(x)).square().sum()
        return (1 - residual / (y - y.mean()).square().sum()).item()


loader = DataLoader(TensorDataset(train_x, train_y), batch_size=20, shuffle=True)
trainer = Trainer(Regressor(train_x.shape[1])).fit(loader, epochs=20)
print("score", trainer.r2(test_x, test_y))
