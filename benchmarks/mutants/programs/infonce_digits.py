"""Contrastive learning on augmented digits (InfoNCE, as in SimCLR), judged by finding held-out pairs."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
perm = torch.randperm(len(images))


def warp(batch, theta, shift):
    cos, sin = theta.cos(), theta.sin()
    matrix = torch.stack(
        [torch.stack([cos, -sin, shift[:, 0]], 1), torch.stack([sin, cos, shift[:, 1]], 1)], 1
    )
    return F.grid_sample(batch, F.affine_grid(matrix, batch.shape, align_corners=False), align_corners=False)


train_x, test_x = images[perm[:1500]], images[perm[1500:]]


def augment(batch):
    n = len(batch)
    batch = warp(batch, 1.2 * (torch.rand(n) - 0.5), 0.3 * (torch.rand(n, 2) - 0.5))
    return batch * (0.8 + 0.4 * torch.rand(n, 1, 1, 1)) + 0.05 * torch.randn_like(batch)


class Encoder(nn.Module):
    def __init__(self, dim=48, proj=24):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 16, dim),
        )
        self.projector = nn.Sequential(nn.ReLU(), nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, proj))

    def forward(self, x):
        h = self.body(x)
        return h, F.normalize(self.projector(h), dim=1)


def info_nce(z1, z2, temperature=0.2):
    z = torch.cat([z1, z2])
    sim = (z @ z.T / temperature).masked_fill(torch.eye(len(z), dtype=torch.bool), float("-inf"))
    n = len(z1)
    positive = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
    return F.cross_entropy(sim, positive)


@torch.no_grad()
def pairs_found(encoder):
    """How many of the held-out images have their own other view as nearest neighbour."""
    encoder.eval()
    z1, z2 = encoder(augment(test_x))[1], encoder(augment(test_x))[1]
    return ((z1 @ z2.T).argmax(1) == torch.arange(len(test_x))).float().mean().item()


encoder = Encoder()
optimizer = torch.optim.Adam(encoder.parameters(), lr=2e-3)
print(f"untrained: {pairs_found(encoder):.3f}")
for epoch in range(10):
    encoder.train()
    total, batches = 0.0, 0
    for idx in torch.randperm(len(train_x)).split(125):
        batch = train_x[idx]
        _, z1 = encoder(augment(batch))
        _, z2 = encoder(augment(batch))
        loss = info_nce(z1, z2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total, batches = total + loss.item(), batches + 1
    print(f"epoch {epoch:2d} InfoNCE {total / batches:.3f}")
print("score", pairs_found(encoder))
