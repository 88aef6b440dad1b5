"""A study of Ray Tune goes on when a finding stops one of its trials, which is not started again."""

from __future__ import annotations

import json

import luff
import pytest
from sweep_scripts import run_script

pytest.importorskip("ray.tune")

STUDY = """
    import json, logging, os, sys, time
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray import tune
    import torch
    import luff.ray.tune

    def train(config, report=tune.report):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=config["opt"]["lr"])
        x = torch.randn(64, 4)
        y = x[:, :3].argmax(1)
        for epoch in range(6):
            for _ in range(10):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(x), y)
                if config["opt"]["lr"] > 1 and epoch > 0:
                    loss = loss * float("nan")
                    time.sleep(0.2)
                loss.backward()
                optimizer.step()
            report({"loss": loss.item(), "epoch": epoch})

    if sys.argv[1] == "bare":
        for rate in (0.05, 0.1):
            reports = []
            train({"opt": {"lr": rate}}, reports.append)
            print(json.dumps({"lr": rate, "error": "None", **reports[-1]}))
        sys.exit()
    ray.init(
        num_cpus=2, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False, logging_level="ERROR"
    )
    results = tune.Tuner(
        luff.ray.tune.watch(train, rules="NonFinite"),
        param_space={"opt": {"lr": tune.grid_search([0.05, 2.0, 0.1])}},
        tune_config=tune.TuneConfig(max_concurrent_trials=2),
        run_config=tune.RunConfig(
            name="rates", storage_path=os.getcwd(), verbose=0, failure_config=tune.FailureConfig(max_failures=1)
        ),
    ).fit()
    for result in results:
        wanted = lambda key: key.startswith("luff/") or key in ("loss", "epoch")
        told = {key: value for key, value in (result.metrics or {}).items() if wanted(key)}
        print(json.dumps({"lr": result.config["opt"]["lr"], "error": repr(result.error), **told}))
    ray.shutdown()
"""


def _study(tmp_path, how):
    done = run_script(tmp_path, "study.py", STUDY, how, timeout=500, LUFF_HOME=tmp_path / "home")
    assert done.returncode == 0, done.stderr
    return {
        row["lr"]: row
        for row in map(json.loads, (line for line in done.stdout.splitlines() if line.startswith("{")))
    }


def test_a_stopped_trial_is_done_and_the_others_are_as_without_luff(tmp_path):
    bare, watched = _study(tmp_path, "bare"), _study(tmp_path, "watched")
    for rate in (0.05, 0.1):
        assert watched[rate] == bare[rate]
    stopped = watched[2.0]
    assert stopped["error"] == "None"
    assert stopped["luff/rule"] == "NonFinite"
    assert stopped["epoch"] < 5  # of its last report
    runs = sorted((tmp_path / "home" / "runs").iterdir())
    assert len(runs) == 3  # none was started twice
    with luff.open_trial(stopped["luff/run"]) as trial:
        assert trial.outcome == "stopped"
        assert trial.document("trial")["params"] == {"opt.lr": 2.0}
        assert trial.document("trial")["sweep"] == "rates"


SCHEDULED = """
    import json, logging, os, sys, tempfile, time
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining
    import torch
    import luff.ray.tune

    def train(config):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        begin = 0
        if (checkpoint := tune.get_checkpoint()) is not None:
            with checkpoint.as_directory() as folder:
                state = torch.load(os.path.join(folder, "state.pt"))
            model.load_state_dict(state["model"])
            begin = state["epoch"] + 1
        optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
        x = torch.randn(64, 4)
        y = x[:, :3].argmax(1)
        for epoch in range(begin, 6):
            for _ in range(10):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(x), y)
                if config["lr"] > 1 and epoch > 0:
                    loss = loss * float("nan")
                    time.sleep(0.5)
                loss.backward()
                optimizer.step()
            with tempfile.TemporaryDirectory() as folder:
                torch.save({"model": model.state_dict(), "epoch": epoch}, os.path.join(folder, "state.pt"))
                tune.report({"loss": loss.item()}, checkpoint=tune.Checkpoint.from_directory(folder))

    ray.init(
        num_cpus=2, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False, logging_level="ERROR"
    )
    scheduler = {
        "asha": lambda: ASHAScheduler(grace_period=2, max_t=6),
        "pbt": lambda: PopulationBasedTraining(perturbation_interval=2, hyperparam_mutations={"lr": [0.05, 0.1]}),
    }[sys.argv[1]]()
    results = tune.Tuner(
        luff.ray.tune.watch(train, rules="NonFinite"),
        param_space={"lr": tune.grid_search([0.05, 2.0, 0.1, 0.01])},
        tune_config=tune.TuneConfig(metric="loss", mode="min", scheduler=scheduler, max_concurrent_trials=2),
        run_config=tune.RunConfig(name="rates", storage_path=os.getcwd(), verbose=0),
    ).fit()
    for result in results:
        metrics = result.metrics or {}
        told = {name: metrics.get(f"luff/{name}") for name in ("rule", "run")}
        print(json.dumps({"error": repr(result.error), **told}))
    ray.shutdown()
"""


@pytest.mark.thorough
@pytest.mark.parametrize("scheduler", ["asha", "pbt"])
def test_schedulers_go_on_with_the_others(tmp_path, scheduler):
    done = run_script(tmp_path, "study.py", SCHEDULED, scheduler, timeout=500, LUFF_HOME=tmp_path / "home")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [row["error"] for row in rows] == ["None"] * 4
    assert [row["rule"] for row in rows].count("NonFinite") == 1
    (stopped,) = (row["run"] for row in rows if row["rule"] == "NonFinite")
    found = []
    for run in sorted((tmp_path / "home" / "runs").iterdir()):
        with luff.open_trial(run) as trial:
            document = trial.document("trial")
            assert document["sweep"] == "rates"
            found.append((trial.outcome, document["params"]["lr"], str(run) == stopped))
    assert len(found) >= 4  # what is copied from another trial goes on in a run of its own
    assert [one for one in found if one[1] > 1] == [("stopped", 2.0, True)]
    assert {outcome for outcome, rate, _ in found if rate < 1} == {"completed"}


@pytest.mark.parametrize("options", [{"on_stop": "raise"}, {"name": "x"}, {"save_intervall": 3}])
def test_wrong_options_are_named(options):
    import luff.ray.tune

    with pytest.raises(luff.errors.InvalidArgumentError, match=next(iter(options))[:8]):
        luff.ray.tune.watch(lambda config: None, **options)
    with pytest.raises(luff.errors.InvalidArgumentError, match="expected a function"):
        luff.ray.tune.watch(dict)
