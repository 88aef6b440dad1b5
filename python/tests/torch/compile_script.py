"""Compiled trainings and dynamo's counters, first without Luff and then with it.

Usage: ``compile_script.py BACKEND FOLDER KIND...``; prints JSON.
"""

import hashlib
import json
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class WithLoss(nn.Module):
    """A model whose loss is part of the forward pass, as in language models."""

    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x, y):
        out = self.body(x)
        return out, F.cross_entropy(out, y)


class Plain(nn.Module):
    """Compiled in place: a class of the user's own, so that torch does not skip it."""

    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x):
        return self.body(x)


class Breaks(nn.Module):
    """Breaks dynamo's graph in the middle, so that the code around it runs in pieces."""

    def forward(self, x):
        torch._dynamo.graph_break()
        return x * 1.0


def train(backend, kind, run):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    if kind == "broken":
        body = nn.Sequential(
            nn.Sequential(nn.Linear(6, 16), nn.GELU(), Breaks(), nn.LayerNorm(16)), nn.Linear(16, 3)
        )
    classes = {"loss_inside": WithLoss, "in_place": Plain, "broken": Plain}
    model = classes[kind](body) if kind in classes else body
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = None
    if run:
        import luff.torch

        forms = {"forms": ["raw", "summary"], "save": {"save_interval": 1}}
        roles = {"gradients": ["gradient"], "outputs": ["output"], "inputs": ["input"]}
        collections = [{"name": name, "roles": role, **forms} for name, role in roles.items()]
        hook = luff.torch.attach(model, optimizer, run=run, collections=collections)
    graphs = []

    def counting(graph, inputs):
        graphs.append(len(graph.graph.nodes))
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    if kind in ("in_place", "container"):
        model.compile(backend=counting, fullgraph=kind == "in_place")
        fast = model
    else:
        fast = torch.compile(model, backend=counting, fullgraph=kind != "broken")
    losses, gradients = [], []
    for _ in range(6):
        x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
        optimizer.zero_grad()
        loss = fast(x, y)[1] if kind == "loss_inside" else F.cross_entropy(fast(x), y)
        loss.backward()
        gradients.append(next(model.parameters()).grad.clone().numpy())
        optimizer.step()
        losses.append(loss.item().hex())
    counters = torch._dynamo.utils.counters
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    report = {
        "losses": losses,
        "weights": hashlib.sha256(weights).hexdigest(),
        "nodes": graphs,
        "graphs": counters["stats"]["unique_graphs"],
        "breaks": sum(counters["graph_break"].values()),
    }
    if hook is not None:
        hook.close()
        trial = luff.open_trial(run)
        path, _ = next(model.named_parameters())
        got = trial.tensor(f"gradient/{type(model).__name__}_{path}")
        report["errors"] = hook.guard.first
        report["seen"] = {
            "train_steps": len(trial.steps("TRAIN")),
            "gradients_equal": all(
                np.array_equal(got.value(step, "TRAIN"), wanted) for step, wanted in enumerate(gradients)
            ),
            "compiled_gap": any("compiled" in gap["reason"] for gap in trial.gaps()),
        }
    return report


def main(backend, folder, *kinds):
    torch.set_num_threads(1)
    bare = {kind: train(backend, kind, None) for kind in kinds}
    seen = {kind: train(backend, kind, f"{folder}/{kind}") for kind in kinds}
    json.dump([bare, seen], sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
