"""Operators of the mutants: each edits a sample as it says, always in the same way, and the script still compiles."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from mutants.halves import half, kept_apart, program_apart  # noqa: E402
from mutants.operators import NEWEST, OPERATORS, PLANNED  # noqa: E402
from mutants.source import Source  # noqa: E402

CLASSES = """
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

train_x, train_y = torch.randn(90, 8), torch.arange(90) % 3
test_x, test_y = torch.randn(30, 8), torch.arange(30) % 3
BATCH = 10


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 8))
        self.layers = nn.ModuleList([nn.Linear(8, 8)])
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        h = self.body(x)
        for layer in self.layers:
            h = layer(h)
        return self.head(h)


def accuracy():
    model.eval()
    with torch.no_grad():
        return (model(test_x).argmax(1) == test_y).float().mean().item()


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(3):
    model.train()
    for index in torch.randperm(len(train_x)).split(BATCH):
        optimizer.zero_grad()
        output = model(train_x[index])
        loss = F.cross_entropy(output, train_y[index])
        loss.backward()
        optimizer.step()
print("score", accuracy())
"""

NUMBERS = """
import copy
import torch
from torch import nn

train_x, train_y = torch.randn(90, 8), torch.randn(90)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
target = copy.deepcopy(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
for epoch in range(3):
    for i in range(0, 90, 10):
        optimizer.zero_grad()
        with torch.no_grad():
            aim = train_y[i : i + 10] + 0.1 * target(train_x[i : i + 10]).squeeze(-1)
        loss = nn.functional.mse_loss(model(train_x[i : i + 10]).squeeze(-1), aim) + 0.1 * model[0].weight.norm()
        loss.backward()
        optimizer.step()
    scheduler.step()
"""

PAIRS = """
import torch
from torch import nn
from torch.nn import functional as F

first, second = nn.Linear(8, 4), nn.Linear(8, 4)
one = torch.optim.Adam(first.parameters(), lr=1e-3)
two = torch.optim.Adam(second.parameters(), lr=1e-3)
criterion = nn.BCEWithLogitsLoss()
for step in range(9):
    x = torch.randn(5, 8)
    loss = criterion(first(x), torch.ones(5, 4))
    loss.backward()
    one.step()
    mu, logvar = second(x).chunk(2, dim=1)
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum()
    other = F.kl_div(F.log_softmax(mu, 1), torch.full((5, 2), 0.5)) + kl
    other.backward()
    two.step()
"""

TOKENS = """
import torch
from torch import nn

ids = torch.randint(9, (30, 7))
embed, gru, head = nn.Embedding(9, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 9)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam([*embed.parameters(), *gru.parameters(), *head.parameters()], lr=1e-3)
warm = torch.optim.lr_scheduler.LinearLR(optimizer)
for epoch in range(3):
    for batch in ids.split(10):
        optimizer.zero_grad()
        loss = criterion(head(gru(embed(batch[:, :-1]))[0]).flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        warm.step()
"""

SEVERAL = """
import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import nn
from torch.nn import functional as F

both = torch.tensor(sliding_window_view(np.random.randn(90, 2), 12, axis=0).swapaxes(1, 2).copy()).float()
train_x, train_y = both[:60, :9], both[:60, 9:, 0]
test_x, test_y = both[60:, :9], both[60:, 9:, 0]


def augment(x):
    return x + 0.1 * torch.randn_like(x)


body = nn.Sequential(nn.Flatten(), nn.Linear(18, 8), nn.ReLU())
head = nn.Linear(8, 3)
optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=1e-3)
for epoch in range(3):
    for index in torch.randperm(len(train_x)).split(10):
        first, second = augment(train_x[index]), augment(train_x[index])
        loss = F.mse_loss(head(body(first)), train_y[index]) + (body(first) - body(second)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

DENOISER = """
import torch
from torch import nn
from torch.nn import functional as F

clean = torch.randn(60, 9, 4)
gru = nn.GRU(4, 8, batch_first=True)
head = nn.Linear(8, 4)
optimizer = torch.optim.Adam([*gru.parameters(), *head.parameters()], lr=1e-3)
for epoch in range(3):
    for batch in clean.split(10):
        last = batch[:, -1]
        noise = torch.randn_like(last)
        batch = torch.cat([batch[:, :-1], (last + noise)[:, None]], dim=1)
        states, _ = gru(batch)
        loss = F.mse_loss(head(states[:, -1]), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

WORDS = """
import torch
from torch import nn
from torch.nn import functional as F

train_x, words = torch.randn(64, 12, 4), torch.randint(1, 5, (64, 3))
rnn, head = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 5)
optimizer = torch.optim.Adam([*rnn.parameters(), *head.parameters()], lr=1e-2)
for epoch in range(3):
    for rows in torch.randperm(64).split(16):
        log_probs = head(rnn(train_x[rows])[0]).log_softmax(-1).transpose(0, 1)
        steps, letters = torch.full((16,), 12), (words[rows] != 0).sum(1)
        loss = F.ctc_loss(log_probs, words[rows], steps, letters, blank=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

MASKS = """
import torch
from torch import nn
from torch.nn import functional as F

images, masks = torch.rand(20, 1, 8, 8), torch.randint(2, (20, 1, 8, 8)).float()
net = nn.Conv2d(1, 1, 3, padding=1)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)


def dice_loss(logits, mask):
    given = logits.sigmoid()
    return 1 - (2 * (given * mask).sum() + 1) / (given.sum() + mask.sum() + 1)


for epoch in range(3):
    for rows in torch.randperm(20).split(5):
        logits = net(images[rows])
        loss = F.binary_cross_entropy_with_logits(logits, masks[rows]) + dice_loss(logits, masks[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

LIKENESSES = """
import torch
from torch.nn import functional as F

encoder = torch.nn.Linear(8, 4)
optimizer = torch.optim.Adam(encoder.parameters())
temperature = 0.1
for step in range(30):
    x = torch.randn(16, 8)
    a, b = F.normalize(encoder(x), dim=1), F.normalize(encoder(x + 0.1), dim=1)
    loss = F.cross_entropy(a @ b.T / temperature, torch.arange(16))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

AVERAGED = """
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

encoder = torch.nn.Linear(8, 4)
encoder.requires_grad_(False)
model = torch.nn.Sequential(encoder, torch.nn.Tanh(), torch.nn.Linear(4, 3))
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(30):
    x = torch.randn(16, 8)
    loss = torch.nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    average.update_parameters(model)
"""

POLICY = """
import torch
from torch.distributions import Categorical

GAMMA = 0.9
policy = torch.nn.Linear(4, 3)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
for update in range(30):
    seen, rewards = torch.randn(8, 4), torch.rand(8, 16)
    actions, future, returns = torch.randint(3, (8,)), torch.zeros(16), []
    for reward in reversed(rewards):
        future = reward + GAMMA * future
        returns.append(future.mean())
    returns.reverse()
    loss = -(Categorical(logits=policy(seen)).log_prob(actions) * torch.stack(returns)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

PADDED = """
import torch
from torch import nn

PAD = 0
train_x, test_x = torch.randint(0, 9, (60, 7)), torch.randint(0, 9, (20, 7))
train_y = train_x.sum(1) % 3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return x + self.fc(x)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 8, padding_idx=PAD)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.head = nn.Linear(8, 3)

    def forward(self, ids):
        h = self.encoder(self.embed(ids), src_key_padding_mask=ids == PAD)
        for block in self.blocks:
            h = block(h)
        return self.head(h.mean(1))


model = Encoder()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(3):
    for rows in torch.randperm(60).split(10):
        loss = nn.functional.cross_entropy(model(train_x[rows]), train_y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

PARTNERS = """
import torch
from torch.nn import functional as F

encoder = torch.nn.Linear(8, 4)
optimizer = torch.optim.Adam(encoder.parameters())
for step in range(30):
    x = torch.randn(16, 8)
    z = F.normalize(torch.cat([encoder(x), encoder(x + 0.1)]), dim=1)
    near = (z @ z.T).masked_fill(torch.eye(32, dtype=torch.bool), -1e9)
    partners = torch.cat([torch.arange(16) + 16, torch.arange(16)])
    loss = F.cross_entropy(near, partners)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

DUEL = """
import torch
from torch import nn
from torch.distributions import Categorical

GAMMA, EPS_START, EPS_END = 0.9, 1.0, 0.05
actor, critic = nn.Linear(4, 3), nn.Linear(4, 1)
actor_optimizer = torch.optim.Adam(actor.parameters(), lr=1e-2)
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-2)
for update in range(30):
    epsilon = max(EPS_END, EPS_START - update / 20)
    seen, rewards = torch.randn(8, 4), torch.rand(8)
    with torch.no_grad():
        actions = Categorical(logits=actor(seen)).sample()
    future, returns = torch.zeros(()), []
    for reward in reversed(rewards):
        future = reward + GAMMA * future
        returns.insert(0, future)
    returns, values = torch.stack(returns), critic(seen).squeeze(-1)
    critic_loss = nn.functional.mse_loss(values, returns)
    critic_optimizer.zero_grad()
    critic_loss.backward()
    critic_optimizer.step()
    actor_loss = -(Categorical(logits=actor(seen)).log_prob(actions) * (returns - values.detach())).mean()
    actor_optimizer.zero_grad()
    actor_loss.backward()
    actor_optimizer.step()
"""

CODES = """
import torch
from torch import nn

train_x, test_x = torch.rand(60, 8), torch.rand(20, 8)
scale = train_x.std()
train_x, test_x = train_x / scale, test_x / scale
encoder, decoder = nn.Linear(8, 4), nn.Linear(2, 8)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)


def drawn(mean, logvar):
    return mean + torch.exp(0.5 * logvar) * torch.randn_like(logvar)


for epoch in range(3):
    for rows in torch.randperm(60).split(10):
        mean, logvar = encoder(train_x[rows]).chunk(2, dim=1)
        kl = -0.5 * (1 + logvar - mean.pow(2) - logvar.exp()).sum(1).mean()
        loss = nn.functional.mse_loss(decoder(drawn(mean, logvar)), train_x[rows]) + 0.01 * kl
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

PICTURES = """
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

digits = load_digits()
images, labels = torch.tensor(digits.images).float().unsqueeze(1) / 16, torch.tensor(digits.target)
train_x, train_y, test_x, test_y = images[:1400], labels[:1400], images[1400:], labels[1400:]


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.patches = nn.Conv2d(1, width, 3, padding=1)
        self.pos = nn.Parameter(torch.zeros(1, 64, width))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        h = self.patches(x).flatten(2).transpose(1, 2) + self.pos
        return self.head(h.mean(1))


net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for epoch in range(2):
    for rows in torch.randperm(1400).split(100):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(train_x[rows]), train_y[rows])
        loss.backward()
        optimizer.step()
"""

LENGTHS = """
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

PAD = 0
train_x, test_x = torch.randint(0, 9, (60, 7)), torch.randint(0, 9, (20, 7))
train_y, test_y = train_x.sum(1) % 3, test_x.sum(1) % 3
embed, gru, head = nn.Embedding(9, 8, padding_idx=PAD), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 3)
optimizer = torch.optim.Adam([*embed.parameters(), *gru.parameters(), *head.parameters()], lr=1e-3)
for epoch in range(3):
    for rows in torch.randperm(60).split(10):
        lengths = torch.full((10,), 7)
        packed = pack_padded_sequence(embed(train_x[rows]), lengths, batch_first=True)
        loss = nn.functional.cross_entropy(head(gru(packed)[1][-1]), train_y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

EPISODES = """
import torch
from collections import deque
from torch import nn
from torch.distributions import Categorical

GAMMA, EPS_START, EPS_END = 0.9, 1.0, 0.05
actor = nn.Linear(4, 3)
optimizer = torch.optim.Adam(actor.parameters(), lr=1e-2, weight_decay=1e-4)
memory = deque(maxlen=100)


class Walk:
    def observe(self):
        return torch.randn(8, 4)

    def step(self, action):
        return self.observe(), torch.rand(8)


env = Walk()
observation = env.observe()
for update in range(30):
    epsilon = max(EPS_END, EPS_START - update / 20)
    observations, rewards = [], []
    for _ in range(5):
        action = Categorical(logits=actor(observation)).sample()
        observations.append(observation)
        observation, reward = env.step(action)
        memory.append((observations[-1], action, reward, observation))
        rewards.append(reward)
    aim = rewards[-1] + GAMMA * actor(observation).max(1).values
    loss = nn.functional.mse_loss(actor(observations[-1]).max(1).values, aim)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

NODES = """
import torch
from torch import nn

N = 30
adjacency = (torch.rand(N, N) < 0.1).float()
with_loops = adjacency + torch.eye(N)
degree = with_loops.sum(1).rsqrt()
a_hat = degree[:, None] * with_loops * degree[None, :]
features, labels = torch.randn(N, 8), torch.arange(N) % 3


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x):
        return (a_hat @ x @ self.weight).unsqueeze(1).transpose(1, 2).squeeze(2)


model = nn.Sequential(Layer(), nn.ReLU(), nn.Linear(8, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(30):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(features), labels)
    loss.backward()
    optimizer.step()
"""

TAGGED = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TAGS = 3
train_x, test_x = torch.randn(90, 8), torch.randn(30, 8)
mean, std = train_x.mean(0), train_x.std(0)
train_x, test_x = (train_x - mean) / std, (test_x - mean) / std
train_y, test_y = (train_x[:, :TAGS] > 0).float(), (test_x[:, :TAGS] > 0).float()
loader = DataLoader(TensorDataset(train_x, train_y), batch_size=10, shuffle=True)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, TAGS))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)


def right():
    with torch.no_grad():
        return ((model(test_x) > 0) == (test_y > 0.5)).float().mean().item()


for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
        loss.backward()
        optimizer.step()
print("score", right())
"""

SAMPLES = {
    "classes": CLASSES,
    "numbers": NUMBERS,
    "pairs": PAIRS,
    "tokens": TOKENS,
    "several": SEVERAL,
    "denoiser": DENOISER,
    "words": WORDS,
    "masks": MASKS,
    "likenesses": LIKENESSES,
    "averaged": AVERAGED,
    "policy": POLICY,
    "padded": PADDED,
    "partners": PARTNERS,
    "duel": DUEL,
    "codes": CODES,
    "pictures": PICTURES,
    "lengths": LENGTHS,
    "episodes": EPISODES,
    "nodes": NODES,
    "tagged": TAGGED,
}


def edited(sample: str, operator: str) -> str | None:
    source = Source(SAMPLES[sample])
    return source.text() if OPERATORS[operator].edit(source) else None


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_edits_a_sample_as_it_says(name: str) -> None:
    operator = OPERATORS[name]
    assert re.fullmatch(r"[^\n]*[^\n.]\.", operator.what), "the docstring is one sentence"
    assert bool(operator.rules) == bool(operator.remedy)
    texts = [text for sample in SAMPLES if (text := edited(sample, name))]
    assert texts, "no sample is of its kind"
    for sample in SAMPLES:
        text = edited(sample, name)
        if text is not None:
            assert text != Source(SAMPLES[sample]).text()
            assert text == edited(sample, name), "the same edit each time"
            ast.parse(text)
            compile(text, sample, "exec")


@pytest.mark.parametrize("name", OPERATORS)
def test_a_fault_names_rules_that_there_are_or_that_are_planned(name: str) -> None:
    for rule in OPERATORS[name].rules:
        page = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", rule).lower()
        assert rule in PLANNED or (ROOT / "docs" / "rules" / f"{page}.md").exists(), rule


def test_a_planned_rule_that_has_come_is_planned_no_longer() -> None:
    for rule in PLANNED:
        page = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", rule).lower()
        assert not (ROOT / "docs" / "rules" / f"{page}.md").exists(), rule


def test_names_are_unique() -> None:
    folder = ROOT / "benchmarks" / "mutants" / "operators"
    made = [
        node.name
        for path in folder.glob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(d).startswith(("fault(", "healthy")) for d in node.decorator_list)
    ]
    assert sorted(made) == sorted(OPERATORS)


def test_the_halves_of_programs_stay_as_they_are() -> None:
    names = ("wine_lbfgs", "digits_cnn", "digits_mlp", "dqn_cart")
    assert [program_apart(name) for name in names] == [False, True, False, True]


def test_the_newest_generation_of_operators_is_kept_apart() -> None:
    names = (
        "gradients_never_cleared",
        "labels_shuffled",
        "optimizer_maximises",
        "clips_gradients",
        "never_explores",
        "original",
        "one_that_is_no_more",
    )
    assert not any(kept_apart(name) for name in names)
    assert {one.generation for one in OPERATORS.values()} == set(range(1, NEWEST + 1))
    newest = [name for name, one in OPERATORS.items() if one.generation == NEWEST]
    assert all(kept_apart(name) for name in newest)
    assert sum(bool(OPERATORS[name].rules) for name in newest) >= 40
    assert sum(not OPERATORS[name].rules for name in newest) >= 10
    apart = "digits_cnn"
    assert half("wine_lbfgs", newest[0]) == "operator"
    assert half("wine_lbfgs", "labels_shuffled") == half("wine_lbfgs", "optimizer_maximises") == "develop"
    assert (half(apart, "original"), half(apart, newest[0])) == ("program", "both")


def test_a_with_block_can_be_added_and_taken_away() -> None:
    source = Source("a = 1\n")
    source.wrap(source.tree.body[0], "with torch.no_grad():")
    assert source.text() == "with torch.no_grad():\n    a = 1\n"
    block = source.tree.body[0]
    assert isinstance(block, ast.With)
    source.unwrap(block)
    assert source.text() == "a = 1\n"


def test_facts_of_a_training() -> None:
    source = Source(CLASSES)
    update = source.update()
    assert update is not None
    assert [ast.unparse(loop.target) for loop in source.loops(update)] == ["index", "epoch"]
    assert [loss.kind for loss in source.losses("cross_entropy", "mse_loss")] == ["cross_entropy"]
    assert [ast.unparse(rate) for rate in source.rates()] == ["0.001"]
    assert [ast.unparse(objective) for objective in source.objectives()] == ["loss"]
    term = Source(NUMBERS).last_term()
    assert term is not None
    assert ast.unparse(term) == "0.1 * model[0].weight.norm()"
