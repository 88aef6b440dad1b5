"""A study of Optuna goes on when a finding stops one of its trials."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import luff
import pytest
from sweep_scripts import luff_command, run_script

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


RESUMED = """
    import os, signal, sys, time
    import optuna
    import torch
    import luff.optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    WATCHED, FIRST, JOBS = sys.argv[1] == "watched", sys.argv[2] == "first", int(sys.argv[3])

    def objective(trial):
        # Samplers draw anew in each thread; the two studies are to have their rates in common.
        own = 0.02 * (trial.number + 1)
        rate = trial.suggest_float("lr", own, own) if JOBS > 1 else trial.suggest_float("lr", 0.01, 0.2)
        draw = torch.Generator().manual_seed(0)  # trials of threads share the global one
        model = torch.nn.Linear(4, 3)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=draw))
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        x = torch.randn(64, 4, generator=draw)
        y = x[:, :3].argmax(1)
        for step in range(60):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            if trial.number in (1, 5):
                loss = loss * float("nan")
                time.sleep(0.1)
            if FIRST and trial.number == 3 and step == 30:
                os.kill(os.getpid(), signal.SIGKILL)
            loss.backward()
            optimizer.step()
        return loss.item()

    study = optuna.create_study(
        study_name="rates", storage="sqlite:///study.db", load_if_exists=True,
        sampler=optuna.samplers.RandomSampler(seed=0 if FIRST else 1),
    )
    study.optimize(luff.optuna.watch(objective, rules="NonFinite") if WATCHED else objective, n_trials=4, n_jobs=JOBS)
    for trial in study.trials:
        attributes = trial.user_attrs
        named = trial.params["lr"], trial.value, attributes.get("luff.rule"), attributes.get("luff.watched", True)
        print(trial.number, trial.state.name, *named, "luff.run" in attributes)
"""


def _resumed(tmp_path, how):
    folder = tmp_path / how
    folder.mkdir()
    killed = run_script(folder, "study.py", RESUMED, how, "first", 1, LUFF_HOME=tmp_path / "home")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = run_script(folder, "study.py", RESUMED, how, "second", 1, LUFF_HOME=tmp_path / "home")
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.thorough
def test_a_study_that_was_killed_goes_on_in_the_same_sweep(tmp_path):
    bare, watched = _resumed(tmp_path, "bare"), _resumed(tmp_path, "watched")
    assert [row[1] for row in bare] == [
        "COMPLETE",
        "FAIL",
        "COMPLETE",
        "RUNNING",
        "COMPLETE",
        "FAIL",
        "COMPLETE",
        "COMPLETE",
    ]
    assert [row[1] for row in watched] == [state.replace("FAIL", "PRUNED") for _, state, *_ in bare]
    assert [row[2] for row in watched] == [row[2] for row in bare]
    assert [row[3] for row in watched if row[1] == "COMPLETE"] == [
        row[3] for row in bare if row[1] == "COMPLETE"
    ]
    assert [row[4] for row in watched if row[1] == "PRUNED"] == ["NonFinite"] * 2
    told = json.loads(
        subprocess.run(
            [luff_command(), "compare", "--sweep", "rates", "--json"],
            env=os.environ | {"LUFF_HOME": str(tmp_path / "home")}, capture_output=True, text=True, check=True,
        ).stdout
    )  # fmt: skip
    assert [trial["trial"] for trial in told["trials"]] == [f"trial-{number}" for number in range(8)]
    assert [trial["trial"] for trial in told["trials"] if trial["stopped"]] == ["trial-1", "trial-5"]


def test_in_threads_the_study_ends_and_healthy_trials_have_their_values(tmp_path):
    rows = {}
    for how in ("bare", "watched"):
        folder = tmp_path / how
        folder.mkdir()
        done = run_script(folder, "study.py", RESUMED, how, "second", 2, LUFF_HOME=tmp_path / "home")
        assert done.returncode == 0, done.stderr
        rows[how] = {row[0]: row for row in map(str.split, done.stdout.splitlines()) if len(row) == 7}
    assert sorted(rows["watched"]) == list("0123")
    assert {row[5] for row in rows["bare"].values()} == {"True"}  # says nothing where Luff is not
    unwatched = {number for number, row in rows["watched"].items() if row[5] == "False"}
    assert unwatched  # each of them began while another thread's was under way, and the study says so
    assert all((row[6] == "True") is (number not in unwatched) for number, row in rows["watched"].items())
    ends = ("FAIL",) if "1" in unwatched else ("PRUNED", "FAIL")
    assert rows["watched"]["1"][1] in ends
    for number in "023":
        assert rows["bare"][number][1] == "COMPLETE"
        assert rows["watched"][number][1:4] == rows["bare"][number][1:4]
    assert len({rows["bare"][number][3] for number in "023"}) == 3


@pytest.mark.parametrize("options", [{"on_stop": "raise"}, {"name": "x"}, {"save_intervall": 3}])
def test_wrong_options_are_named(options):
    import luff.optuna

    with pytest.raises(luff.errors.InvalidArgumentError, match=next(iter(options))[:8]):
        luff.optuna.watch(lambda trial: 0.0, **options)
    with pytest.raises(luff.errors.InvalidArgumentError, match="expected a function"):
        luff.optuna.watch(3)
