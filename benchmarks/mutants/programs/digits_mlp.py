"""Handwritten digits with a small perceptron: batches by slicing a permutation, functional loss."""

import os

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

SEED = int(os.environ.get("SEED", "0"))
torch.manual_seed(SEED)
torch.set_num_threads(1)

data = load_digits()
images = torch.tensor(data.data, dtype=torch.float32) / 16
labels = torch.tensor(data.target)
order = torch.randperm(len(images))
train_x, train_y = images[order[:1400]], labels[order[:1400]]
test_x, test_y = images[order[1400:]], labels[order[1400:]]

model = nn.Sequential(
    nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)
)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)


def accuracy():
    model.eval()
    with torch.no_grad():
        return (model(test_x).argmax(1) == test_y).float().mean().item()


for epoch in range(8):
    model.train()
    for index in torch.randperm(len(train_x)).split(32):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(train_x[index]), train_y[index])
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {accuracy():.3f}")
print("score", accuracy())
