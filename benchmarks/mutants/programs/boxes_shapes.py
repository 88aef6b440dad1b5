"""A box (x1, y1, x2, y2) and a class for the one shape in each image: a small convolutional net, two losses."""

import os

import torch
from torch import nn
from torch.nn import functional as F

seed = int(os.environ.get("SEED", "0"))
torch.manual_seed(seed)
torch.set_num_threads(1)


def make_images(count, size=20):
    """Plain, striped and barred rectangles of random places and sizes."""
    images = 0.2 * torch.randn(count, 1, size, size)
    extent = torch.randint(4, 10, (count, 2))
    corner = (torch.rand(count, 2) * (size - extent)).long()
    kinds = torch.randint(0, 3, (count,))
    for image, (x, y), (w, h), kind in zip(
        images, corner.tolist(), extent.tolist(), kinds.tolist(), strict=True
    ):
        patch = image[0, y : y + h, x : x + w]
        if kind == 0:
            patch += 1.0
        elif kind == 1:
            patch[::2] += 1.5
        else:
            patch[:, ::2] += 1.5
    return images, torch.cat([corner, corner + extent], dim=1).float() / size, kinds


train_x, train_y, train_kinds = make_images(640)
test_x, test_y, test_kinds = make_images(200)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 25, 96),
            nn.ReLU(),
        )
        self.box, self.kind = nn.Linear(96, 4), nn.Linear(96, 3)

    def forward(self, images):
        features = self.features(images)
        return self.box(features), self.kind(features)


detector = Detector()
optimizer = torch.optim.Adam(detector.parameters(), lr=2e-3)
for epoch in range(14):
    detector.train()
    for index in torch.randperm(len(train_x)).split(32):
        boxes, kinds = detector(train_x[index])
        loss = 5 * F.smooth_l1_loss(boxes, train_y[index], beta=0.1) + F.cross_entropy(
            kinds, train_kinds[index]
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    detector.eval()
    with torch.no_grad():
        boxes, kinds = detector(test_x)
        box_loss = F.smooth_l1_loss(boxes, test_y, beta=0.1).item()
        right = (kinds.argmax(1) == test_kinds).float().mean().item()
    print(f"epoch {epoch}: boxes {box_loss:.4f}, classes {right:.3f}")

spread = (test_y - test_y.mean(0)).abs().mean().item()
print("score", right - (boxes - test_y).abs().mean().item() / spread)
