"""Trains a small model; the argument names what is wrong with its updates.

never_steps: gradients are to add up over more batches than there are. last_batch: the loss is computed, and the
backward pass runs, behind the loop over batches. all_pairs: a loss that the script writes itself gets outputs of (N)
and labels of (N, 1). by_hand: tensors without a module and an optimizer, which are updated at too high a rate. The
names with a `no_` before them do it rightly.
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

WRONG = sys.argv[1]
KIND = WRONG.removeprefix("no_")
torch.manual_seed(0)

x = torch.randn(320, 8)
y = (x[:, :1] + 0.3 * torch.randn(320, 1) > 0).float()
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))


def train() -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(8):
        for number, (rows, labels) in enumerate(loader):
            (F.binary_cross_entropy_with_logits(model(rows), labels) / 4).backward()
            if (number + 1) % (4 if KIND != WRONG else 16) == 0:
                optimizer.step()
                optimizer.zero_grad()


def train_behind() -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(8):
        for rows, labels in loader:
            answers = model(rows)
            if KIND != WRONG:
                optimizer.zero_grad()
                F.binary_cross_entropy_with_logits(answers, labels).backward()
                optimizer.step()
        if KIND == WRONG:
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(answers, labels).backward()
            optimizer.step()


def train_on_pairs() -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(4):
        for rows, labels in loader:
            right = torch.sigmoid(model(rows)).clamp(1e-4, 1 - 1e-4)
            right = right.squeeze(1) if KIND == WRONG else right
            optimizer.zero_grad()
            (-(labels * right.log() + (1 - labels) * (1 - right).log()).mean()).backward()
            optimizer.step()


def train_by_hand() -> None:
    w, b = torch.zeros(8, 1, requires_grad=True), torch.zeros(1, requires_grad=True)
    for _ in range(4):
        for rows, labels in loader:
            ((rows @ w + b - labels) ** 2).mean().backward()
            with torch.no_grad():
                for weight in (w, b):
                    weight -= (5.0 if KIND == WRONG else 0.1) * weight.grad
                    weight.grad.zero_()


{"never_steps": train, "last_batch": train_behind, "all_pairs": train_on_pairs, "by_hand": train_by_hand}[
    KIND
]()
