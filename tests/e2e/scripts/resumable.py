"""A training that continues from its checkpoint, as a user would write it, without any mention of Luff.

With --keep, gradients are never cleared.
"""

import argparse
from pathlib import Path

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--checkpoint", type=Path, required=True)
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--keep", action="store_true")
options = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(4096, 8)
y = (x[:, :1] * 2 - x[:, 1:2]).tanh() + 0.1 * torch.randn(4096, 1)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
begin = 0
if options.checkpoint.exists():
    saved = torch.load(options.checkpoint)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    torch.set_rng_state(saved["rng"])
    begin = saved["step"]
for _ in range(begin, options.steps):
    rows = torch.randint(0, 4096, (32,))
    if not options.keep:
        optimizer.zero_grad()
    nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
    optimizer.step()
torch.save(
    {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
        "step": options.steps,
    },
    options.checkpoint,
)
print(f"done at {options.steps}")
