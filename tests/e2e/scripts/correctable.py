"""A training of one or two ranks that allows corrections; ends when the file --until exists.

Each rank writes to --rates when its rate was lowered: the number of updates so far, and the new rate.
"""

import argparse
import os
import time
from pathlib import Path

import luff
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nan-at", type=int, default=30)
    parser.add_argument("--steps", type=int, default=20000)
    parser.add_argument("--rates", type=Path, required=True)
    parser.add_argument("--until", type=Path, required=True)
    arguments = parser.parse_args()
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    if ranks > 1:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
    log = Path(f"{arguments.rates}-{rank}")
    luff.corrections.accept(lower_lr=True)
    luff.on_stop(lambda: Path(f"{arguments.rates}-{rank}.checkpoint").write_text("saved"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.08)
    generator = torch.Generator().manual_seed(rank)
    rate = 0.08
    for step in range(arguments.steps):
        x = torch.randn(32, 8, generator=generator)
        y = x[:, :1] * (float("nan") if step == arguments.nan_at else 2.0)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        if optimizer.param_groups[0]["lr"] != rate:
            rate = optimizer.param_groups[0]["lr"]
            with log.open("a") as file:
                file.write(f"{step + 1} {rate}\n")
        over = torch.tensor(float(arguments.until.exists()))
        if ranks > 1:
            dist.all_reduce(over)
        if over.item() > 0:
            break
        time.sleep(0.002)
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
