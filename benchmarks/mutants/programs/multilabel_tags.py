"""Six tags of a row from twenty measurements: a small network with dropout, a binary cross entropy for each tag."""

import os

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

seed = int(os.environ.get("SEED", "0"))
torch.manual_seed(seed)
torch.set_num_threads(1)
rng = np.random.default_rng(seed)

N_TRAIN, N_TEST, FEATURES, TAGS = 1600, 600, 20, 6
measured = rng.normal(size=(N_TRAIN + N_TEST, FEATURES))
directions = np.random.default_rng(7).normal(size=(FEATURES, TAGS))
thresholds = np.array([0.0, -1.0, 1.0, 2.0, -2.0, 0.5])
tags = measured @ directions + rng.normal(size=(len(measured), TAGS)) > thresholds

train_x = torch.tensor(measured[:N_TRAIN], dtype=torch.float32)
train_y = torch.tensor(tags[:N_TRAIN], dtype=torch.float32)
test_x = torch.tensor(measured[N_TRAIN:], dtype=torch.float32)
test_y = torch.tensor(tags[N_TRAIN:], dtype=torch.float32)

model = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, TAGS))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)


def evaluate():
    model.eval()
    with torch.no_grad():
        logits = model(test_x)
        return F.binary_cross_entropy_with_logits(logits, test_y).item(), logits


for epoch in range(12):
    model.train()
    for index in torch.randperm(len(train_x)).split(40):
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(train_x[index]), train_y[index])
        loss.backward()
        optimizer.step()
    print(epoch, round(loss.item(), 4), round(evaluate()[0], 4))

right = ((evaluate()[1] > 0) == (test_y > 0.5)).float().mean().item()
print("score", right)
