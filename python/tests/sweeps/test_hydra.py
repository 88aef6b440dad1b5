"""A multirun of Hydra goes on when a finding stops one of its jobs."""

from __future__ import annotations

import json
import re

import luff
import pytest
from sweep_scripts import run_script

pytest.importorskip("hydra")

TASK = """
    import sys, time
    import hydra
    import torch
    import luff, luff.hydra

    def watched(task):
        return task if BARE else luff.hydra.watch(rules="NonFinite")(task)

    BARE = "bare" in sys.argv
    sys.argv = [word for word in sys.argv if word != "bare"]

    @hydra.main(version_base=None, config_path=None, config_name="config")
    @watched
    def main(config):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
        x = torch.randn(64, 4)
        y = x[:, :3].argmax(1)
        for _ in range(60):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            if config.lr > 1:
                loss = loss * float("nan")
                time.sleep(0.2)
            loss.backward()
            optimizer.step()
        print("job", config.lr, loss.item(), flush=True)
        return loss.item()

    from hydra.core.config_store import ConfigStore
    ConfigStore.instance().store("config", {"lr": 0.1, "model": {"kind": "mlp"}})
    main()
"""


def _run(tmp_path, *words):
    return run_script(tmp_path, "task.py", TASK, *words, LUFF_HOME=tmp_path / "home")


def test_the_other_jobs_run_with_their_losses(tmp_path):
    jobs = ["-m", "lr=0.05,2.0,0.1", "+model.width=8"]
    bare = _run(tmp_path, "bare", *jobs)
    watched = _run(tmp_path, *jobs)
    assert watched.returncode == bare.returncode == 0, watched.stderr
    losses = [
        [line for line in done.stdout.splitlines() if line.startswith("job ")] for done in (bare, watched)
    ]
    assert len(losses[0]) == 3
    assert losses[1] == [losses[0][0], losses[0][2]]  # bit for bit, in this order
    told = []
    for run in sorted((tmp_path / "home" / "runs").iterdir()):
        with luff.open_trial(run) as trial:
            told.append((trial.outcome, trial.document("trial")))
    assert [outcome for outcome, _ in told] == ["completed", "stopped", "completed"]
    assert [document["name"] for _, document in told] == ["task-0", "task-1", "task-2"]
    assert told[1][1]["params"] == {"lr": 2.0, "model.width": 8}
    (sweep,) = {document["sweep"] for _, document in told}
    assert re.fullmatch(r"task-\d{4}-\d\d-\d\d-\d\d-\d\d-\d\d", sweep)
    assert json.dumps(told[0][1]["params"]["lr"]) == "0.05"


def test_each_multirun_is_a_sweep_of_its_own(tmp_path):
    for folder in ("first", "second"):
        done = _run(tmp_path, "-m", "lr=0.05,0.1", f"hydra.sweep.dir=sweeps/{folder}")
        assert done.returncode == 0, done.stderr
    sweeps = []
    for run in sorted((tmp_path / "home" / "runs").iterdir()):
        with luff.open_trial(run) as trial:
            sweeps.append(trial.document("trial")["sweep"])
    assert sweeps == ["task-sweeps-first"] * 2 + ["task-sweeps-second"] * 2


@pytest.mark.parametrize(
    ("folder", "sweep"),
    [
        ("o/${hydra.job.override_dirname}", "task-o"),
        ("${hydra.job.name}-s/of-${lr}/x", "task-task-s"),
        ("${lr}", "task"),
        ("a/${oc.env:PLACE}/${hydra.job.name}", "task-there-task"),
        ("${now:%Y/%H-%M-%S-%f}/lr-${lr}", r"task-\d{4}-\d\d-\d\d-\d\d-\d{6}"),
    ],
)
def test_a_directory_that_depends_on_the_job_is_one_sweep(tmp_path, monkeypatch, folder, sweep):
    monkeypatch.setenv("PLACE", "there")
    done = _run(tmp_path, "-m", "lr=0.05,0.1", f"hydra.sweep.dir={folder}")
    assert done.returncode == 0, done.stderr
    sweeps = set()
    for run in (tmp_path / "home" / "runs").iterdir():
        with luff.open_trial(run) as trial:
            sweeps.add(trial.document("trial")["sweep"])
    (told,) = sweeps
    assert re.fullmatch(sweep, told)


def test_a_single_run_is_left_as_it_is(tmp_path):
    done = _run(tmp_path, "lr=0.05")
    assert done.returncode == 0, done.stderr
    assert "job 0.05" in done.stdout
    assert not (tmp_path / "home").exists()


def test_a_call_with_a_configuration_is_left_as_it_is():
    import hydra
    import luff.hydra
    from omegaconf import OmegaConf

    @hydra.main(version_base=None, config_path=None)
    @luff.hydra.watch()
    def main(config):
        return config.lr

    assert main(OmegaConf.create({"lr": 0.5})) == 0.5


@pytest.mark.parametrize("options", [{"on_stop": "raise"}, {"params": {}}, {"save_intervall": 3}])
def test_wrong_options_are_named(options):
    import luff.hydra

    with pytest.raises(luff.errors.InvalidArgumentError, match=next(iter(options))[:8]):
        luff.hydra.watch(**options)
    with pytest.raises(luff.errors.InvalidArgumentError, match="expected a task function"):
        luff.hydra.watch()(3)
