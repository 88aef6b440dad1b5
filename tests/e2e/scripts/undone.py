"""What a loop undoes or leaves out, and loops that set weights back or end early on purpose; chosen by name."""

import copy
import io
import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)

CENTRES = 1.5 * torch.randn(6, 20)


def rows(count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(6, (count,), generator=generator)
    return CENTRES[y] + torch.randn(count, 20, generator=generator), y


X, Y = rows(320)
TEST_X, TEST_Y = rows(240, 2)


def net(inputs=20):
    return nn.Sequential(nn.Linear(inputs, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 6))


def adam(model, rate=2e-3):
    return torch.optim.Adam(model.parameters(), lr=rate)


def update(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


def epoch(model, optimizer, x=X, y=Y, batch=32):
    model.train()
    for index in torch.randperm(len(x)).split(batch):
        update(model, optimizer, x[index], y[index])


def loader(x=X, y=Y, batch=32, shuffle=True):
    return DataLoader(TensorDataset(x, y), batch_size=batch, shuffle=shuffle)


def evaluate(model):
    model.eval()
    with torch.no_grad():
        right = (model(TEST_X).argmax(1) == TEST_Y).float().mean().item()
    print("accuracy", round(right, 3))
    return right


def drawn(module):
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)


def drawn_by_data(module):
    if isinstance(module, nn.Linear):
        module.weight.data.normal_(0, 0.1)
        module.bias.data.zero_()


# Weights that are set back --------------------------------------------------------


def loads_the_first_state():
    model = net()
    optimizer, first = adam(model), copy.deepcopy(model.state_dict())
    for _ in range(7):
        model.load_state_dict(first)
        epoch(model, optimizer)
        evaluate(model)


def loads_a_file():
    model, file = net(), io.BytesIO()
    torch.save({"model": model.state_dict()}, file)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(7):
        for x, y in loader():
            update(model, optimizer, x, y)
        file.seek(0)
        model.load_state_dict(torch.load(file)["model"])


def resets_parameters():
    model = net()
    optimizer = adam(model)
    for _ in range(7):
        for module in model.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        epoch(model, optimizer)
    evaluate(model)


def applies_an_initialisation():
    model = net()
    optimizer = adam(model)
    for _ in range(7):
        model.apply(drawn)
        epoch(model, optimizer)
        evaluate(model)


def draws_by_data():
    model = net()
    model.apply(drawn_by_data)
    optimizer = adam(model)
    for _ in range(7):
        model.apply(drawn_by_data)
        for x, y in loader():
            update(model, optimizer, x, y)


def seeds_and_draws():
    model = net()
    optimizer = adam(model)
    for k in range(7):
        torch.manual_seed(7)
        model.apply(drawn)
        torch.manual_seed(k)
        epoch(model, optimizer)


def noisy_rows():
    """Rows that are augmented never come again, but the loader tells what a pass is."""
    model = net()
    optimizer, first = adam(model), copy.deepcopy(model.state_dict())
    batches = loader()
    for _ in range(7):
        model.load_state_dict(first)
        for x, y in batches:
            update(model, optimizer, x + 0.1 * torch.randn_like(x), y)


# Likewise, on purpose -------------------------------------------------------------


def reptile():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for task in range(12):
        before = copy.deepcopy(model.state_dict())
        x, y = rows(32, 10 + task % 4)
        for _ in range(5):
            update(model, optimizer, x, y)
        after = model.state_dict()
        model.load_state_dict({k: before[k] + 0.3 * (after[k] - before[k]) for k in before})
    evaluate(model)


def adapts_to_each_task():
    model = net()
    optimizer, first = torch.optim.SGD(model.parameters(), lr=0.02), copy.deepcopy(model.state_dict())
    for task in range(12):
        model.load_state_dict(first)
        x, y = rows(160, 10 + task)
        epoch(model, optimizer, x, y)


def restarts():
    """The best of five trainings, with one optimizer."""
    model = net()
    optimizer = adam(model)
    for _ in range(5):
        model.apply(drawn)
        for _ in range(6):
            epoch(model, optimizer)
        evaluate(model)


def rewinds():
    """A lottery ticket: weights are pruned, and the others set back to those of the start."""
    model = net()
    optimizer, first = adam(model), copy.deepcopy(model.state_dict())
    for k in range(5):
        for _ in range(4):
            epoch(model, optimizer)
        with torch.no_grad():
            masks = {
                n: p.abs() > p.abs().quantile(0.15 * k) for n, p in model.named_parameters() if p.dim() > 1
            }
            for name, one in model.named_parameters():
                one.copy_(first[name] * masks[name] if name in masks else first[name])


def clients():
    """Federated averaging with one model: each client begins with the common weights."""
    model = net()
    optimizer, common = torch.optim.SGD(model.parameters(), lr=0.05), copy.deepcopy(model.state_dict())
    for _ in range(3):
        states = []
        for client in range(5):
            model.load_state_dict(common)
            epoch(model, optimizer, *rows(128, 20 + client))
            states.append(copy.deepcopy(model.state_dict()))
        common = {k: torch.stack([s[k] for s in states]).mean(0) for k in common}


def folds():
    model = net()
    first = copy.deepcopy(model.state_dict())
    for k in range(5):
        model.load_state_dict(first)
        optimizer = adam(model)
        keep = torch.arange(len(X)) % 5 != k
        for _ in range(4):
            epoch(model, optimizer, X[keep], Y[keep])


def folds_with_one_optimizer():
    """Each fold draws the weights again, and is evaluated with rows that others have learnt."""
    model = net()
    optimizer = adam(model, 5e-3)
    for k in range(5):
        for module in model:
            if isinstance(module, nn.Linear):
                module.reset_parameters()
        keep = torch.arange(len(X)) % 5 != k
        for _ in range(6):
            epoch(model, optimizer, X[keep], Y[keep])
        model.eval()
        with torch.no_grad():
            print("loss", F.cross_entropy(model(X[~keep]), Y[~keep]).item())


def averages_are_swapped():
    model = net()
    optimizer, average = adam(model), copy.deepcopy(model)
    for _ in range(7):
        for index in torch.randperm(len(X)).split(32):
            update(model, optimizer, X[index], Y[index])
            with torch.no_grad():
                for slow, own in zip(average.parameters(), model.parameters(), strict=True):
                    slow.lerp_(own, 0.1)
        own = copy.deepcopy(model.state_dict())
        model.load_state_dict(average.state_dict())
        evaluate(model)
        model.load_state_dict(own)


def clips_weights():
    model = net()
    optimizer = adam(model)
    for _ in range(60):
        index = torch.randint(len(X), (32,))
        update(model, optimizer, X[index], Y[index])
        with torch.no_grad():
            for one in model.parameters():
                one.clamp_(-0.2, 0.2)


def probes():
    """A probe is drawn anew for each epoch, with its own optimizer, which stays."""
    model, probe = net(), nn.Linear(20, 6)
    optimizer, own = adam(model), torch.optim.SGD(probe.parameters(), lr=0.05)
    for _ in range(7):
        probe.reset_parameters()
        for index in torch.randperm(len(X)).split(32):
            update(model, optimizer, X[index], Y[index])
            update(probe, own, X[index], Y[index])


def back_to_the_best():
    """The best state so far is loaded, and the rate is lowered, where an epoch was no better."""
    model = net()
    optimizer, best = adam(model, 0.05), (0.0, copy.deepcopy(model.state_dict()))
    for _ in range(12):
        epoch(model, optimizer)
        right = evaluate(model)
        if right > best[0]:
            best = right, copy.deepcopy(model.state_dict())
        else:
            model.load_state_dict(best[1])
            optimizer.param_groups[0]["lr"] *= 0.5


def finds_a_rate():
    model = net()
    first = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for x, y in loader():
        update(model, optimizer, x, y)
        optimizer.param_groups[0]["lr"] *= 1.5
    model.load_state_dict(first)
    optimizer.param_groups[0]["lr"] = 0.05
    for _ in range(6):
        epoch(model, optimizer)


# Passes that end early ------------------------------------------------------------


def breaks():
    model = net()
    optimizer = adam(model)
    for _ in range(12):
        model.train()
        for index in torch.randperm(len(X)).split(32):
            update(model, optimizer, X[index], Y[index])
            break
        evaluate(model)


def breaks_with_a_loader():
    model, batches = net(), loader()
    optimizer = adam(model)
    for k in range(12):
        for number, (x, y) in enumerate(batches):
            loss = update(model, optimizer, x, y)
            if number % 100 == 0:
                print(k, loss)
            break
        if k % 2:
            evaluate(model)


def returns_inside():
    model, batches = net(), loader()
    optimizer = adam(model)

    def train_epoch():
        total = 0.0
        for x, y in batches:
            total += update(model, optimizer, x, y)
            return total / len(batches)

    for _ in range(12):
        train_epoch()
        evaluate(model)


def breaks_in_order():
    """Without shuffling, each epoch sees the same few rows."""
    model = net()
    optimizer = adam(model)
    for _ in range(12):
        for first in range(0, len(X), 32):
            update(model, optimizer, X[first : first + 32], Y[first : first + 32])
            break
        evaluate(model)


# Likewise, on purpose -------------------------------------------------------------


def one_fold():
    model = net()
    optimizer = adam(model)
    for k in range(5):
        keep = torch.arange(len(X)) % 5 != k
        for _ in range(5):
            epoch(model, optimizer, X[keep], Y[keep])
        break
    evaluate(model)


def goes_on_with_an_iterator():
    model = net()
    optimizer = adam(model)

    def batches():
        while True:
            yield from torch.randperm(len(X)).split(32)

    stream = batches()
    for k in range(30):
        for index in stream:
            update(model, optimizer, X[index], Y[index])
            break
        if k == 29:
            evaluate(model)


def learns_one_batch():
    model = net()
    optimizer = adam(model)
    for _ in range(60):
        for x, y in loader(shuffle=False):
            update(model, optimizer, x, y)
            break


def learns_one_batch_and_looks_once():
    model = net()
    optimizer = adam(model, 5e-3)
    for _ in range(100):
        for x, y in loader(shuffle=False):
            update(model, optimizer, x, y)
            break
    evaluate(model)


def a_helper_draws_a_batch():
    model = net()
    optimizer = adam(model)

    def learn():
        for x, y in loader():
            return update(model, optimizer, x, y)

    for k in range(60):
        learn()
        if k % 20 == 19:
            evaluate(model)


def ends_on_a_condition():
    model = net()
    optimizer = adam(model)
    for _ in range(12):
        for number, index in enumerate(torch.randperm(len(X)).split(32)):
            update(model, optimizer, X[index], Y[index])
            if number == 4:
                break
        evaluate(model)


def looks_at_one_batch_first():
    model = net()
    optimizer = adam(model)
    for x, y in loader():
        update(model, optimizer, x, y)
        break
    for _ in range(6):
        epoch(model, optimizer)
        evaluate(model)


def draws_a_batch():
    model, batches = net(), loader()
    optimizer = adam(model)
    for _ in range(60):
        x, y = next(iter(batches))
        update(model, optimizer, x, y)
    evaluate(model)


def full_batches():
    model = net()
    optimizer = adam(model)
    for _ in range(40):
        update(model, optimizer, X, Y)
        evaluate(model)


# Few rows -------------------------------------------------------------------------


def few_rows_left(count=24):
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 6))
    generator = torch.Generator().manual_seed(3)
    x, y = X + 3 * torch.randn(X.shape, generator=generator), Y
    optimizer = adam(model, 5e-3)
    for _ in range(60):
        epoch(model, optimizer, x[:count], y[:count], 8)
    evaluate(model)


def subset_left():
    model = net()
    optimizer = adam(model, 5e-3)
    few = Subset(TensorDataset(X + 3 * torch.randn_like(X), Y), range(24))
    for _ in range(60):
        for x, y in DataLoader(few, batch_size=8, shuffle=True):
            update(model, optimizer, x, y)
    evaluate(model)


def few_shots():
    """Few rows that are enough: what is learnt of them holds for others."""
    model = net()
    optimizer = adam(model, 5e-3)
    for _ in range(60):
        epoch(model, optimizer, X[:48], Y[:48], 8)
    evaluate(model)


globals()[sys.argv[1]]()
