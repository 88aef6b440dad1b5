"""Cultivars of wine by softmax regression, full batch: LBFGS with a closure and an L2 penalty."""

import os

import torch
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split

torch.set_num_threads(1)
seed = int(os.environ.get("SEED", "0"))
torch.manual_seed(seed)

x, y = load_wine(return_X_y=True)
train_x, test_x, train_y, test_y = (
    torch.as_tensor(part) for part in train_test_split(x, y, test_size=0.4, random_state=seed, stratify=y)
)
mean, std = train_x.mean(0), train_x.std(0)
train_x, test_x = ((train_x - mean) / std).float(), ((test_x - mean) / std).float()

model = torch.nn.Linear(train_x.shape[1], 3)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.2, max_iter=2, history_size=10)
penalty = 1e-2


def closure():
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(train_x), train_y)
    loss = loss + penalty * model.weight.square().sum()
    loss.backward()
    return loss


for iteration in range(20):
    loss = optimizer.step(closure)
    if iteration % 5 == 0:
        print("iteration", iteration, "loss", loss.item())

with torch.no_grad():
    predicted = model(test_x).argmax(dim=1)
per_class = [(predicted[test_y == c] == c).float().mean().item() for c in range(3)]
print("recall per class", [round(r, 3) for r in per_class])
print("score", sum(per_class) / 3)
