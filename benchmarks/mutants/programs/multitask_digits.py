"""Three tasks on one trunk: the digit, whether it is even, its amount of ink; losses weighted by learnt uncertainty."""

import os

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)


class MultiTaskDigits(Dataset):
    def __init__(self, rows):
        bunch = load_digits()
        x = torch.tensor(bunch.data, dtype=torch.float32)[rows] / 16
        self.ink = (x.mean(1) - 0.305) / 0.04
        self.x = x + 0.1 * torch.randn(x.shape)
        self.digit = torch.tensor(bunch.target)[rows]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {
            "x": self.x[i],
            "digit": self.digit[i],
            "even": (self.digit[i] % 2 == 0).float(),
            "ink": self.ink[i],
        }


class MultiTaskModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU()
        )
        self.heads = nn.ModuleDict(
            {"digit": nn.Linear(32, 10), "even": nn.Linear(32, 1), "ink": nn.Linear(32, 1)}
        )
        self.log_vars = nn.ParameterDict({task: nn.Parameter(torch.zeros(())) for task in self.heads})

    def forward(self, x):
        h = self.trunk(x)
        return {task: head(h).squeeze(-1) for task, head in self.heads.items()}

    def loss(self, out, batch):
        losses = {
            "digit": F.cross_entropy(out["digit"], batch["digit"]),
            "even": F.binary_cross_entropy_with_logits(out["even"], batch["even"]),
            "ink": F.mse_loss(out["ink"], batch["ink"]),
        }
        total = sum(
            torch.exp(-self.log_vars[t]) * value + 0.5 * self.log_vars[t] for t, value in losses.items()
        )
        return total, {task: value.item() for task, value in losses.items()}


def evaluate(model, loader):
    model.eval()
    digit = even = squared = 0.0
    with torch.no_grad():
        for batch in loader:
            out = model(batch["x"])
            digit += (out["digit"].argmax(1) == batch["digit"]).sum().item()
            even += ((out["even"] > 0).float() == batch["even"]).sum().item()
            squared += (out["ink"] - batch["ink"]).square().sum().item()
    n = len(loader.dataset)
    ink = loader.dataset.ink
    return {"digit": digit / n, "even": even / n, "ink": 1 - squared / n / ink.var().item()}


permutation = torch.randperm(1797)
train_loader = DataLoader(MultiTaskDigits(permutation[:1400]), batch_size=40, shuffle=True)
test_loader = DataLoader(MultiTaskDigits(permutation[1400:]), batch_size=400)

model = MultiTaskModel()
optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.3)
for epoch in range(10):
    model.train()
    for batch in train_loader:
        optimizer.zero_grad()
        loss, parts = model.loss(model(batch["x"]), batch)
        loss.backward()
        optimizer.step()
    scheduler.step()
    if epoch % 3 == 0:
        print(epoch, {task: round(value, 3) for task, value in parts.items()}, evaluate(model, test_loader))
print("score", sum(evaluate(model, test_loader).values()) / 3)
