"""A training on two processes, as a user would write it: DDP or FSDP2 with gloo.

Writes the values that each step used into FOLDER/rankN.npz. Usage: ``distributed_script.py ddp|fsdp FOLDER``.
"""

import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def say(text):
    sys.stdout.write(text + "\n")  # a single write, since both ranks share the pipe
    sys.stdout.flush()


def local(tensor):
    return (tensor.to_local() if hasattr(tensor, "to_local") else tensor).detach().clone().numpy()


def main(kind, folder):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
    if kind == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    truth = {}
    for step in range(6):
        x, y = torch.randn(8, 6, generator=generator), torch.randint(0, 4, (8,), generator=generator)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        truth[f"{step}/loss"] = loss.detach().numpy()
        for name, parameter in model.named_parameters():
            truth[f"{step}/{name.removeprefix('module.')}"] = local(parameter)
            truth[f"{step}/gradient/{name.removeprefix('module.')}"] = local(parameter.grad)
        optimizer.step()
        for name, parameter in model.named_parameters():
            truth[f"{step}/state/{name.removeprefix('module.')}"] = local(
                optimizer.state[parameter]["exp_avg"]
            )
        say(f"rank {rank} loss {loss.item().hex()}")
    for name, parameter in model.named_parameters():
        say(f"rank {rank} {name.removeprefix('module.')} {local(parameter).astype(float).sum().hex()}")
    np.savez(f"{folder}/rank{rank}.npz", **truth)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:3])
