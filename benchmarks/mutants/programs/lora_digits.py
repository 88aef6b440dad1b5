"""Low-rank adapters on a frozen base: a digits network learns mirrored digits by LoRA alone."""

import math
import os

import torch
import torch.nn as nn
from sklearn.datasets import load_digits

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)

images, target = load_digits(return_X_y=True)
images = (torch.tensor(images, dtype=torch.float32) - 4.9) / 6.0
target = torch.tensor(target)
rows = torch.randperm(len(images))
mirrored = images.view(-1, 8, 8).flip(2).reshape(-1, 64)
base_x, base_y = images[rows[:800]], target[rows[:800]]
train_x, train_y = mirrored[rows[800:1400]], target[rows[800:1400]]
test_x, test_y = mirrored[rows[1400:]], target[rows[1400:]]


class LoRALinear(nn.Module):
    """A frozen linear layer plus a trainable product of two thin matrices, zero at first."""

    def __init__(self, base: nn.Linear, rank: int = 6, alpha: float = 12.0):
        super().__init__()
        self.base = base
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scaling = alpha / rank
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x):
        return self.base(x) + (x @ self.lora_A.T @ self.lora_B.T) * self.scaling


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 96)
        self.fc2 = nn.Linear(96, 96)
        self.out = nn.Linear(96, 10)
        self.act = nn.GELU()

    def forward(self, x):
        return self.out(self.act(self.fc2(self.act(self.fc1(x)))))


def add_adapters(model):
    model.requires_grad_(False)
    for name, child in list(model.named_children()):
        if isinstance(child, nn.Linear):
            setattr(model, name, LoRALinear(child))
    return [p for p in model.parameters() if p.requires_grad]


def run_epochs(model, parameters, x, y, lr, epochs):
    optimizer = torch.optim.AdamW(parameters, lr=lr, weight_decay=0.0)
    loss_function = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        model.train()
        total = 0.0
        for picked in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            loss = loss_function(model(x[picked]), y[picked])
            loss.backward()
            optimizer.step()
            total += loss.item() * len(picked)
        print(f"  epoch {epoch}: {total / len(x):.4f}")


@torch.no_grad()
def accuracy(model):
    model.eval()
    return (model(test_x).argmax(1) == test_y).float().mean().item()


model = Classifier()
print("base")
run_epochs(model, model.parameters(), base_x, base_y, lr=2e-3, epochs=8)
print(f"accuracy on mirrored digits {accuracy(model):.3f}")
adapters = add_adapters(model)
print(
    f"adapters: {sum(p.numel() for p in adapters)} of {sum(p.numel() for p in model.parameters())} weights train"
)
run_epochs(model, adapters, train_x, train_y, lr=4e-3, epochs=12)
print("score", accuracy(model))
