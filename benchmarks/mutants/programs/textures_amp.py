"""Textures with a mixer of patches: bfloat16 autocast, gradients of two small batches add up to one update."""

import math
import os

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

SEED = int(os.environ.get("SEED", "0"))
torch.manual_seed(SEED)
torch.set_num_threads(1)

IMAGE, PATCH, CLASSES = 16, 4, 6
MICRO_BATCH, ACCUMULATE, EPOCHS = 20, 2, 3


def textures(n):
    """Stripes of three directions, fine or coarse, with random phase, contrast and noise."""
    y = torch.randint(CLASSES, (n,))
    angle = (y % 3) * math.pi / 3 + 0.1 * torch.randn(n)
    frequency = torch.where(y < 3, 0.9, 1.7) + 0.05 * torch.randn(n)
    rows, cols = torch.meshgrid(torch.arange(IMAGE), torch.arange(IMAGE), indexing="ij")
    along = angle.cos()[:, None, None] * cols + angle.sin()[:, None, None] * rows
    waves = torch.sin(frequency[:, None, None] * along + 2 * math.pi * torch.rand(n, 1, 1))
    contrast = 0.6 + 0.8 * torch.rand(n, 1, 1)
    return (contrast * waves + 0.9 * torch.randn(n, IMAGE, IMAGE)).unsqueeze(1), y


class MixerBlock(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.token_mix = nn.Sequential(
            nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens)
        )
        self.channel_mix = nn.Sequential(
            nn.Linear(dim, 2 * dim), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * dim, dim)
        )

    def forward(self, x):
        x = x + self.token_mix(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel_mix(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, dim=48, depth=2):
        super().__init__()
        tokens = (IMAGE // PATCH) ** 2
        self.unfold = nn.Unfold(PATCH, stride=PATCH)
        self.embed = nn.Linear(PATCH * PATCH, dim)
        self.blocks = nn.Sequential(*[MixerBlock(tokens, dim) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, CLASSES)

    def forward(self, x):
        x = self.blocks(self.embed(self.unfold(x).transpose(1, 2)))
        return self.head(self.norm(x).mean(1))


train_x, train_y = textures(1000)
test_x, test_y = textures(500)
train_loader = DataLoader(TensorDataset(train_x, train_y), batch_size=MICRO_BATCH, shuffle=True)

model = Mixer()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
updates = EPOCHS * len(train_loader) // ACCUMULATE
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=updates, pct_start=0.2)
criterion = nn.CrossEntropyLoss()


@torch.no_grad()
def evaluate():
    model.eval()
    with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
        logits = model(test_x)
    return (logits.argmax(1) == test_y).float().mean().item()


for epoch in range(EPOCHS):
    model.train()
    epoch_loss = 0.0
    optimizer.zero_grad()
    for i, (images, labels) in enumerate(train_loader, start=1):
        with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
            loss = criterion(model(images), labels)
        (loss / ACCUMULATE).backward()
        epoch_loss += loss.item()
        if i % ACCUMULATE == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    print(f"epoch {epoch + 1}/{EPOCHS} loss {epoch_loss / len(train_loader):.3f} accuracy {evaluate():.3f}")
print("score", evaluate())
