"""Trains a small convolutional network on scikit-learn's handwritten digits.

python train.py
python train.py --epochs 10 --learning-rate 0.05
"""

import argparse
import json

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class DigitNet(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(32 * 2 * 2, 64)
        self.fc2 = nn.Linear(64, classes)

    def forward(self, x):
        x = self.pool(self.relu(self.conv1(x)))
        x = self.pool(self.relu(self.conv2(x)))
        return self.fc2(self.relu(self.fc1(x.flatten(1))))


def load(batch_size, seed):
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=0.2, random_state=seed, stratify=labels
    )
    train = DataLoader(TensorDataset(train_x, train_y), batch_size=batch_size, shuffle=True)
    test = DataLoader(TensorDataset(test_x, test_y), batch_size=256)
    return train, test


def evaluate(model, loader, loss_fn):
    model.eval()
    right, total, loss = 0, 0, 0.0
    with torch.no_grad():
        for images, labels in loader:
            logits = model(images)
            loss += loss_fn(logits, labels).item() * len(labels)
            right += (logits.argmax(1) == labels).sum().item()
            total += len(labels)
    model.train()
    return loss / total, right / total


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", help="write the loss of every batch to this file")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    train, test = load(args.batch_size, args.seed)
    model = DigitNet()
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate, momentum=args.momentum)

    history = []
    try:
        for epoch in range(args.epochs):
            for images, labels in train:
                optimizer.zero_grad()
                loss = loss_fn(model(images), labels)
                loss.backward()
                history.append(loss.item())
                optimizer.step()
            test_loss, accuracy = evaluate(model, test, loss_fn)
            print(
                f"epoch {epoch + 1}: loss {history[-1]:.3f}, test loss {test_loss:.3f}, accuracy {accuracy:.1%}"
            )
    finally:
        if args.log:
            with open(args.log, "w") as file:
                json.dump(history, file)


if __name__ == "__main__":
    main()
