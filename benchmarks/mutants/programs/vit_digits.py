"""Handwritten digits with a small vision transformer: class token, accumulated gradients, warm-up and cosine."""

import math
import os

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

seed = int(os.environ.get("SEED", "0"))
torch.manual_seed(seed)
torch.set_num_threads(1)

EPOCHS, BATCH_SIZE, ACCUMULATE, WARMUP = 6, 32, 2, 20

images, labels = load_digits(return_X_y=True)
images = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 8.0 - 1.0
train_x, test_x, train_y, test_y = train_test_split(
    images, torch.tensor(labels), test_size=0.25, random_state=seed, stratify=labels
)
train_loader = DataLoader(TensorDataset(train_x, train_y), BATCH_SIZE, shuffle=True, drop_last=True)


class ViT(nn.Module):
    def __init__(self, patch=2, dim=32, depth=2, heads=4, classes=10):
        super().__init__()
        self.patch_embed = nn.Conv2d(1, dim, kernel_size=patch, stride=patch)
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        self.pos_embed = nn.Parameter(torch.randn(1, (8 // patch) ** 2 + 1, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(
            dim, heads, 2 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        tokens = self.patch_embed(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls_token.expand(len(x), -1, -1), tokens], dim=1)
        tokens = self.encoder(tokens + self.pos_embed)
        return self.head(self.norm(tokens[:, 0]))


@torch.no_grad()
def accuracy(model):
    model.eval()
    return (model(test_x).argmax(dim=1) == test_y).float().mean().item()


model = ViT()
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3, weight_decay=0.05)
total_updates = EPOCHS * (len(train_loader) // ACCUMULATE)


def rate(update):
    if update < WARMUP:
        return (update + 1) / WARMUP
    return 0.5 * (1 + math.cos(math.pi * (update - WARMUP) / (total_updates - WARMUP)))


scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
for epoch in range(EPOCHS):
    model.train()
    for i, (x, y) in enumerate(train_loader):
        loss = criterion(model(x), y) / ACCUMULATE
        loss.backward()
        if (i + 1) % ACCUMULATE == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    print(f"epoch {epoch + 1}: loss {loss.item() * ACCUMULATE:.3f}, accuracy {accuracy(model):.3f}")
print("score", accuracy(model))
