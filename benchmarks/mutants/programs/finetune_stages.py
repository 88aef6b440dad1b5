"""Fine-tuning in two stages: a backbone from a checkpoint, first its new head alone, then all at small rates."""

import os
import tempfile

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

seed = int(os.environ.get("SEED", "0"))
torch.manual_seed(seed)
torch.set_num_threads(1)

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
labels = torch.tensor(digits.target)
low, high = (labels < 6).nonzero().flatten(), (labels >= 6).nonzero().flatten()
high = high[torch.randperm(len(high))]
source_data = TensorDataset(images[low], labels[low])
train_x, train_y = images[high[:160]], labels[high[:160]] - 6  # few rows of four new classes
test_x, test_y = images[high[160:]], labels[high[160:]] - 6


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 24, 3, stride=2, padding=1),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(96, classes)

    def forward(self, x):
        return self.head(self.backbone(x))


def fit(model, loader, optimizer, epochs, frozen=None):
    criterion = nn.CrossEntropyLoss()
    for _ in range(epochs):
        model.train()
        if frozen is not None:
            frozen.eval()  # its running statistics stay those of the checkpoint
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
    return loss.item()


def accuracy(model):
    model.eval()
    with torch.no_grad():
        return (model(test_x).argmax(1) == test_y).float().mean().item()


def pretrain(path):
    model = Net(classes=6)
    subset = Subset(source_data, torch.randperm(len(source_data))[:900].tolist())
    loader = DataLoader(subset, batch_size=50, shuffle=True)
    loss = fit(model, loader, torch.optim.Adam(model.parameters(), lr=3e-3), epochs=4)
    print(f"pretrained on 0 to 5, loss {loss:.3f}")
    torch.save({"model": model.state_dict()}, path)


with tempfile.TemporaryDirectory() as folder:
    checkpoint = os.path.join(folder, "pretrained.pt")
    pretrain(checkpoint)
    state = torch.load(checkpoint, weights_only=True)["model"]

model = Net(classes=4)
wanted = {name: value for name, value in state.items() if not name.startswith("head.")}
missing, unexpected = model.load_state_dict(wanted, strict=False)
print("new:", missing, "unused:", unexpected)
loader = DataLoader(TensorDataset(train_x, train_y), batch_size=16, shuffle=True)

for parameter in model.backbone.parameters():
    parameter.requires_grad = False
optimizer = torch.optim.Adam(model.head.parameters(), lr=5e-3)
loss = fit(model, loader, optimizer, epochs=8, frozen=model.backbone)
print(f"head alone: loss {loss:.3f}, accuracy {accuracy(model):.3f}")

for parameter in model.backbone.parameters():
    parameter.requires_grad = True
optimizer = torch.optim.AdamW(
    [{"params": model.backbone.parameters(), "lr": 3e-4}, {"params": model.head.parameters(), "lr": 2e-3}]
)
loss = fit(model, loader, optimizer, epochs=10)
print(f"all: loss {loss:.3f}, accuracy {accuracy(model):.3f}")
print("score", accuracy(model))
