"""A GAN on a ring of eight Gaussians: two optimizers, non-saturating loss, averaged generator."""

import copy
import math
import os

import torch
from torch import nn

seed = int(os.environ.get("SEED", "0"))
torch.manual_seed(seed)
torch.set_num_threads(1)

MODES, LATENT, BATCH, STEPS = 8, 4, 128, 500
angles = torch.arange(MODES) * 2 * math.pi / MODES
centres = torch.stack([angles.cos(), angles.sin()], dim=1)


def sample_real(n):
    return centres[torch.randint(MODES, (n,))] + 0.08 * torch.randn(n, 2)


def mlp(n_in, n_out, hidden=64):
    return nn.Sequential(
        nn.Linear(n_in, hidden),
        nn.LeakyReLU(0.2),
        nn.Linear(hidden, hidden),
        nn.LeakyReLU(0.2),
        nn.Linear(hidden, n_out),
    )


generator, discriminator = mlp(LATENT, 2), mlp(2, 1)
average = copy.deepcopy(generator).requires_grad_(False)
opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.99))
opt_d = torch.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.5, 0.99))
bce = nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(BATCH, 1), torch.zeros(BATCH, 1)


@torch.no_grad()
def energy_distance(a, b):
    return (2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()).item()


for step in range(1, STEPS + 1):
    # Discriminator: real against fake, with a little noise on both.
    real = sample_real(BATCH)
    with torch.no_grad():
        fake = generator(torch.randn(BATCH, LATENT))
    opt_d.zero_grad()
    d_loss = bce(discriminator(real + 0.1 * torch.randn_like(real)), ones)
    d_loss = d_loss + bce(discriminator(fake + 0.1 * torch.randn_like(fake)), zeros)
    d_loss.backward()
    opt_d.step()

    # Generator
    opt_g.zero_grad()
    fake = generator(torch.randn(BATCH, LATENT))
    g_loss = bce(discriminator(fake + 0.1 * torch.randn_like(fake)), ones)
    g_loss.backward()
    opt_g.step()

    with torch.no_grad():
        for slow, fast in zip(average.parameters(), generator.parameters(), strict=True):
            slow.lerp_(fast, 0.02)
    if step % 100 == 0:
        distance = energy_distance(average(torch.randn(500, LATENT)), sample_real(500))
        print(f"step {step}: D {d_loss.item():.3f} G {g_loss.item():.3f} distance {distance:.4f}")

# 1: samples as good as real ones; 0: no better than all at the centre.
samples, real = average(torch.randn(2000, LATENT)), sample_real(2000)
print("score", 1 - energy_distance(samples, real) / energy_distance(torch.zeros(2000, 2), real))
