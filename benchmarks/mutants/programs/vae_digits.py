"""A variational autoencoder of digits: reconstruction plus KL with a warm-up of beta."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader

torch.set_num_threads(1)
torch.manual_seed(int(os.environ.get("SEED", "0")))

pixels = torch.tensor(load_digits().data, dtype=torch.float32) / 16.0
pixels = pixels[torch.randperm(len(pixels))]
train_x, test_x = pixels[:1500], pixels[1500:]
train_loader = DataLoader(train_x, batch_size=50, shuffle=True)


class VAE(nn.Module):
    def __init__(self, n_pixels=64, hidden=96, latent=8):
        super().__init__()
        self.enc = nn.Linear(n_pixels, hidden)
        self.mu = nn.Linear(hidden, latent)
        self.logvar = nn.Linear(hidden, latent)
        self.dec1 = nn.Linear(latent, hidden)
        self.dec2 = nn.Linear(hidden, n_pixels)

    def encode(self, x):
        h = F.silu(self.enc(x))
        return self.mu(h), self.logvar(h)

    def reparameterize(self, mu, logvar):
        if not self.training:
            return mu
        return mu + torch.exp(0.5 * logvar) * torch.randn_like(logvar)

    def decode(self, z):
        return self.dec2(F.silu(self.dec1(z)))

    def forward(self, x):
        mu, logvar = self.encode(x)
        return self.decode(self.reparameterize(mu, logvar)), mu, logvar


def elbo_terms(logits, x, mu, logvar):
    bce = F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1).mean()
    kld = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
    return bce, kld


def explained_variance(model):
    """Share of the held-out pixels' variance that the reconstruction explains."""
    model.eval()
    with torch.no_grad():
        logits, _, _ = model(test_x)
        error = (torch.sigmoid(logits) - test_x).pow(2).mean()
    return 1 - (error / (test_x - train_x.mean(0)).pow(2).mean()).item()


model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
epochs = 16
for epoch in range(1, epochs + 1):
    model.train()
    beta = 0.5 * min(1.0, epoch / 5)
    sums = torch.zeros(2)
    for x in train_loader:
        optimizer.zero_grad()
        logits, mu, logvar = model(x)
        bce, kld = elbo_terms(logits, x, mu, logvar)
        (bce + beta * kld).backward()
        optimizer.step()
        sums += torch.stack([bce.detach(), kld.detach()]) * len(x)
    if epoch % 4 == 0:
        bce_mean, kld_mean = (sums / len(train_x)).tolist()
        print(
            f"====> epoch {epoch}: BCE {bce_mean:.2f} KLD {kld_mean:.2f} explained {explained_variance(model):.3f}"
        )
print("score", explained_variance(model))
