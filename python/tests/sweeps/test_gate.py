"""A sweep of forty trials, thirteen of them broken, in each driver: those are stopped and named, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap

import pytest
from sweep_scripts import luff_command, run_script

pytestmark = pytest.mark.thorough

TRAIN = """
    import json, math, os, sys, time
    import torch
    torch.set_num_threads(1)  # forty small trainings gain nothing from more

    JOBS, WATCHED, TRIALS, STEPS = int(sys.argv[1]), sys.argv[2] == "watched", 40, 600
    OUT = os.path.join(os.getcwd(), "losses.jsonl")
    # Thirteen of forty, spread over the sweep, have a rate above 1; it stands for whatever makes the loss NaN.
    RATES = [5.0 if number * 13 % 40 < 13 else 0.001 * (1 + number) for number in range(TRIALS)]

    def train(rate):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        x = torch.randn(64, 4)
        y = x[:, :3].argmax(1)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            if rate > 1 and step >= 3:
                loss = loss * float("nan")
                if WATCHED:
                    time.sleep(0.2)  # a step of a real training takes longer, too
            loss.backward()
            optimizer.step()
        with open(OUT, "a") as file:
            file.write(json.dumps([rate, loss.item()]) + "\\n")
        return loss.item()
"""
DRIVERS = {
    "optuna": """
    import optuna
    import luff.optuna
    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def objective(trial):
        return train(trial.suggest_categorical("lr", sorted(set(RATES))))

    study = optuna.create_study(study_name="gate", sampler=optuna.samplers.RandomSampler(seed=0))
    for rate in RATES:
        study.enqueue_trial({"lr": rate})
    study.optimize(luff.optuna.watch(objective) if WATCHED else objective, n_trials=TRIALS)
    print("best", study.best_trial.number, study.best_value.hex())
""",
    "hydra": """
    import hydra
    import luff.hydra
    from hydra.core.config_store import ConfigStore
    ConfigStore.instance().store("config", {"lr": 0.1})

    @hydra.main(version_base=None, config_path=None, config_name="config")
    @(luff.hydra.watch(sweep="gate") if WATCHED else lambda task: task)
    def main(config):
        return train(config.lr)

    sys.argv = [sys.argv[0], "-m", "lr=" + ",".join(map(repr, RATES))]
    main()
""",
    "sklearn": """
    import numpy as np
    from sklearn.base import BaseEstimator
    from sklearn.model_selection import GridSearchCV
    import luff.sklearn

    class Net(BaseEstimator):
        def __init__(self, lr=0.1):
            self.lr = lr

        def fit(self, x, y=None):
            self.loss_ = train(self.lr)
            return self

        def score(self, x, y=None):
            return -self.loss_

    rows = np.arange(8)
    search = GridSearchCV(
        luff.sklearn.search(Net(), "gate") if WATCHED else Net(),
        [{"lr": [rate]} for rate in RATES],
        cv=[(rows[:4], rows[4:])], refit=False, n_jobs=JOBS, error_score=math.nan,
    )
    import warnings
    warnings.simplefilter("ignore")  # of fits that failed: those that were stopped
    search.fit(rows[:, None])
    scores = search.cv_results_["mean_test_score"]
    assert [math.isnan(score) for score in scores] == [rate > 1 for rate in RATES]
    print("best", int(np.nanargmax(scores)), float(np.nanmax(scores)).hex())
""",
    "ray": """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray import tune
    import luff.ray.tune

    def trainable(config):
        tune.report({"loss": train(config["lr"])})

    ray.init(
        num_cpus=2, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False, logging_level="ERROR"
    )
    results = tune.Tuner(
        luff.ray.tune.watch(trainable, sweep="gate", stopped={"loss": math.inf}) if WATCHED else trainable,
        param_space={"lr": tune.grid_search(RATES)},
        run_config=tune.RunConfig(name="gate", storage_path=os.getcwd(), verbose=0),
    ).fit()
    print("best", results.get_best_result("loss", "min").config["lr"])
    ray.shutdown()
""",
}


def _sweep(folder, driver, jobs, how):
    folder.mkdir()
    script = textwrap.dedent(TRAIN) + textwrap.dedent(DRIVERS[driver])
    done = run_script(folder, "sweep.py", script, jobs, how, timeout=3000, LUFF_HOME=folder / "home")
    assert done.returncode == 0, done.stderr
    losses = [json.loads(line) for line in (folder / "losses.jsonl").read_text().splitlines()]
    best = [line for line in done.stdout.splitlines() if line.startswith("best ")]
    return losses, best


@pytest.mark.parametrize(
    ("driver", "jobs"), [("optuna", "1"), ("sklearn", "1"), ("sklearn", "2"), ("hydra", "1"), ("ray", "2")]
)
def test_forty_trials(tmp_path, driver, jobs):
    pytest.importorskip("ray.tune" if driver == "ray" else driver)
    bare, bare_best = _sweep(tmp_path / "bare", driver, jobs, "bare")
    watched, watched_best = _sweep(tmp_path / "watched", driver, jobs, "watched")
    assert len(bare) == 40
    healthy = [row for row in bare if row[0] < 1]
    assert len(healthy) == 27
    if jobs == "2":  # at a time: who ends first is anybody's guess
        healthy, watched = sorted(healthy), sorted(watched)
    assert watched == healthy  # none of them stopped; the same losses bit for bit, in the same order
    assert watched_best == bare_best
    home = str(tmp_path / "watched" / "home")
    told = json.loads(
        subprocess.run(
            [luff_command(), "compare", "--sweep", "gate", "--json"], env=os.environ | {"LUFF_HOME": home},
            capture_output=True, text=True, check=True,
        ).stdout
    )  # fmt: skip
    assert len(told["trials"]) == 40
    bad = [trial for trial in told["trials"] if trial["bad"]]
    assert [trial["parameters"]["lr"] for trial in bad] == [5.0] * 13
    assert all(trial["stopped"] and trial["finding"]["rule"] == "NonFinite" for trial in bad)
    print(f"{driver}, {jobs} at a time: {told['saved']['steps_share']:.2f} of the steps saved")
    assert told["saved"]["steps_share"] >= 0.3
    assert told["saved"]["completed"] == 27
    named = {row["parameter"]: row for row in told["shared"]["parameters"]}
    assert (named["lr"]["bad_inside"], named["lr"]["bad_outside"]) == (13, 0)
