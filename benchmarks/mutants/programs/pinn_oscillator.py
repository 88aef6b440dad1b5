"""A physics-informed network: the damped oscillator x'' + 2 d x' + w^2 x = 0 from its equation and initial values."""

import math
import os

import torch
from torch import nn

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)

DAMPING, OMEGA, T_END = 0.4, 2.5, 3.0
X0, V0 = 1.0, 0.0
STEPS = 900


def exact(t):
    w = math.sqrt(OMEGA**2 - DAMPING**2)
    return torch.exp(-DAMPING * t) * (X0 * torch.cos(w * t) + (V0 + DAMPING * X0) / w * torch.sin(w * t))


class PINN(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )

    def forward(self, t):
        return self.layers(2 * t / T_END - 1)


def derivative(y, t):
    return torch.autograd.grad(y, t, grad_outputs=torch.ones_like(y), create_graph=True)[0]


def physics_loss(net):
    t = (T_END * torch.rand(64, 1)).requires_grad_()
    x = net(t)
    dx = derivative(x, t)
    ddx = derivative(dx, t)
    residual = ddx + 2 * DAMPING * dx + OMEGA**2 * x
    return (residual / OMEGA**2).square().mean()


def initial_loss(net):
    t = torch.zeros(1, 1, requires_grad=True)
    x = net(t)
    return (x - X0).square().mean() + 0.2 * (derivative(x, t) - V0).square().mean()


net = PINN()
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS, eta_min=2e-4)
for step in range(STEPS):
    optimizer.zero_grad()
    loss_ode = physics_loss(net)
    loss_start = initial_loss(net)
    loss = loss_ode + loss_start
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % 150 == 0:
        print(f"step {step}: equation {loss_ode.item():.5f} start {loss_start.item():.5f}")

with torch.no_grad():
    t = torch.linspace(0, T_END, 301)[:, None]
    error = (net(t) - exact(t)).square().mean() / exact(t).var()
print("score", 1 - error.item())
