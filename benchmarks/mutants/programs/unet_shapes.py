"""Segmentation of discs and boxes on noise with a small U-Net: cross-entropy plus dice, batch normalisation."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SEED = int(os.environ.get("SEED", "0"))
torch.manual_seed(SEED)
torch.set_num_threads(1)
SIZE, BATCH, EPOCHS = 16, 12, 7


def make_images(n):
    yy, xx = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    images = 0.4 * torch.randn(n, 1, SIZE, SIZE)
    masks = torch.zeros(n, SIZE, SIZE)
    for i in range(n):
        cy, cx = torch.randint(4, SIZE - 4, (2,)).tolist()
        r = torch.randint(2, 6, (1,)).item()
        if torch.rand(1) < 0.5:
            shape = (yy - cy) ** 2 + (xx - cx) ** 2 <= r * r
        else:
            shape = ((yy - cy).abs() <= r) & ((xx - cx).abs() <= r - 1)
        masks[i] = shape.float()
        images[i, 0] += (0.7 + 0.6 * torch.rand(1)) * shape
    return images, masks.unsqueeze(1)


train_x, train_y = make_images(240)
test_x, test_y = make_images(100)


class DoubleConv(nn.Sequential):
    def __init__(self, cin, cout):
        super().__init__(
            nn.Conv2d(cin, cout, 3, padding=1, bias=False),
            nn.BatchNorm2d(cout),
            nn.ReLU(inplace=True),
            nn.Conv2d(cout, cout, 3, padding=1, bias=False),
            nn.BatchNorm2d(cout),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    def __init__(self, base=8):
        super().__init__()
        self.inc = DoubleConv(1, base)
        self.down = DoubleConv(base, 2 * base)
        self.bottom = DoubleConv(2 * base, 4 * base)
        self.up1 = nn.ConvTranspose2d(4 * base, 2 * base, 2, stride=2)
        self.dec1 = DoubleConv(4 * base, 2 * base)
        self.up2 = nn.ConvTranspose2d(2 * base, base, 2, stride=2)
        self.dec2 = DoubleConv(2 * base, base)
        self.outc = nn.Conv2d(base, 1, 1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down(F.max_pool2d(x1, 2))
        x3 = self.bottom(F.max_pool2d(x2, 2))
        x = self.dec1(torch.cat([self.up1(x3), x2], dim=1))
        x = self.dec2(torch.cat([self.up2(x), x1], dim=1))
        return self.outc(x)


def dice_loss(logits, masks, eps=1.0):
    p = torch.sigmoid(logits)
    overlap = (p * masks).sum(dim=(1, 2, 3))
    return 1 - ((2 * overlap + eps) / (p.sum(dim=(1, 2, 3)) + masks.sum(dim=(1, 2, 3)) + eps)).mean()


def mean_iou(net):
    net.eval()
    with torch.no_grad():
        pred = net(test_x) > 0
    truth = test_y > 0.5
    inter = (pred & truth).sum(dim=(1, 2, 3)).float()
    union = (pred | truth).sum(dim=(1, 2, 3)).float()
    return (inter / union.clamp(min=1)).mean().item()


net = UNet()
optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
for epoch in range(EPOCHS):
    net.train()
    epoch_loss = 0.0
    for idx in torch.randperm(len(train_x)).split(BATCH):
        images, masks = train_x[idx], train_y[idx]
        optimizer.zero_grad(set_to_none=True)
        logits = net(images)
        loss = F.binary_cross_entropy_with_logits(logits, masks) + dice_loss(logits, masks)
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item() * len(idx)
    print(f"Epoch {epoch + 1}: loss {epoch_loss / len(train_x):.4f}, IoU {mean_iou(net):.4f}")
print("score", mean_iou(net))
