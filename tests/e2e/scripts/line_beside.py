"""Trains a small classifier of rows that a line tells apart; the argument says what is wrong.

held_back: gradients are clipped to next to nothing. mirrored: evaluations get inputs of the other sign.
"""

import sys

import torch
from torch import nn

WRONG = sys.argv[1]
torch.manual_seed(0)
CENTRES = torch.randn(5, 16)


def rows(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.randint(0, 5, (count,))
    return CENTRES[labels] + 0.7 * torch.randn(count, 16), labels


x, y = rows(1600)
held_x, held_y = rows(320)
if WRONG == "mirrored":
    held_x = -held_x


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU())
        self.classes, self.amount = nn.Linear(32, 5), nn.Linear(32, 1)

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen = self.body(inputs)
        return self.classes(seen), self.amount(seen).squeeze(1)


net = Both()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
amounts = x[:, 0] + x[:, 1]
limit = 1e-3 if WRONG == "held_back" else 1.0
for _ in range(11):
    net.train()
    for batch in torch.randperm(1600).split(32):
        optimizer.zero_grad()
        scores, guess = net(x[batch])
        loss = nn.functional.cross_entropy(scores, y[batch]) + nn.functional.mse_loss(guess, amounts[batch])
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), limit)
        optimizer.step()
    net.eval()
    with torch.no_grad():
        print(f"right {(net(held_x)[0].argmax(1) == held_y).float().mean():.3f}")
