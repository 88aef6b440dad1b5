"""What other tools add to a step on a GPU, beside Luff in the same process; those that can be imported.

Each takes statistics of weights and gradients at every step, as far as it can, and writes them to files.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from models import SUMMARIES, milliseconds
from torch import nn

Row = dict[str, Any]
GATE = 1 / 10


class WandbWatch:
    """`wandb.watch` of all parameters and gradients at every step, without network."""

    def __init__(self, model: nn.Module, folder: Path) -> None:
        self._wandb: Any = importlib.import_module("wandb")
        os.environ["WANDB_SILENT"] = "true"
        self._run = self._wandb.init(mode="offline", dir=str(folder), project="luff")
        self._wandb.watch(model, log="all", log_freq=1)

    def after_step(self) -> None:
        self._run.log({"step": 1})

    def close(self) -> None:
        self._run.finish()


class SmDebugHook:
    """smdebug's statistics of weights and gradients at every step."""

    def __init__(self, model: nn.Module, folder: Path) -> None:
        sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
        peer: Any = importlib.import_module("peers.smdebug_peer")
        self._hook = peer.SmDebug(str(folder / "smdebug"), "statistics", 1, model, nn.MSELoss())

    def after_step(self) -> None:
        return None

    def close(self) -> None:
        self._hook.close()


class TrainScopeStep:
    """trainscope's metrics of every step, without what it does every fifth and every fiftieth."""

    def __init__(self, model: nn.Module, folder: Path) -> None:
        trainscope: Any = importlib.import_module("trainscope")
        config = trainscope.TrainScopeConfig(
            run_dir=str(folder / "trainscope"), run_name="run", histogram_every_n_steps=1 << 30,
            activation_metrics_every_n_steps=1 << 30,
        )  # fmt: skip
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)  # it reads the rate
        self._scope = trainscope.TrainScope(model, optimizer, config=config).attach()

    def after_step(self) -> None:
        self._scope.step(1.0)

    def close(self) -> None:
        self._scope.detach()


INSPECT = """
luff:
  enabled: True
  layers:
    layer_name_regex_pattern: .*
  LogTensorStats:
    enabled: True
    tensors_struct:
      - tensor: weight
        stats: [min, max, mean, std, l1_norm, l2_norm]
        freq: 1
      - tensor: gradient
        stats: [min, max, mean, std, l1_norm, l2_norm]
        freq: 1
"""


class InspectStatistics:
    """Six statistics of nvdlfw-inspect of each weight and gradient at every step."""

    def __init__(self, model: nn.Module, folder: Path) -> None:
        self._api: Any = importlib.import_module("nvdlfw_inspect.api")
        settings = folder / "inspect.yaml"
        settings.write_text(INSPECT)
        self._api.initialize(config_file=str(settings), log_dir=str(folder))
        self._model = model

    def after_step(self) -> None:
        for name, parameter in self._model.named_parameters():
            given = {"skip_reduction": True}
            self._api.log_tensor_stats(name, tensor=parameter.detach(), tensor_name="weight", **given)
            self._api.log_tensor_stats(name, tensor=parameter.grad, tensor_name="gradient", **given)
        self._api.step()

    def close(self) -> None:
        self._api.end_debug()


PEERS: dict[str, Callable[[nn.Module, Path], Any]] = {
    "smdebug": SmDebugHook,
    "wandb": WandbWatch,
    "trainscope": TrainScopeStep,
    "nvdlfw_inspect": InspectStatistics,
}


def trainer(device: str, width: int) -> tuple[nn.Module, Callable[[], None]]:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(24))).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    x = torch.randn(256, width, device=device)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return model, step


def peers(folder: Path, device: str = "cuda", width: int = 1024, turns: int = 6) -> Iterator[Row]:
    """Luff's extra over that of each peer, in turns in one process."""
    import luff.torch

    for name, make in PEERS.items():
        check = f"extra over that of {name}"
        try:
            importlib.import_module(name)
        except Exception as why:  # whatever an old package raises
            yield {"check": check, "status": "skipped", "detail": f"{name} cannot be imported: {why!r}"[:200]}
            continue
        _, bare = trainer(device, width)
        model, watched = trainer(device, width)
        run = str(folder / f"luff_{name}")
        hook = luff.torch.attach(model, run=run, collections=SUMMARIES, accelerators=True)
        other, beside = trainer(device, width)
        peer = make(other, folder)

        def of_peer(beside: Callable[[], None] = beside, peer: Any = peer) -> None:
            beside()
            peer.after_step()

        times: dict[str, float] = {"bare": 0.0, "luff": 0.0, name: 0.0}
        for turn in range(turns + 2):
            for system, step in (("bare", bare), ("luff", watched), (name, of_peer)):
                took = milliseconds(step, 10, device)
                times[system] += took if turn >= 2 else 0.0
        hook.close()
        with contextlib.suppress(Exception):
            peer.close()
        mine, theirs = times["luff"] - times["bare"], times[name] - times["bare"]
        detail = f"{mine / turns / 10:.3f} and {theirs / turns / 10:.3f} ms a step"
        share = mine / theirs if theirs > 0 else 1.0
        status = "passed" if share <= GATE else "failed"
        yield {"check": check, "status": status, "detail": detail, "value": share, "gate": GATE}
