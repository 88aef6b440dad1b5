"""Three classes of points by a small network. The argument names a mistake; `no_NAME`: the same without it."""

import copy
import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import MultiStepLR, StepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

name = sys.argv[1]
kind, wrong = name.removeprefix("no_"), not name.startswith("no_")
torch.manual_seed(0)
torch.set_num_threads(1)


def points(count):
    x = torch.randn(count, 12)
    return x, (x @ torch.linspace(-1, 1, 36).view(12, 3).sin()).argmax(1)


train_x, train_y = points(640)
test_x, test_y = points(320)
body = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())


class Made(nn.Module):
    """Makes its last layer anew in each pass."""

    def __init__(self):
        super().__init__()
        self.body = body

    def forward(self, x):
        return nn.Linear(32, 3)(self.body(x))


model = Made() if kind == "made_in_forward" and wrong else nn.Sequential(body, nn.Linear(32, 3))
parameters = model.parameters()
evaluated = model
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9999 if wrong else 0.9))

if kind == "flag_of_module":
    if wrong:
        body[0].requires_grad = False
    else:
        body[0].requires_grad_(False)
if kind == "flag_of_parameter":
    for one in body[0].parameters():
        setattr(one, "require_grad" if wrong else "requires_grad", False)
if kind == "rate_of_group":
    key = "learning_rate" if wrong else "lr"
    optimizer = torch.optim.Adam([{"params": model.parameters(), key: 4e-3, "depth": 1}], lr=2e-3)
elif kind == "rate_and_momentum":
    optimizer = torch.optim.SGD(model.parameters(), *((0.9, 0.02) if wrong else (0.02, 0.9)))
elif kind == "used_up":
    optimizer = torch.optim.Adam(parameters, lr=4e-3)
    parameters = parameters if wrong else list(model.parameters())
else:
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
schedule = None
if kind == "other_optimizer":
    schedule = StepLR(optimizer, 2, 0.5)
    if wrong:
        optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
if kind == "milestones":
    schedule = MultiStepLR(optimizer, [6, 8], 0.1)
if kind == "slow_average":
    evaluated = average
if kind == "early_copy":
    evaluated = copy.deepcopy(model)

for epoch in range(10):
    model.train()
    for rows in torch.randperm(len(train_x)).split(32):
        optimizer.zero_grad()
        F.cross_entropy(model(train_x[rows]), train_y[rows]).backward()
        if kind == "used_up":
            nn.utils.clip_grad_norm_(parameters, 0.1)
        optimizer.step()
        if kind == "slow_average":
            average.update_parameters(model)
        if kind == "milestones" and wrong:
            schedule.step()
    if schedule is not None and not (kind == "milestones" and wrong):
        schedule.step()
    if kind == "early_copy" and not wrong:
        evaluated.load_state_dict(model.state_dict())
    evaluated.eval()
    with torch.no_grad():
        right = (evaluated(test_x).argmax(1) == test_y).float().mean().item()
    print(epoch, right)
