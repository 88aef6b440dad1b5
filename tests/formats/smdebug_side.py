"""Runs in the environment that has smdebug: writes a trial with it, or prints as JSON what it reads."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys

logging.disable(logging.WARNING)
os.environ["SMDEBUG_TRAINING_END_DELAY_REFRESH"] = "0"


def write(out: str) -> None:
    """Writes ten TRAIN and two EVAL steps of a small model, every second step; of biases only reductions."""
    import smdebug.pytorch as smd
    import torch
    from smdebug import ReductionConfig, SaveConfig, modes

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    loss_fn = torch.nn.CrossEntropyLoss()
    hook = smd.Hook(
        out_dir=out,
        save_config=SaveConfig(save_interval=2),
        include_collections=["weights", "gradients", "losses", "biases"],
    )
    biases = hook.get_collection("biases")
    biases.reduction_config = ReductionConfig(reductions=["min", "max", "mean", "std"], norms=["l1", "l2"])
    hook.register_module(model)
    hook.register_loss(loss_fn)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(10):
        hook.set_mode(modes.TRAIN)
        x, y = torch.randn(16, 4), torch.randint(0, 3, (16,))
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
        hook.save_scalar("learning rate", 0.1 * i)
        if i % 5 == 4:
            hook.set_mode(modes.EVAL)
            with torch.no_grad():
                loss_fn(model(x), y)
    hook.close()


def read(path: str) -> dict:
    """Returns everything that smdebug shows of a trial."""
    from smdebug import modes
    from smdebug.exceptions import TensorUnavailableForStep
    from smdebug.trials import create_trial

    trial = create_trial(path)
    told: dict = {"steps": {}, "tensors": {}, "collections": {}, "workers": trial.workers()}
    for mode in (modes.TRAIN, modes.EVAL, modes.GLOBAL):
        told["steps"][mode.name] = trial.steps(mode)
    for name in trial.tensor_names():
        tensor = trial.tensor(name)
        values, reductions = {}, {}
        for step in tensor.steps():
            for worker in tensor.workers(step):
                try:
                    value = tensor.value(step, worker=worker)
                    digest = hashlib.sha256(value.tobytes()).hexdigest()
                    values[f"{step} {worker}"] = [str(value.dtype), list(value.shape), digest]
                except TensorUnavailableForStep:
                    pass
                found = tensor.reduction_values(step, worker=worker)
                if found:
                    reductions[f"{step} {worker}"] = {
                        f"{'abs_' if a else ''}{n}": float(v) for (n, a), v in found.items()
                    }
        told["tensors"][name] = {"values": values, "reductions": reductions}
    for name in ("weights", "biases", "gradients", "losses"):
        told["collections"][name] = trial.tensor_names(collection=name)
    return told


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2])
    else:
        print("\n" + json.dumps(read(sys.argv[2])))
