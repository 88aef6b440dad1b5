"""A training during which Luff's writer thread gets no memory, by the library that the test loads.

It names its watcher only to see when the recording has ended.
"""

import sys
import time
from pathlib import Path

import luff.torch
import torch
from torch import nn

none_left = Path(sys.argv[1])  # while it is there
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loss_fn = nn.MSELoss()
hook = luff.torch.attach(model, optimizer=optimizer, loss_fn=loss_fn)


def train(steps: int) -> None:
    x = torch.randn(8, 4)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_fn(model(x), x[:, :1]).backward()
        optimizer.step()


train(50)
assert hook.flush(60)
none_left.touch()
end = time.monotonic() + 60
while hook.health()["accepting"] and time.monotonic() < end:
    train(1)
none_left.unlink()
train(50)
print("done")
