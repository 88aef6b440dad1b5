"""A training of one or two ranks that lets itself be corrected; ends when the file --until exists.

Each rank writes to --rates what was corrected: the number of updates so far, and the new rate, "skip", or "rollback"
with the step that it was given. At its end it writes whether its weights are finite.
"""

import argparse
import copy
import os
import sys
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
    parser.add_argument("--refuses", type=int, default=-1)
    parser.add_argument("--unwatched", type=int, default=-1)
    parser.add_argument("--corrects", choices=("lower_lr", "skip_batch", "rollback"), default="lower_lr")
    parser.add_argument("--rates", type=Path, required=True)
    parser.add_argument("--until", type=Path, required=True)
    arguments = parser.parse_args()
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    if arguments.unwatched == rank and "LUFF_SESSION" in os.environ:
        os.environ.pop("LUFF_SESSION")
        os.execv(sys.executable, [sys.executable, *sys.argv])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    if ranks > 1:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
    log = Path(f"{arguments.rates}-{rank}")
    step, skip, checkpoints = 0, False, {}

    def note(text):
        with log.open("a") as file:
            file.write(f"{step + 1} {text}\n")

    def skip_next():
        nonlocal skip
        skip = True
        note("skip")

    def load_before(trouble):
        model.load_state_dict(checkpoints[max(at for at in checkpoints if at <= trouble)])
        note(f"rollback {trouble}")

    if arguments.refuses != rank:
        ways = {"lower_lr": True, "skip_batch": skip_next, "rollback": load_before}
        luff.corrections.accept(**{arguments.corrects: ways[arguments.corrects]})
    luff.on_stop(lambda: Path(f"{arguments.rates}-{rank}.checkpoint").write_text("saved"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.08)
    generator = torch.Generator().manual_seed(rank)
    rate = 0.08
    for step in range(arguments.steps):
        x = torch.randn(32, 8, generator=generator)
        y = x[:, :1] * (float("nan") if step == arguments.nan_at else 2.0)
        if step % 10 == 0:
            checkpoints[step] = copy.deepcopy(model.state_dict())
        if skip:
            skip = False
            continue
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        if optimizer.param_groups[0]["lr"] != rate:
            rate = optimizer.param_groups[0]["lr"]
            note(rate)
        over = torch.tensor(float(arguments.until.exists()))
        if ranks > 1:
            dist.all_reduce(over)
        if over.item() > 0:
            break
        time.sleep(0.002)
    finite = all(bool(torch.isfinite(p).all()) for p in model.parameters())
    Path(f"{arguments.rates}-{rank}.finite").write_text(str(finite))
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
