"""Trains in several ways and prints the results as JSON; does not mention Luff. Usage: ways.py NAME..."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
warnings.filterwarnings("ignore")

import torch  # noqa: E402

torch.set_num_threads(1)


def told(model, *more):
    """Returns a hash of weights and buffers, and the state of the random number generator."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode() + value.contiguous().view(torch.uint8).numpy().tobytes())
    digest.update(torch.get_rng_state().numpy().tobytes())
    return [digest.hexdigest(), *more]


# Lightning ---------------------------------------------------------------------------------------------------------


def lightning(model=None, seed=0, **settings):
    from lit import Net, loader, trainer

    torch.manual_seed(seed)
    model = Net(optimizer=torch.optim.AdamW) if model is None else model
    fit = trainer(**settings)
    fit.fit(model, loader(shuffle=True), loader(32, 1))
    fit.test(model, loader(16, 2), verbose=False)
    fit.predict(model, loader(16, 2))
    metrics = {name: float(value) for name, value in fit.callback_metrics.items()}
    return told(model, [loss.hex() for loss in model.losses], metrics)


def lightning_scaled():
    from lightning.pytorch.plugins import MixedPrecision

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=3)
    return lightning(plugins=[MixedPrecision("16-mixed", "cpu", scaler)], gradient_clip_val=0.5)


def lightning_by_hand():
    """Two optimizers that take turns, as for adversarial networks."""
    from lit import Net
    from torch import nn

    class Turns(Net):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.judge = nn.Linear(3, 1)

        def training_step(self, batch, batch_idx):
            first, second = self.optimizers()
            out = self(batch[0])
            for optimizer, loss in (
                (first, self.loss(out, batch[1])),
                (second, self.judge(out.detach()).square().mean()),
            ):
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()
                self.losses.append(loss.item())

        def configure_optimizers(self):
            return torch.optim.SGD(self.net.parameters(), 0.1), torch.optim.Adam(self.judge.parameters(), 0.1)

    return lightning(Turns())


def lightning_checkpointed():
    from lit import Net
    from torch.utils.checkpoint import checkpoint

    class Recomputing(Net):
        def forward(self, x):
            return checkpoint(self.net, x, use_reentrant=False)

    return lightning(Recomputing(), accumulate_grad_batches=2)


def lightning_lbfgs():
    from lit import Net

    return lightning(Net(lr=0.5, optimizer=torch.optim.LBFGS), max_epochs=1)


def lightning_files():
    """Compares what Lightning writes: checkpoints and logged metrics."""
    from lightning.pytorch.loggers import CSVLogger
    from lit import Net, loader, trainer

    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(3)
        model = Net()
        fit = trainer(
            logger=CSVLogger(folder, version=0),
            enable_checkpointing=True,
            log_every_n_steps=1,
            default_root_dir=folder,
        )
        fit.fit(model, loader(), loader(32, 1))
        saved = torch.load(fit.checkpoint_callback.best_model_path, weights_only=False)
        for callback in saved["callbacks"].values():
            callback.clear()  # contains paths of the folder
        metrics = (Path(folder) / "lightning_logs" / "version_0" / "metrics.csv").read_text()
        keys = sorted(saved), sorted(saved["callbacks"]), str(saved["loops"])
        return told(model, metrics, keys)


def lightning_compiled():
    from lit import Net

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = Net()
    model.net = torch.compile(model.net, backend="aot_eager")
    out = lightning(model)
    counted = torch._dynamo.utils.counters["stats"]
    return [*out, dict(counted), dict(torch._dynamo.utils.counters["graph_break"])]


# Transformers ------------------------------------------------------------------------------------------------------


def transformers(model=None, **settings):
    from hf import Rows, gpt2, trainer

    with tempfile.TemporaryDirectory() as folder:
        train = trainer(folder, model=model, evaluate=Rows(16, 1), eval_strategy="epoch", **settings)
        train.train()
        train.predict(Rows(8, 2))
        del gpt2
        history = [
            {name: value for name, value in entry.items() if "second" not in name and "runtime" not in name}
            for entry in train.state.log_history
        ]
        files = sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*"))
        state = {path.parent.name: path.read_text() for path in Path(folder).glob("*/trainer_state.json")}
        timed = ("runtime", "second")
        states = {
            n: [line for line in t.splitlines() if not any(w in line for w in timed)]
            for n, t in state.items()
        }
        return told(train.model, history, files, states)


def transformers_recomputing():
    return transformers(activation_checkpointing=True, save_strategy="epoch", max_grad_norm=0.1)


def transformers_compiled():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    out = transformers(torch_compile=True, torch_compile_backend="aot_eager")
    return [
        *out,
        dict(torch._dynamo.utils.counters["stats"]),
        dict(torch._dynamo.utils.counters["graph_break"]),
    ]


# Accelerate --------------------------------------------------------------------------------------------------------


def accelerate(**settings):
    from acc import fit, prepared
    from accelerate import Accelerator

    torch.manual_seed(5)
    accelerator = Accelerator(cpu=True, **settings)
    parts = prepared(accelerator)
    losses, _ = fit(accelerator, *parts, clip=0.1)
    with tempfile.TemporaryDirectory() as folder:
        accelerator.save_state(folder)
        files = sorted(path.name for path in Path(folder).iterdir())
    return told(parts[0], [loss.hex() for loss in losses], files)


WAYS = {
    "lightning": lightning,
    "lightning accumulated, clipped, bf16": lambda: lightning(
        accumulate_grad_batches=2, gradient_clip_val=0.5, precision="bf16-mixed"
    ),
    "lightning scaled": lightning_scaled,
    "lightning by hand": lightning_by_hand,
    "lightning checkpointed": lightning_checkpointed,
    "lightning lbfgs": lightning_lbfgs,
    "lightning files": lightning_files,
    "transformers": lambda: transformers(save_strategy="epoch"),
    "transformers accumulated, bf16": lambda: transformers(bf16=True, gradient_accumulation_steps=2),
    "transformers recomputing": transformers_recomputing,
    "accelerate": lambda: accelerate(gradient_accumulation_steps=2),
}
THOROUGH = {"lightning compiled": lightning_compiled, "transformers compiled": transformers_compiled}


def main():
    """Trains in the named ways."""
    results = {}
    for name in sys.argv[1:] or WAYS:
        torch.manual_seed(7)
        with contextlib.redirect_stdout(io.StringIO()):
            results[name] = {**WAYS, **THOROUGH}[name]()
    hook = sys.modules.get("luff.torch") and sys.modules["luff.torch"].get_hook()
    results["_luff"] = None if hook is None else [hook.guard.first, hook.machine.clock.mode_steps]
    print(json.dumps(results, default=str))


if __name__ == "__main__":
    main()
