"""From the training to the reader: a trial shows the values that PyTorch had."""

from __future__ import annotations

import cases
import luff
import luff.torch
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from luff import _core
from torch import nn

pytestmark = pytest.mark.skipif(not hasattr(_core, "open_trial"), reason="luff._core cannot open a trial")

RAW = {
    "weights": {"roles": ["weight", "bias"], "forms": ["raw", "summary"], "save": {"save_interval": 1}},
    "gradients": {"roles": ["gradient"], "forms": ["raw", "summary"], "save": {"save_interval": 1}},
    "outputs": {"roles": ["output"], "forms": ["raw", "summary"], "save": {"save_interval": 1}},
}


def test_values_losses_and_settings(tmp_path):
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    hook = luff.torch.attach(model, optimizer, run=tmp_path / "run", collections=RAW)
    weights, gradients, outputs, losses = [], [], [], []
    for x, y in cases.batches():
        weights.append(model[0].weight.detach().clone().numpy())
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out, y)
        loss.backward()
        gradients.append(model[2].weight.grad.clone().numpy())
        outputs.append(out.detach().clone().numpy())
        losses.append(loss.item())
        optimizer.step()
    hook.close()
    assert hook.guard.first == {}
    trial = luff.open_trial(tmp_path / "run")
    assert list(trial.steps("TRAIN")) == list(range(6))
    for step in range(6):
        for name, wanted in (
            ("Sequential_0.weight", weights),
            ("gradient/Sequential_2.weight", gradients),
            ("Sequential_output_0", outputs),
            ("2_output_0", outputs),
        ):
            assert np.array_equal(trial.tensor(name).value(step, mode="TRAIN"), wanted[step]), name
        loss = trial.tensor("CrossEntropyLoss_output_0").value(step, mode="TRAIN")
        assert float(np.asarray(loss).reshape(-1)[0]) == losses[step]
    columns = trial.tensor("gradient/Sequential_2.weight").summaries()
    wanted = [np.linalg.norm(gradient.astype(np.float64)) for gradient in gradients]
    assert np.allclose(columns["l2"], wanted, rtol=1e-6)
    assert list(columns["update"]) == list(range(6))


def test_a_run_is_not_overwritten(tmp_path):
    model = nn.Linear(2, 2)
    luff.torch.attach(model, run=tmp_path / "run").close()
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.warns(UserWarning, match="holds a run already"):
        hook = luff.torch.attach(model, run=tmp_path / "run")
    hook.close()
    assert hook.run == str(tmp_path / "run-2")
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_a_wrong_setting_is_refused_at_once(tmp_path):
    with pytest.raises(luff.LuffError, match="max_overhead"):
        luff.torch.attach(nn.Linear(2, 2), run=tmp_path / "run", max_overhed=0.1)


def test_a_resumed_run_goes_on_after_its_last_step(tmp_path):
    run = tmp_path / "run"
    for resume in (False, True):
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        hook = luff.torch.attach(model, optimizer, run=run, resume=resume)
        for x, y in cases.batches():
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        hook.close()
        assert hook.guard.first == {}
    trial = luff.open_trial(run)
    assert trial.steps("TRAIN") == list(range(12))
    assert trial.steps() == list(range(12))
    columns = trial.tensor("gradient/Linear_weight").summaries()
    assert list(columns["update"]) == list(range(12))


def test_two_runs_in_one_process_hold_each_its_own(tmp_path):
    """Two models trained alternately, each with its own run: values, losses and updates
    are those of its own model.
    """
    models = [nn.Linear(6, 3), nn.Linear(6, 3)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    hooks = [
        luff.torch.attach(model, optimizer, run=tmp_path / f"run{n}", collections=RAW)
        for n, (model, optimizer) in enumerate(zip(models, optimizers, strict=True))
    ]
    truth = [[], []]
    for index, (x, y) in enumerate(cases.batches(9)):
        turn = int(index % 3 == 2)
        model, optimizer = models[turn], optimizers[turn]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        weight, gradient = model.weight.detach().clone().numpy(), model.weight.grad.clone().numpy()
        truth[turn].append((weight, gradient, loss.item()))
        optimizer.step()
    for hook in hooks:
        hook.close()
        assert hook.guard.first == {}
    for n, wanted in enumerate(truth):
        trial = luff.open_trial(tmp_path / f"run{n}")
        assert trial.steps("TRAIN") == list(range(len(wanted)))
        for step, (weight, gradient, loss) in enumerate(wanted):
            assert np.array_equal(trial.tensor("Linear_weight").value(step, "TRAIN"), weight)
            assert np.array_equal(trial.tensor("gradient/Linear_weight").value(step, "TRAIN"), gradient)
            assert float(trial.tensor("CrossEntropyLoss_output_0").value(step, "TRAIN")) == loss
            assert trial.step_info(step, "TRAIN")["update"] == step
