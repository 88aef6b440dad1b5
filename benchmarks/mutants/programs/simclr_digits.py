"""Representations of digits without labels (SimCLR): two augmented views, NT-Xent, then a linear classifier."""

import os

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

seed = int(os.environ.get("SEED", "0"))
torch.manual_seed(seed)
torch.set_num_threads(1)

digits = load_digits()
order = torch.randperm(len(digits.target))
images = torch.tensor(digits.images / 16.0, dtype=torch.float32).unsqueeze(1)[order]
labels = torch.tensor(digits.target)[order]
unlabelled, held_out = images[:1400], images[1400:]

encoder = nn.Sequential(
    nn.Conv2d(1, 24, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(24, 48, 3, padding=1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(2),
    nn.Flatten(),
    nn.Linear(192, 64),
)
projector = nn.Sequential(nn.ReLU(), nn.Linear(64, 32))


def augment(x):
    """Moves a batch by up to a pixel, adds noise, drops pixels."""
    dy, dx = torch.randint(-1, 2, (2,)).tolist()
    x = x.roll((dy, dx), dims=(2, 3)) + 0.15 * torch.randn_like(x)
    return x * (torch.rand_like(x) > 0.1)


def nt_xent(a, b, temperature=0.3):
    z = F.normalize(torch.cat([a, b]), dim=1)
    likeness = z @ z.T / temperature
    likeness = likeness.masked_fill(torch.eye(len(z), dtype=torch.bool), -1e9)
    partners = torch.cat([torch.arange(len(a)) + len(a), torch.arange(len(a))])
    return F.cross_entropy(likeness, partners)


optimizer = torch.optim.Adam([*encoder.parameters(), *projector.parameters()], lr=2e-3)
for epoch in range(6):
    for index in torch.randperm(len(unlabelled)).split(56):
        view, other = augment(unlabelled[index]), augment(unlabelled[index])
        loss = nt_xent(projector(encoder(view)), projector(encoder(other)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("epoch", epoch, "loss", round(loss.item(), 4))

with torch.no_grad():
    features, test_features = encoder(unlabelled), encoder(held_out)
nearest = torch.cdist(F.normalize(test_features), F.normalize(features)).argmin(dim=1)
print("score", (labels[:1400][nearest] == labels[1400:]).float().mean().item())
