"""Recommender: matrix factorisation with biases on synthetic ratings, Adagrad, batches of (user, item, rating)."""

import os
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass(frozen=True)
class Settings:
    users: int = 200
    items: int = 120
    ratings: int = 10000
    rank: int = 6
    epochs: int = 10
    batch_size: int = 128
    lr: float = 0.08
    l2: float = 0.02
    seed: int = int(os.environ.get("SEED", "0"))


settings = Settings()
torch.manual_seed(settings.seed)
torch.set_num_threads(1)


def simulate(s: Settings):
    """Ratings of 1 to 5 from three hidden tastes, a user's mood and an item's quality."""
    rng = np.random.default_rng(s.seed)
    cells = rng.choice(s.users * s.items, s.ratings, replace=False)
    user, item = cells // s.items, cells % s.items
    taste, trait = rng.normal(size=(s.users, 3)), rng.normal(size=(s.items, 3))
    mood, quality = 0.4 * rng.normal(size=s.users), 0.5 * rng.normal(size=s.items)
    score = 3.2 + 0.6 * (taste[user] * trait[item]).sum(1) + mood[user] + quality[item]
    rating = np.clip(np.round(score + 0.3 * rng.normal(size=s.ratings)), 1, 5)
    return torch.tensor(np.stack([user, item], 1)), torch.tensor(rating, dtype=torch.float32)


pairs, ratings = simulate(settings)
cut = int(0.85 * len(pairs))
train_x, train_y = pairs[:cut], ratings[:cut]
test_x, test_y = pairs[cut:], ratings[cut:]


class MatrixFactorization(nn.Module):
    def __init__(self, s: Settings, mean: float):
        super().__init__()
        self.user_factors = nn.Embedding(s.users, s.rank)
        self.item_factors = nn.Embedding(s.items, s.rank)
        self.user_bias = nn.Embedding(s.users, 1)
        self.item_bias = nn.Embedding(s.items, 1)
        self.mean = mean
        for table in (self.user_factors, self.item_factors):
            nn.init.normal_(table.weight, std=0.1)
        for table in (self.user_bias, self.item_bias):
            nn.init.zeros_(table.weight)

    def forward(self, user, item):
        u, v = self.user_factors(user), self.item_factors(item)
        prediction = self.mean + (u * v).sum(1) + self.user_bias(user)[:, 0] + self.item_bias(item)[:, 0]
        return prediction, u.square().sum(1).mean() + v.square().sum(1).mean()


def test_rmse(model):
    model.eval()
    with torch.no_grad():
        predicted, _ = model(test_x[:, 0], test_x[:, 1])
    return (predicted.clamp(1, 5) - test_y).square().mean().sqrt().item()


model = MatrixFactorization(settings, train_y.mean().item())
loader = DataLoader(TensorDataset(train_x, train_y), batch_size=settings.batch_size, shuffle=True)
optimizer = torch.optim.Adagrad(model.parameters(), lr=settings.lr)
for epoch in range(settings.epochs):
    model.train()
    squared = 0.0
    for pair, rating in loader:
        optimizer.zero_grad()
        predicted, penalty = model(pair[:, 0], pair[:, 1])
        error = nn.functional.mse_loss(predicted, rating)
        (error + settings.l2 * penalty).backward()
        optimizer.step()
        squared += error.item() * len(rating)
    print(f"epoch {epoch}: train RMSE {(squared / cut) ** 0.5:.4f}, test RMSE {test_rmse(model):.4f}")
print("score", 1 - test_rmse(model) ** 2 / test_y.var().item())
