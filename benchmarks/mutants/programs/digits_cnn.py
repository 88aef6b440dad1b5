"""Handwritten digits with a small convolutional network: loaders, batch normalisation, one-cycle rate."""

import os

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SEED = int(os.environ.get("SEED", "0"))
EPOCHS = 6
BATCH_SIZE = 64

torch.manual_seed(SEED)
torch.set_num_threads(1)

digits = load_digits()
X = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1)
X = (X - X.mean()) / X.std()
y = torch.tensor(digits.target, dtype=torch.long)
train_x, test_x, train_y, test_y = train_test_split(X, y, test_size=0.25, random_state=SEED, stratify=y)

train_loader = DataLoader(
    TensorDataset(train_x, train_y), batch_size=BATCH_SIZE, shuffle=True, drop_last=True
)
test_loader = DataLoader(TensorDataset(test_x, test_y), batch_size=256)


class DigitNet(nn.Module):
    def __init__(self, width=16, num_classes=10):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.25), nn.Linear(2 * width * 16, num_classes))

    def forward(self, x):
        return self.head(self.features(x))


def train_one_epoch(model, criterion, optimizer, scheduler):
    model.train()
    running = 0.0
    for inputs, targets in train_loader:
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()
        scheduler.step()
        running += loss.item()
    return running / len(train_loader)


@torch.no_grad()
def evaluate(model):
    model.eval()
    correct = sum((model(inputs).argmax(1) == targets).sum().item() for inputs, targets in test_loader)
    return correct / len(test_x)


model = DigitNet()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
scheduler = torch.optim.lr_scheduler.OneCycleLR(
    optimizer, max_lr=0.1, epochs=EPOCHS, steps_per_epoch=len(train_loader)
)
for epoch in range(1, EPOCHS + 1):
    train_loss = train_one_epoch(model, criterion, optimizer, scheduler)
    print(f"[{epoch}/{EPOCHS}] train loss {train_loss:.4f}  test accuracy {evaluate(model):.4f}")
print("score", evaluate(model))
