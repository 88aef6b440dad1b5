"""Boxes and classes of single shapes: the sum of a class loss and two box losses, GIoU and L1."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

SEED = int(os.environ.get("SEED", "0"))
torch.manual_seed(SEED)
torch.set_num_threads(1)
S = 20


def render(n):
    """Filled, hollow or crossed rectangles; boxes are (x1, y1, x2, y2) as shares of the image."""
    images, boxes, kinds = 0.3 * torch.randn(n, 1, S, S), torch.empty(n, 4), torch.randint(0, 3, (n,))
    for image, box, kind in zip(images[:, 0], boxes, kinds, strict=True):
        w, h = torch.randint(6, 13, (2,)).tolist()
        x, y = torch.randint(0, S - w + 1, (1,)).item(), torch.randint(0, S - h + 1, (1,)).item()
        stamp = torch.ones(h, w)
        if kind == 1:
            stamp[2:-2, 2:-2] = 0
        elif kind == 2:
            stamp[::2] = 0
        image[y : y + h, x : x + w] += 1.5 * stamp
        box[:] = torch.tensor([x, y, x + w, y + h]) / S
    return images, boxes, kinds


train_set, val_set = random_split(TensorDataset(*render(1100)), [800, 300])
train_dl = DataLoader(train_set, batch_size=32, shuffle=True)
val_dl = DataLoader(val_set, batch_size=100)


def area(b):
    return (b[:, 2] - b[:, 0]).clamp(min=0) * (b[:, 3] - b[:, 1]).clamp(min=0)


def overlap(a, b):
    """IoU and generalised IoU of pairs of boxes."""
    inner = torch.cat([torch.maximum(a[:, :2], b[:, :2]), torch.minimum(a[:, 2:], b[:, 2:])], dim=1)
    outer = torch.cat([torch.minimum(a[:, :2], b[:, :2]), torch.maximum(a[:, 2:], b[:, 2:])], dim=1)
    inter = area(inner)
    union = area(a) + area(b) - inter
    iou = inter / union.clamp(min=1e-6)
    return iou, iou - (area(outer) - union) / area(outer).clamp(min=1e-6)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1),
            nn.GroupNorm(3, 12),
            nn.ReLU(),
            nn.Conv2d(12, 24, 3, stride=2, padding=1),
            nn.GroupNorm(4, 24),
            nn.ReLU(),
            nn.Conv2d(24, 24, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(24 * 25, 64),
            nn.ReLU(),
        )
        self.box_head, self.class_head = nn.Linear(64, 4), nn.Linear(64, 3)

    def forward(self, x):
        h = self.backbone(x)
        centre, size = torch.sigmoid(self.box_head(h)).chunk(2, dim=1)
        return torch.cat([centre - size / 2, centre + size / 2], dim=1), self.class_head(h)


def validate(model):
    model.eval()
    ious, hits = [], []
    with torch.no_grad():
        for images, boxes, kinds in val_dl:
            pred, logits = model(images)
            ious.append(overlap(pred, boxes)[0])
            hits.append(logits.argmax(1) == kinds)
    return torch.cat(ious).mean().item(), torch.cat(hits).float().mean().item()


model = Detector()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[6], gamma=0.2)
best = 0.0
with TemporaryDirectory() as folder:
    checkpoint = Path(folder, "best.pt")
    for epoch in range(8):
        model.train()
        for images, boxes, kinds in train_dl:
            pred, logits = model(images)
            loss_box = F.l1_loss(pred, boxes) + (1 - overlap(pred, boxes)[1]).mean()
            loss_class = F.cross_entropy(logits, kinds)
            loss = 2.0 * loss_box + loss_class
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()
        iou, acc = validate(model)
        print(
            f"epoch {epoch} box {loss_box.item():.3f} class {loss_class.item():.3f} IoU {iou:.3f} acc {acc:.3f}"
        )
        if iou * acc > best:
            best = iou * acc
            torch.save(model.state_dict(), checkpoint)
    model.load_state_dict(torch.load(checkpoint))
iou, acc = validate(model)
print("score", iou * acc)
