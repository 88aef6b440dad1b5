"""A study of Optuna goes on when a finding stops one of its trials."""

from __future__ import annotations

import luff
import pytest
from sweep_scripts import run_script

optuna = pytest.importorskip("optuna")

STUDY = """
    import sys, time
    import optuna
    import torch
    import luff.optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def objective(trial):
        rate = trial.suggest_float("lr", 0.01, 0.2)
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        x = torch.randn(64, 4)
        y = x[:, :3].argmax(1)
        for step in range(80):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            if trial.number == 1:
                loss = loss * float("nan")
                time.sleep(0.1)
            if trial.number == 2 and step == 3:
                raise optuna.TrialPruned("by the study's own pruner")
            loss.backward()
            optimizer.step()
        return loss.item()

    watched = objective if sys.argv[1] == "bare" else luff.optuna.watch(objective, rules="NonFinite")
    study = optuna.create_study(study_name="rates", sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(watched, n_trials=4)
    for trial in study.trials:
        attributes = trial.user_attrs
        print(trial.number, trial.state.name, trial.value, attributes.get("luff.rule"), attributes.get("luff.run"))
"""


def _study(tmp_path, how):
    done = run_script(tmp_path, "study.py", STUDY, how, timeout=240, HOME=tmp_path)
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def test_a_stopped_trial_is_pruned_and_the_others_are_as_without_luff(tmp_path):
    bare, watched = _study(tmp_path, "bare"), _study(tmp_path, "watched")
    assert [row[1] for row in bare][::3] == ["COMPLETE", "COMPLETE"]
    assert [row[1] for row in watched] == ["COMPLETE", "PRUNED", "PRUNED", "COMPLETE"]
    assert [watched[i][2] for i in (0, 3)] == [bare[i][2] for i in (0, 3)]
    assert [row[3] for row in watched] == ["None", "NonFinite", "None", "None"]
    outcomes = []
    for row in watched:
        with luff.open_trial(row[4]) as trial:
            outcomes.append((trial.outcome, len(trial.steps("TRAIN"))))
    assert [outcome for outcome, _ in outcomes] == ["completed", "stopped", "completed", "completed"]
    assert outcomes[0][1] == outcomes[3][1] == 80
    assert outcomes[1][1] < 80


@pytest.mark.parametrize("options", [{"on_stop": "raise"}, {"name": "x"}, {"save_intervall": 3}])
def test_wrong_options_are_named(options):
    import luff.optuna

    with pytest.raises(luff.errors.InvalidArgumentError, match=next(iter(options))[:8]):
        luff.optuna.watch(lambda trial: 0.0, **options)
    with pytest.raises(luff.errors.InvalidArgumentError, match="expected a function"):
        luff.optuna.watch(3)
