"""Trains in two processes; does not mention Luff. Usage: ranks.py FRAMEWORK [fault]."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import sys
import warnings

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
warnings.filterwarnings("ignore")

import torch  # noqa: E402

torch.set_num_threads(1)
FAULT = "fault" in sys.argv


def lightning():
    from lit import Net, loader, trainer

    class Keeps(Net):
        def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
            pass

    torch.manual_seed(0)
    model = (Keeps if FAULT else Net)(lr=0.001)
    fit = trainer(
        strategy="ddp", devices=2, max_epochs=400 if FAULT else 3, accumulate_grad_batches=1 if FAULT else 2
    )
    fit.fit(model, loader(128), loader(32, 1))
    fit.validate(model, loader(32, 1), verbose=False)
    return model, model.losses


def transformers():
    from hf import Rows, trainer

    train = trainer("out", train=Rows(64), evaluate=Rows(32, 1), eval_strategy="epoch", ddp_backend="gloo")
    train.train()
    return train.model, [entry["loss"] for entry in train.state.log_history if "loss" in entry]


def accelerate():
    from acc import fit, prepared
    from accelerate import Accelerator

    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    parts = prepared(accelerator)
    losses, _ = fit(accelerator, *parts, clip=0.1)
    accelerator.end_training()
    return parts[0], losses


def main():
    """Trains, and writes the result to a file for each rank."""
    with contextlib.redirect_stdout(io.StringIO()):
        model, losses = globals()[sys.argv[1]]()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    rank = os.environ.get("LOCAL_RANK", "0")
    with open(f"{os.environ['RANKS_OUT']}.{rank}", "w") as file:
        file.write(digest.hexdigest() + "\n" + "\n".join(float(loss).hex() for loss in losses) + "\n")


if __name__ == "__main__":
    main()
