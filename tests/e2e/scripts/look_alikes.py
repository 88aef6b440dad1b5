"""Healthy trainings that look like a fault: the first argument says which."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

WHAT = sys.argv[1]
torch.manual_seed(0)
x = torch.randn(512, 16)
y = (x @ torch.randn(16, 4)).argmax(1)


def zero_head() -> None:
    """A head of zeros under a warm-up of 4,000 steps, as the square of the step."""
    body, head = nn.Sequential(nn.Linear(16, 32), nn.GELU()), nn.Linear(32, 4)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    optimizer = torch.optim.AdamW([*body.parameters(), *head.parameters()], 1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, ((step + 1) / 4000) ** 2))
    for _ in range(120):
        rows = torch.randint(0, 512, (64,))
        optimizer.zero_grad()
        F.cross_entropy(head(body(x[rows])), y[rows]).backward()
        optimizer.step()
        schedule.step()


def late_head() -> None:
    """A second head with an optimizer of its own, whose loss is added after 80 steps."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.one, self.two = nn.Linear(16, 32), nn.Linear(32, 4), nn.Linear(32, 1)

        def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            hidden = F.relu(self.body(rows))
            return self.one(hidden), self.two(hidden)

    net = Net()
    first = torch.optim.Adam([*net.body.parameters(), *net.one.parameters()], 1e-3)
    second = torch.optim.Adam(net.two.parameters(), 1e-3)
    for step in range(120):
        rows = torch.randint(0, 512, (64,))
        first.zero_grad()
        second.zero_grad()
        scores, sums = net(x[rows])
        loss = F.cross_entropy(scores, y[rows])
        if step >= 80:
            loss = loss + F.mse_loss(sums, x[rows].sum(1, keepdim=True))
        loss.backward()
        first.step()
        second.step()


def coarse_head() -> None:
    """A head of zeros in bfloat16 with a rate of 1e-7, beside a body that learns at a usual rate."""
    body, head = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)), nn.Linear(16, 4).bfloat16()
    nn.init.zeros_(head.weight)
    optimizer = torch.optim.Adam(
        [{"params": body.parameters()}, {"params": head.parameters(), "lr": 1e-7}], 1e-3
    )
    for _ in range(120):
        rows = torch.randint(0, 512, (64,))
        optimizer.zero_grad()
        loss = F.cross_entropy(body(x[rows]), y[rows])
        (loss + 0.1 * F.cross_entropy(head(x[rows].bfloat16()), y[rows])).backward()
        optimizer.step()


def baseline_beside() -> None:
    """Evaluations also ask a frozen baseline, a fit by least squares, whose answers never change."""
    model, baseline = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)), nn.Linear(16, 4)
    baseline.requires_grad_(False)
    baseline.weight.copy_(4 * torch.linalg.lstsq(x[:384], F.one_hot(y[:384], 4) - 0.25).solution.T)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(6):
        for rows in torch.randperm(384).split(32):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            F.cross_entropy(baseline(x[384:]), y[384:])
            F.cross_entropy(model(x[384:]), y[384:])


def pool() -> None:
    """Active learning: after each evaluation all rows of the pool are scored, those learnt already too."""
    held, held_y, rest, rest_y = x[:128], y[:128], x[128:], y[128:]
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    chosen = list(range(96))
    for _ in range(4):
        for _ in range(10):
            for rows in torch.tensor(chosen)[torch.randperm(len(chosen))].split(32):
                optimizer.zero_grad()
                F.cross_entropy(net(rest[rows]), rest_y[rows]).backward()
                optimizer.step()
        net.eval()
        with torch.no_grad():
            print(F.cross_entropy(net(held), held_y).item())
            unsure = 1 - net(rest).softmax(1).amax(1)
            unsure[chosen] = -1
        net.train()
        chosen += unsure.topk(32).indices.tolist()


def solver() -> None:
    """A model of a derivative that goes on from its own results, in evaluations for longer."""
    net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    turn = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    start = torch.randn(320, 2)

    def end(state: torch.Tensor, steps: int) -> torch.Tensor:
        for _ in range(steps):
            state = state + 0.4 * net(state)
        return state

    for _ in range(6):
        for rows in torch.randperm(256).split(32):
            optimizer.zero_grad()
            F.mse_loss(end(start[rows], 4), start[rows] @ torch.matrix_exp(1.6 * turn)).backward()
            optimizer.step()
        with torch.no_grad():
            print(F.mse_loss(end(start[256:], 16), start[256:] @ torch.matrix_exp(6.4 * turn)).item())


def relevances() -> None:
    """ListNet: shares of relevances from 0 to 1 against those of a model of them, which a sigmoid ends."""
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 12), nn.Sigmoid())
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    true = torch.sigmoid(x @ torch.randn(16, 12) / 4)
    for _ in range(12):
        for rows in torch.randperm(512).split(64):
            optimizer.zero_grad()
            scores, shares = net(x[rows]), true[rows].softmax(1)
            F.kl_div(F.log_softmax(scores, 1), shares, reduction="batchmean").backward()
            optimizer.step()


def labels_of_its_own() -> None:
    """Nodes of a graph of which a quarter has labels: the others are trained on the model's own answers."""
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    known, held_out = torch.arange(512) < 128, torch.arange(512) >= 384
    for step in range(60):
        optimizer.zero_grad()
        scores = net(x)
        F.cross_entropy(scores, torch.where(known, y, scores.detach().argmax(1))).backward()
        optimizer.step()
        if step % 10 == 9:
            net.eval()
            with torch.no_grad():
                print(F.cross_entropy(net(x)[held_out], y[held_out]).item())
            net.train()


PROGRAMS = {
    "zero_head": zero_head,
    "late_head": late_head,
    "pool": pool,
    "solver": solver,
    "relevances": relevances,
    "labels_of_its_own": labels_of_its_own,
    "coarse_head": coarse_head,
    "baseline_beside": baseline_beside,
}
PROGRAMS[WHAT]()
