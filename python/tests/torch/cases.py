"""Ordinary trainings, one for each way in which people write them. None of them mentions Luff.

Each returns the losses it printed and the models it trained. Run as a script, it trains all of them and prints
digests as JSON: ``python cases.py [--luff RUN] [NAME ...]``.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import io
import json
import pickle
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

CASES: dict[str, Callable[[], Any]] = {}
STEPS = 6


def case(function):
    return CASES.setdefault(function.__name__, function)


def net(dropout=0.1):
    return nn.Sequential(
        nn.Linear(6, 16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(16, 16),
        nn.ReLU(),
        nn.Linear(16, 3),
    )


def batches(n=STEPS, size=8):
    generator = torch.Generator().manual_seed(7)
    for _ in range(n):
        yield torch.randn(size, 6, generator=generator), torch.randint(0, 3, (size,), generator=generator)


def loop(model, optimizer, loss_fn=None, data=None, after=None):
    loss_fn = loss_fn or nn.CrossEntropyLoss()
    losses = []
    for x, y in data or batches():
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        if after is not None:
            after(model)
        optimizer.step()
        losses.append(loss.item())
    return losses


@case
def plain():
    model = net()
    return loop(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)), [model]


@case
def functional_loss_adam():
    model = net()
    return loop(model, torch.optim.Adam(model.parameters(), lr=0.01), F.cross_entropy), [model]


@case
def evaluation_and_scheduler():
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    losses = []
    for x, y in batches():
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        model.eval()
        with torch.no_grad():
            losses.append(nn.CrossEntropyLoss()(model(x), y).item())
        losses.append(F.cross_entropy(model(x), y).item())
    return losses, [model]


@case
def frozen_layers():
    model = net()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    held = [p for p in model.parameters() if p.requires_grad]
    return loop(model, torch.optim.SGD(held, lr=0.1)), [model]


@case
def shared_parameters():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(11, 8)
            self.head = nn.Linear(8, 11, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x):
            return self.head(self.embed(x).mean(1))

    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    data = [(torch.randint(0, 11, (4, 5)), torch.randint(0, 11, (4,))) for _ in range(STEPS)]
    return loop(model, optimizer, data=data), [model]


@case
def module_called_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.ReLU()
            self.fc = nn.Linear(6, 6)
            self.out = nn.Linear(6, 3)

        def forward(self, x):
            return self.out(self.act(self.fc(self.act(self.fc(x)))))

    model = Twice()
    return loop(model, torch.optim.SGD(model.parameters(), lr=0.1)), [model]


@case
def two_optimizers_gan():
    generator = nn.Sequential(nn.Linear(4, 6))
    critic = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    g_opt, c_opt = torch.optim.Adam(generator.parameters()), torch.optim.Adam(critic.parameters())
    bce = nn.BCEWithLogitsLoss()
    losses = []
    for x, _ in batches():
        c_opt.zero_grad()
        fake = generator(torch.randn(8, 4))
        c_loss = bce(critic(x), torch.ones(8, 1)) + bce(critic(fake.detach()), torch.zeros(8, 1))
        c_loss.backward()
        c_opt.step()
        g_opt.zero_grad()
        g_loss = bce(critic(fake), torch.ones(8, 1))
        g_loss.backward()
        g_opt.step()
        losses += [c_loss.item(), g_loss.item()]
    return losses, [generator, critic]


@case
def two_optimizers_one_backward():
    model = net()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.Adam(model[4:].parameters())
    losses = []
    for x, y in batches():
        first.zero_grad()
        second.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        first.step()
        second.step()
        losses.append(loss.item())
    return losses, [model]


@case
def two_losses():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for x, y in batches():
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out, y)
        penalty = 0.01 * out.square().mean()
        loss.backward(retain_graph=True)
        penalty.backward()
        optimizer.step()
        losses += [loss.item(), penalty.item()]
    return losses, [model]


@case
def lbfgs():
    model = net(0.0)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    losses = []
    for x, y in batches(3):

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
    return losses, [model]


@case
def closure_keyword():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    losses = []
    for x, y in batches():

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        losses.append(optimizer.step(closure=closure).item())
    return losses, [model]


@case
def accumulation():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for index, (x, y) in enumerate(batches(8)):
        loss = F.cross_entropy(model(x), y)
        (loss / 4).backward()
        losses.append(loss.item())
        if index % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    return losses, [model]


@case
def autocast_bfloat16():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for x, y in batches():
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [model]


def _scaled(optimizer_of, clip=False):
    model = net()
    optimizer = optimizer_of(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)
    losses = []
    for index, (x, y) in enumerate(batches()):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        scaler.scale(loss * float("inf") if index == 2 else loss).backward()
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        losses += [loss.item(), scaler.get_scale()]
    return losses, [model]


@case
def grad_scaler_with_skip():
    return _scaled(lambda model: torch.optim.SGD(model.parameters(), lr=0.1))


@case
def grad_scaler_fused():
    return _scaled(lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, fused=True))


@case
def grad_scaler_clipped():
    return _scaled(lambda model: torch.optim.SGD(model.parameters(), lr=0.1), clip=True)


@case
def clipping():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return loop(model, optimizer, after=lambda m: nn.utils.clip_grad_norm_(m.parameters(), 0.05)), [model]


@case
def data_parallel():
    model = nn.DataParallel(net())
    return loop(model, torch.optim.SGD(model.parameters(), lr=0.1)), [model]


@case
def compiled():
    torch._dynamo.reset()
    model = net()
    fast = torch.compile(model, backend="aot_eager", fullgraph=True)
    return loop(fast, torch.optim.SGD(model.parameters(), lr=0.1)), [model]


@case
def compiled_in_place_with_step():
    torch._dynamo.reset()
    model = net()
    model.compile(backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = torch.compile(optimizer.step, backend="eager")
    losses = []
    for x, y in batches():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        step()
        losses.append(loss.item())
    return losses, [model]


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(6, 12), nn.Dropout(0.2), nn.ReLU())
        self.last = nn.Linear(12, 3)
        self.reentrant = reentrant

    def forward(self, x):
        return self.last(checkpoint(self.first, x, use_reentrant=self.reentrant))


@case
def checkpointing():
    model = Checkpointed(False)
    return loop(model, torch.optim.SGD(model.parameters(), lr=0.1), F.cross_entropy), [model]


@case
def checkpointing_reentrant():
    model = Checkpointed(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [(x.requires_grad_(), y) for x, y in batches()]
    return loop(model, optimizer, data=data), [model]


@case
def scripted():
    model = nn.Sequential(torch.jit.script(nn.Sequential(nn.Linear(6, 8), nn.ReLU())), nn.Linear(8, 3))
    losses = loop(model, torch.optim.SGD(model.parameters(), lr=0.1))
    whole = torch.jit.script(nn.Sequential(nn.Linear(6, 3)))
    losses += loop(whole, torch.optim.SGD(whole.parameters(), lr=0.1))
    traced = torch.jit.trace(model, torch.zeros(2, 6))
    losses += loop(traced, torch.optim.SGD(traced.parameters(), lr=0.1))
    return losses, [model, whole, traced]


@case
def copied_and_pickled():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = loop(model, optimizer)
    twin = copy.deepcopy(model)
    again = pickle.loads(pickle.dumps(model))
    stream = io.BytesIO()
    torch.save(model, stream)
    torch.save(optimizer.state_dict(), io.BytesIO())
    stream.seek(0)
    loaded = torch.load(stream, weights_only=False)
    for other in (twin, again, loaded):
        losses += loop(other, torch.optim.SGD(other.parameters(), lr=0.1))
    return losses, [model, twin, again, loaded]


@case
def exceptions_in_the_loop():
    class Fragile(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x):
            out = self.net(x)
            if len(x) == 3:
                raise ValueError("odd batch")
            return out

    model = Fragile()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for index, (x, y) in enumerate(batches()):
        try:
            if index == 1:
                model(x[:3])
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            if index == 3:
                loss.mean(0).sum().backward(torch.ones(3))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        except (ValueError, RuntimeError) as error:
            losses.append(float(len(type(error).__name__)))
    return losses, [model]


@case
def without_optimizer():
    model = net()
    losses = []
    for x, y in batches():
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-0.1)
        losses.append(loss.item())
    return losses, [model]


@case
def optimizer_in_backward():
    model = net()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def update(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    losses = []
    for x, y in batches():
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        losses.append(loss.item())
    return losses, [model]


@case
def sparse_embedding():
    model = nn.EmbeddingBag(20, 4, sparse=True)
    head = nn.Linear(4, 3)
    first, second = torch.optim.SparseAdam(model.parameters()), torch.optim.SGD(head.parameters(), lr=0.1)
    losses = []
    for _ in range(STEPS):
        first.zero_grad()
        second.zero_grad()
        loss = F.cross_entropy(head(model(torch.randint(0, 20, (5, 3)))), torch.randint(0, 3, (5,)))
        loss.backward()
        first.step()
        second.step()
        losses.append(loss.item())
    return losses, [model, head]


@case
def recurrent_cell():
    cell, head = nn.GRUCell(6, 8), nn.Linear(8, 3)
    optimizer = torch.optim.RMSprop([*cell.parameters(), *head.parameters()], lr=0.01)
    losses = []
    for x, y in batches():
        state = torch.zeros(8, 8)
        for _ in range(5):
            state = cell(x, state)
        loss = F.cross_entropy(head(state), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [cell, head]


@case
def target_network():
    model = nn.Linear(6, 3)
    target = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for x, _ in batches():
        out = model(x)
        with torch.no_grad():
            wanted = target(x + 1)
        loss = F.mse_loss(out, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [model, target]


@case
def loader_workers():
    data = torch.utils.data.TensorDataset(torch.randn(24, 6), torch.randint(0, 3, (24,)))
    loader = torch.utils.data.DataLoader(data, 8, shuffle=True, num_workers=2)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        losses += loop(model, optimizer, data=list(loader))
    return losses, [model]


@case
def eval_mode_training():
    model = net()
    model.eval()
    return loop(model, torch.optim.SGD(model.parameters(), lr=0.1)), [model]


@case
def double_and_dicts():
    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 3, dtype=torch.float64)

        def forward(self, inputs, *, scale):
            return {"logits": self.fc(inputs["x"]) * scale, "extra": [inputs["x"], None]}

    model = Nested()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for x, y in batches():
        optimizer.zero_grad()
        out = model({"x": x.double()}, scale=torch.tensor(2.0, dtype=torch.float64))
        loss = F.cross_entropy(out["logits"], y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [model]


@case
def gradient_penalty():
    model = net(0.0)
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    for x, y in batches():
        x.requires_grad_()
        loss = F.cross_entropy(model(x), y)
        (grad,) = torch.autograd.grad(loss, x, create_graph=True)
        total = loss + grad.norm()
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        losses.append(total.item())
    return losses, [model]


def digest(name: str) -> dict[str, Any]:
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    losses, models = CASES[name]()
    weights = hashlib.sha256()
    for model in models:
        for key, value in model.state_dict().items():
            weights.update(key.encode())
            weights.update(value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    randomness = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
    randomness.update(repr(random.getstate()).encode())
    randomness.update(repr(np.random.get_state()).encode())
    return {
        "losses": [loss.hex() for loss in losses],
        "weights": weights.hexdigest(),
        "random": randomness.hexdigest(),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fake", action="store_true", help="watch with a fake session")
    parser.add_argument("--roles", default="default", help="default, all, modules or traced (with --run)")
    parser.add_argument("--run", help="watch with the real session")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    session = None
    if arguments.fake or arguments.run:
        from watching import trace, watch

        session = watch(arguments.run, arguments.roles)
    report = {}
    for name in arguments.names or CASES:
        if arguments.roles == "traced":
            trace()
        report[name] = digest(name)
    if session is not None:
        report["_luff"] = session()
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
