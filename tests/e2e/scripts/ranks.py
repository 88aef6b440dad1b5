"""A training on two ranks, as a user would write it: DDP over gloo. With --nan-at, one batch spoils the weights.

With --average-every N, nothing wraps the model, and the ranks average their weights every N updates; with -1 never.
With --apart, the loop calls the module inside the wrapper, so that gradients are never averaged.
"""

import argparse
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nan-at", type=int, default=-1)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--average-every", type=int, default=0)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    if not arguments.average_every:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss_fn = nn.MSELoss()
    generator = torch.Generator().manual_seed(rank)
    for step in range(arguments.steps):
        x = torch.randn(32, 8, generator=generator)
        y = x[:, :1] * (float("nan") if step == arguments.nan_at else 2.0)
        optimizer.zero_grad()
        loss_fn((model.module if arguments.apart else model)(x), y).backward()
        optimizer.step()
        if arguments.average_every > 0 and step % arguments.average_every == arguments.average_every - 1:
            with torch.no_grad():
                for parameter in model.parameters():
                    dist.all_reduce(parameter)
                    parameter /= dist.get_world_size()
    sys.stdout.write(f"rank {rank} done\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
