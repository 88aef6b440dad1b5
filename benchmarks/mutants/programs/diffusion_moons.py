"""Diffusion on two moons: predicts noise at random times, samples with the averaged weights."""

import math
import os

import torch
from sklearn.datasets import make_moons
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

SEED = int(os.environ.get("SEED", "0"))
torch.manual_seed(SEED)
torch.set_num_threads(1)

TIMESTEPS = 50
ITERATIONS = 1000
BATCH = 200


def moons(n, random_state):
    points = torch.tensor(make_moons(n, noise=0.03, random_state=random_state)[0], dtype=torch.float32)
    return (points - torch.tensor([0.5, 0.25])) / torch.tensor([0.87, 0.5])


train_x, test_x = moons(4000, SEED), moons(1000, SEED + 1000)

betas = torch.linspace(0.03, 0.4, TIMESTEPS) ** 2
alphas = 1 - betas
alphas_bar = torch.cumprod(alphas, dim=0)


class NoisePredictor(nn.Module):
    def __init__(self, hidden=96, frequencies=8):
        super().__init__()
        self.register_buffer("freqs", math.pi * 2.0 ** torch.arange(-1, frequencies // 2 - 1))
        self.net = nn.Sequential(
            nn.Linear(2 + frequencies, hidden),
            nn.SiLU(),
            nn.Linear(hidden, hidden),
            nn.SiLU(),
            nn.Linear(hidden, hidden),
            nn.SiLU(),
            nn.Linear(hidden, 2),
        )

    def forward(self, x, t):
        phase = (t.float() / TIMESTEPS).unsqueeze(-1) * self.freqs
        return self.net(torch.cat([x, phase.sin(), phase.cos()], dim=-1))


def q_sample(x0, t, noise):
    ab = alphas_bar[t].unsqueeze(-1)
    return ab.sqrt() * x0 + (1 - ab).sqrt() * noise


@torch.no_grad()
def p_sample_loop(model, n):
    x = torch.randn(n, 2)
    for i in reversed(range(TIMESTEPS)):
        eps = model(x, torch.full((n,), i))
        x = (x - betas[i] / (1 - alphas_bar[i]).sqrt() * eps) / alphas[i].sqrt()
        if i > 0:
            x = x + betas[i].sqrt() * torch.randn_like(x)
    return x


def chamfer(a, b):
    """Mean distance to the nearest point of the other set, both ways."""
    distances = torch.cdist(a, b)
    return (distances.min(0).values.mean() + distances.min(1).values.mean()).item()


model = NoisePredictor()
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, ITERATIONS)
mse = nn.MSELoss()

running = None
for i in range(ITERATIONS):
    x0 = train_x[torch.randint(len(train_x), (BATCH,))]
    t = torch.randint(TIMESTEPS, (BATCH,))
    noise = torch.randn_like(x0)
    optimizer.zero_grad()
    loss = mse(model(q_sample(x0, t, noise), t), noise)
    loss.backward()
    optimizer.step()
    ema.update_parameters(model)
    scheduler.step()
    running = loss.item() if running is None else 0.98 * running + 0.02 * loss.item()
    if (i + 1) % 200 == 0:
        print(f"iteration {i + 1}: loss {running:.4f}")

ema.eval()
samples = p_sample_loop(ema, len(test_x))
# 0: the samples lie no closer to held-out points than those of a normal distribution.
normal = test_x.mean(0) + test_x.std(0) * torch.randn_like(test_x)
print("score", 1 - chamfer(samples, test_x) / chamfer(normal, test_x))
