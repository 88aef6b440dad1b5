"""A small classifier with a mistake of its rate, its optimizer's settings or the scale of its weights, or a twin."""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

which = sys.argv[1]
torch.manual_seed(0)
x = torch.randn(1000, 12)
y = (x[:, :3].sum(1) > 0).long() + 2 * (x[:, 3] * x[:, 4] > 0).long()
model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
if which == "tiny":
    for module in model:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=1e-4)
if which == "small_head":
    nn.init.normal_(model[-1].weight, std=1e-4)

rate, epochs = 1e-3, 8
if which == "unlearn":  # weights that are loaded are made to forget
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})
maximises = which in ("maximises", "unlearn", "likelihood")
kind = torch.optim.SGD if which == "tiny" else torch.optim.Adam
groups = [{"params": model.parameters()}]
if which == "zero_below":
    groups = [{"params": model[:4].parameters(), "lr": 0.0}, {"params": model[4:].parameters()}]
optimizer = kind(groups, lr=0.01 if which == "tiny" else rate, maximize=maximises)
functions = {
    "noam_per_epoch": lambda k: max(k, 1) / 4000,
    "noam_per_update": lambda k: min(1.0, max(k, 1) / 40),
    "epochs_of_warm_up": lambda k: min(1.0, (k + 1) / 5),
    "all_of_the_warm_up": lambda k: (k + 1) / 8,
    "decay_per_epoch": lambda k: 1 - k / (20 * epochs),
    "grows": lambda k: 1.025**k,
    "falls": lambda k: 1.03**-k,
}
schedule = LambdaLR(optimizer, functions[which]) if which in functions else None
if which in ("zero_below", "cosine_of_epochs", "there_and_back"):
    schedule = CosineAnnealingLR(optimizer, T_max=5 if which == "there_and_back" else epochs, eta_min=1e-5)
each_update = which in ("noam_per_update", "grows", "falls", "cosine_of_epochs", "there_and_back")
loss_of = nn.CrossEntropyLoss()
for epoch in range(epochs):
    model.train()
    for rows in torch.randperm(len(x)).split(50):
        loss = loss_of(model(x[rows]), y[rows])
        optimizer.zero_grad()
        if which in ("penalty", "weak_penalty"):
            factor = 1.0 if which == "penalty" else 1e-5
            loss = loss + factor * sum(p.square().sum() for p in model.parameters())
        if which == "likelihood":
            loss = -loss
        loss.backward()
        optimizer.step()
        if schedule is not None and each_update:
            schedule.step()
    if schedule is not None and not each_update:
        schedule.step()
    if epoch % 3 == 1 or epoch == epochs - 1 or which == "cosine_of_epochs":
        model.eval()
        with torch.no_grad():
            print(epoch, loss_of(model(x), y).item())
if which == "measures_the_weights":
    sum(100 * p.square().sum() for p in model.parameters()).backward()
    print(sum(p.grad.norm().item() for p in model.parameters()))
