"""Siamese embedding by triplets: distance alone decides whether two noisy digits are the same."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)


class TripletDataset(Dataset):
    """(anchor, positive, negative); partners are drawn anew at every access."""

    def __init__(self, images, labels):
        self.images, self.labels = images, labels
        self.by_class = {int(c): (labels == c).nonzero().flatten() for c in labels.unique()}

    def __len__(self):
        return len(self.images)

    def pick(self, label):
        rows = self.by_class[label]
        return self.images[rows[torch.randint(len(rows), (1,)).item()]]

    def __getitem__(self, i):
        own = int(self.labels[i])
        others = [c for c in self.by_class if c != own]
        return self.images[i], self.pick(own), self.pick(others[torch.randint(len(others), (1,)).item()])


class EmbeddingNet(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.prelu = nn.PReLU()
        self.fc = nn.Linear(32 * 4, dim)

    def forward(self, x):
        x = F.max_pool2d(self.prelu(self.conv1(x)), 2)
        x = F.max_pool2d(self.prelu(self.conv2(x)), 2)
        return F.normalize(self.fc(x.flatten(1)), dim=1)


class SiameseNet(nn.Module):
    def __init__(self, embedding_net):
        super().__init__()
        self.embedding_net = embedding_net

    def forward(self, *views):
        return [self.embedding_net(view) for view in views]


digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
images = images + 0.35 * torch.randn(images.shape)  # a noisy scanner
labels = torch.tensor(digits.target)
shuffled = torch.randperm(len(images))
train_x, train_y = images[shuffled[:1200]], labels[shuffled[:1200]]
test_x, test_y = images[shuffled[1200:]], labels[shuffled[1200:]]
loader = DataLoader(TripletDataset(train_x, train_y), batch_size=40, shuffle=True)


def verification_auc(net):
    """Area under the ROC curve of "the same digit?" over all pairs of held-out images."""
    net.eval()
    with torch.no_grad():
        z = net(test_x)
    i, j = torch.triu_indices(len(z), len(z), offset=1)
    return float(roc_auc_score((test_y[i] == test_y[j]).numpy(), -(z[i] - z[j]).norm(dim=1).numpy()))


embedding_net = EmbeddingNet()
model = SiameseNet(embedding_net)
loss_fn = nn.TripletMarginLoss(margin=0.4)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
print(f"untrained {verification_auc(embedding_net):.3f}")
for epoch in range(6):
    model.train()
    losses = []
    for anchor, positive, negative in loader:
        optimizer.zero_grad()
        loss = loss_fn(*model(anchor, positive, negative))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(
        f"epoch {epoch}: triplet loss {sum(losses) / len(losses):.4f}, AUC {verification_auc(embedding_net):.4f}"
    )
print("score", 2 * verification_auc(embedding_net) - 1)
