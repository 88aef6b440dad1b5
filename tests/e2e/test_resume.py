"""A training that is ended in the middle and continues from its checkpoint: rules keep their verdicts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import luff as luff_package
import pytest

from .conftest import Job, Luff


def _train(
    luff: Luff,
    until: int,
    *arguments: str,
    script: str = "steps.py",
    resume: bool = False,
    options: tuple[str, ...] = (),
) -> Job:
    options = (*options, "--resume") if resume else options
    checkpoint = luff.tmp / "checkpoint.npz"
    return luff.run(
        script,
        *options,
        arguments=("--checkpoint", str(checkpoint), "--steps", str(until), *arguments),
    )


def _new(run: Path) -> list[dict[str, Any]]:
    """Returns the findings reported as new, in all parts of the run."""
    lines = (run / "rules" / "luff" / "findings.jsonl").read_text().splitlines()
    return [finding for finding in map(json.loads, lines) if finding["event"] == "new"]


def test_a_healthy_training_stays_silent_and_its_steps_go_on(luff: Luff) -> None:
    for until in (70, 140, 210):
        job = _train(luff, until, resume=until > 70)
        assert job.code == 0, job.stderr
        assert "done" in job.stdout
        assert job.findings == [], job.stderr
    with luff_package.open_trial(job.run) as trial:
        assert trial.steps("TRAIN") == list(range(210))
    assert luff.assert_check_gives_what_was_seen(job.run) == []


@pytest.mark.parametrize(
    ("rule", "script", "arguments"),
    [("NonFinite", "steps.py", ("--nan-at", "40")), ("GradientNotCleared", "resumable.py", ("--keep",))],
)
def test_what_was_found_before_is_still_one_finding(
    luff: Luff, rule: str, script: str, arguments: tuple[str, ...]
) -> None:
    first = _train(luff, 100, *arguments, script=script)
    assert first.code == 0, first.stderr
    before = [finding for finding in _new(first.run) if finding["rule"] == rule]
    assert before, first.stderr
    assert f"STOP {rule}" in first.stderr or f"WARN {rule}" in first.stderr
    again = _train(luff, 200, *arguments, script=script, resume=True)
    assert again.code == 0, again.stderr
    told, verdict = again.stderr.splitlines()[:-1], again.stderr.splitlines()[-1]
    assert not [line for line in told if f"STOP {rule}" in line or f"WARN {rule}" in line]
    # The verdict is that of the whole run: what was found before still stands.
    assert "luff: done: 200 steps" in verdict
    assert rule in verdict
    listed = luff("runs", str(again.run.parent))[1]
    assert f"{rule} (" in listed
    after = [finding for finding in _new(again.run) if finding["rule"] == rule]
    assert after == before
    code, out, err = luff("show", str(again.run), "--json")
    assert code == 0, err
    shown = [finding for finding in json.loads(out)["finding_list"] if finding["rule"] == rule]
    assert [finding["id"] for finding in shown] == [finding["id"] for finding in before]


def test_an_escalation_follows_a_finding_from_before_the_restart(luff: Luff) -> None:
    config = luff.tmp / "luff.toml"
    config.write_text("""
[[action]]
kind = "command"
name = "first"
rules = ["NonFinite"]
argv = ["true"]
dry_run = false

[[action]]
kind = "stop"
rules = ["NonFinite"]
escalates = "first"
after_steps = 60
dry_run = false
""")
    options = ("--config", str(config))
    first = _train(luff, 70, "--nan-at", "40", options=options)
    assert first.code == 0, first.stderr
    assert "NonFinite" in first.rules()
    again = _train(luff, 10**6, "--nan-at", "40", resume=True, options=options)
    assert again.code == 76, again.stderr
    assert "luff: stopped by" in again.stderr
    with luff_package.open_trial(again.run) as trial:
        assert trial.steps("TRAIN")[-1] >= 70 + 60 - 1  # the time counts from the restart


def test_a_fault_after_the_restart_is_found_once_where_it_began(luff: Luff) -> None:
    assert _train(luff, 100).findings == []
    # Nothing delays the second part: its rules see it although it ends before they look for new workers.
    job = _train(luff, 200, "--nan-at", "130", resume=True)
    assert job.code == 0, job.stderr
    [found] = [finding for finding in _new(job.run) if finding["rule"] == "NonFinite"]
    assert found["since_step"] == 130
    assert "NonFinite" in {f["rule"] for f in luff.assert_check_gives_what_was_seen(job.run)}


# Reads from the first part of the run before that is cut off, and again afterwards.
_LOOKS_BACK = """
import pathlib

import luff


class LooksBack(luff.Rule):
    def __init__(self, base_trial=None, run: str = "", opened: str = ""):
        super().__init__(base_trial)
        self.trial = luff.open_trial(run)
        self.trial.tensor("dense.weight").summary(5)
        pathlib.Path(opened).touch()

    def on_step(self, view):
        if view.step == 260:
            try:
                self.trial.tensor("gradient/dense.weight").summary(5)
            except luff.errors.CorruptionError as error:
                return luff.Finding(str(error))
"""


def test_files_that_are_cut_off_end_neither_training_nor_rules(luff: Luff) -> None:
    first = _train(luff, 100)
    assert first.code == 0, first.stderr
    files = sorted((first.run / "w0000").glob("[md]-*.lf[md]"))
    assert files
    rules, opened = luff.tmp / "looks_back.py", luff.tmp / "opened"
    rules.write_text(_LOOKS_BACK)
    again = luff.run(
        "steps.py", "--resume", "--rules", f"all,{rules}:LooksBack:run={first.run}:opened={opened}",
        arguments=(
            "--checkpoint", str(luff.tmp / "checkpoint.npz"), "--steps", "400",
            "--wait-at", "250", "--go", str(opened), "--cut-off", *map(str, files),
        ),
        LUFF_PYTHON=sys.executable,
    )  # fmt: skip
    assert again.code == 0, again.stderr
    assert "done" in again.stdout
    assert [path for path in files if path.stat().st_size == 100]
    told = [json.dumps(finding) for finding in _new(again.run) if finding["rule"] == "LooksBack"]
    assert len(told) == 1, again.stderr
    assert "the file was cut off" in told[0]
    with luff_package.open_trial(again.run) as trial:
        assert set(range(100, 400)) <= set(trial.steps("TRAIN"))


_AGAIN = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(40):
    inputs = torch.randn(16, 8)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), (inputs[:, 0] > 0).long()).backward()
    optimizer.step()
"""


def test_the_parts_of_a_resumed_run_are_no_replicas(luff: Luff) -> None:
    script = luff.tmp / "train.py"
    script.write_text(_AGAIN)
    run = str(luff.tmp / "run")
    for words in ((), ("--resume",)):
        code, _, err = luff(
            "run",
            "--run",
            run,
            *words,
            "--rules",
            "RepeatedBatch,ReplicaDivergence",
            "--",
            sys.executable,
            str(script),
        )
        assert code == 0, err
        assert "no findings" in err.splitlines()[-1], err
    with luff_package.open_trial(run) as trial:
        assert len(trial.steps("TRAIN")) == 80
