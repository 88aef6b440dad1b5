"""`luff run`: findings, stop, exit codes, nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.report import Report, skip_without_page

from .conftest import Luff, processes_with


def test_healthy_run_is_silent_and_has_a_verdict(luff: Luff) -> None:
    script = Path(__file__).parent / "scripts" / "train.py"
    alone = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout
    job = luff.run("train.py")
    assert job.code == 0, job.stderr
    assert job.findings == []
    assert job.stdout == alone
    assert alone.startswith("done ")
    code, listed, _ = luff("rules", "--json")
    assert code == 0
    rules = len(json.loads(listed))
    lacks, verdict = job.stderr.splitlines()
    judged = re.fullmatch(
        rf"luff: ok: 120 steps, (\d+) of {rules} rules judged, no findings — run: {re.escape(str(job.run))}",
        verdict,
    )
    assert judged, verdict
    assert lacks.startswith(f"luff: {rules - int(judged[1])} rules had nothing to look at: "), lacks


def test_a_job_that_is_past_its_best_evaluation_is_stopped_when_the_user_says_so(luff: Luff) -> None:
    report = luff.tmp / "report.html"
    job = luff.run("overfits.py", "--stop-on", "Overfit,Overtraining", "--report", str(report))
    assert job.code == 76, job.stderr
    told = re.fullmatch(r"best after step (\d+) of (\d+)", job.stdout.strip())
    assert told, job.stdout
    best, last = map(int, told.groups())
    assert last < 2000  # of 3900
    named = f"Overfit (CrossEntropyLoss_output_0, best evaluation after step {best})"
    assert f"luff: stopped by {named}" in job.stderr
    assert [f["evidence"]["best_step"] for f in job.findings if f["rule"] == "Overfit"] == [best]
    code, shown, _ = luff("show", str(job.run), "--json")
    assert code == 0
    assert json.loads(shown)["finding_list"][0]["evidence"]["best_step"] == best
    skip_without_page(job.stderr)
    found = Report(report.read_text()).json("findings")["findings"]
    assert [f["evidence"]["best_step"] for f in found if f["rule"] == "Overfit"] == [best]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--stop-on", "Overfitt"), "--stop-on: there is no rule 'Overfitt'; nearest: Overfit"),
        (
            ("--rules", "NonFinite", "--stop-on", "Overfit"),
            "--stop-on: Overfit is not among the rules of --rules",
        ),
    ],
)
def test_a_mistake_in_stop_on_is_told_before_the_job_begins(
    luff: Luff, options: tuple[str, ...], message: str
) -> None:
    job = luff.run("train.py", *options)
    assert (job.code, job.stdout) == (2, "")
    assert message in job.stderr
    assert not job.run.exists()


def test_the_examples_of_docs_reading_run(luff: Luff) -> None:
    config = luff.tmp / "luff.toml"
    kept = '{name = "kept", include = ["Sequential_0.weight"], forms = ["raw"], save = {save_interval = 16}}'
    config.write_text(f"[capture]\ncollections = [{kept}]\n")
    blocks = _examples_of_reading()[:2]
    plain, values = luff.run("train.py"), luff.tmp / "values"
    script = str(Path(__file__).parent / "scripts" / "train.py")
    code, _, err = luff("run", "--run", str(values), "--config", str(config), "--", sys.executable, script)
    assert (plain.code, code) == (0, 0), err
    known: dict[str, Any] = {}
    for block, run in zip(blocks, (plain.run, values), strict=True):
        exec(re.sub(r"runs/\w", str(run), block).replace("Net_conv1", "Sequential_0"), known)
    assert known["stack"].shape == (len(known["steps"]), 16, 8)


def _examples_of_reading() -> list[str]:
    text = (Path(__file__).parents[2] / "docs" / "reading.md").read_text()
    blocks: list[str] = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 6
    return blocks


_GRADIENTS = """
import luff, luff.torch, numpy, torch
from luff.config import Collection
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.conv1(x).relu().mean(dim=(2, 3)))

model, images = Net(), torch.randn(5, 3, 9, 9)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
asked = [Collection(name) for name in ("outputs", "output_gradients", "input_gradients")]
hook = luff.torch.attach(model, optimizer=optimizer, run="runs/y", collections=asked)
for _ in range(3):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), torch.arange(5) % 4).backward()
    optimizer.step()
{saliency}
hook.close()
{pruning}
{read}
assert score.shape == (8,) and numpy.isfinite(score).all() and score.any(), score
assert saliency.shape == (5, 9, 9) and numpy.array_equal(saliency, abs(images.grad.numpy()).max(axis=1))
"""


def test_the_examples_on_gradients_of_activations_run(tmp_path: Path) -> None:
    pruning, saliency, read = _examples_of_reading()[2:5]
    script = _GRADIENTS.format(saliency=saliency, pruning=pruning, read=read)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_nan_is_found_and_told_and_the_job_goes_on(luff: Luff) -> None:
    job = luff.run("train.py", arguments=("--nan-at", "40"))
    assert job.code == 0, job.stderr
    assert "NonFinite" in job.rules()
    finding = [f for f in job.findings if f["rule"] == "NonFinite"][-1]
    assert finding["severity"] == "stop"
    assert finding["since_step"] == 40
    assert 40 <= finding["step"] <= 43
    assert finding["tensor"] == "MSELoss_output_0"
    assert "STOP NonFinite" in job.stderr
    assert (
        job.stderr.count("luff:   more    luff rules explain NonFinite") == 1
    )  # a finding that gets worse adds one line, not a block
    verdict = job.stderr.splitlines()[-1]
    assert "STOP NonFinite (MSELoss_output_0, since step 40)" in verdict
    assert "done" in job.stdout
    assert luff.assert_check_gives_what_was_seen(job.run)
    code, _, _ = luff("check", str(job.run))
    assert code == 3


def test_stop_ends_the_job_with_76(luff: Luff) -> None:
    job = luff.run(
        "steps.py",
        "--on-finding",
        "stop",
        arguments=("--nan-at", "20", "--steps", "100000", "--sleep", "0.005"),
    )
    assert job.code == 76, job.stderr
    assert "finally" in job.stdout
    assert "done" not in job.stdout
    assert "luff: stopped by NonFinite (loss, since step 20) after " in job.stderr
    records = [json.loads(path.read_text()) for path in sorted((job.run / "control").glob("*.json"))]
    phases = [record.get("phase") for record in records if record["kind"] == "stop"]
    assert phases[0] == "propose"
    assert phases[-1] == "commit"
    assert phases.count("commit") == 1
    assert records[-1]["kind"] == "outcome"
    (shown,) = [f for f in luff.assert_check_gives_what_was_seen(job.run) if f["rule"] == "NonFinite"]
    assert shown["id"] == next(f["id"] for f in job.findings if f["rule"] == "NonFinite")
    assert processes_with(str(job.run)) == []


def test_script_that_swallows_the_stop_is_ended(luff: Luff) -> None:
    config = luff.tmp / "luff.toml"
    config.write_text("[stop]\nswallow_s = 0.5\nleave_s = 3.0\nkill_s = 1.0\n")
    arguments = ("--nan-at", "20", "--steps", "100000", "--sleep", "0.005", "--swallow", "--stubborn")
    job = luff.run("steps.py", "--on-finding", "stop", "--config", str(config), arguments=arguments)
    assert job.code == 76, job.stderr
    assert "SIGTERM" in job.stderr
    assert "killed" in job.stderr
    assert processes_with(str(job.run)) == []


@pytest.mark.parametrize("code", [0, 3])
def test_exit_code_is_the_trainings_own(luff: Luff, code: int) -> None:
    job = luff.run("steps.py", arguments=("--steps", "10", "--exit", str(code)))
    assert job.code == code


def test_crashed_job_is_reported_as_such(luff: Luff) -> None:
    job = luff.run("steps.py", arguments=("--fail-at", "30"))
    assert job.code == 1
    assert "a mistake of the script" in job.stderr
    assert "failed with exit code 1" in job.stderr
    outcome = json.loads(sorted((job.run / "control").glob("*.json"))[-1].read_text())
    assert outcome["kind"] == "outcome"
    body = outcome["body"]
    assert (json.loads(body) if isinstance(body, str) else body)["state"] == "failed"


def test_interrupt_is_forwarded(luff: Luff) -> None:
    run = luff.tmp / "run"
    script = Path(__file__).parent / "scripts" / "steps.py"
    process = luff.start(
        "run", "--run", str(run), "--", sys.executable, str(script), "--steps", "100000", "--sleep", "0.01"
    )
    deadline = time.monotonic() + 60
    while not (run / "run.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert "finally" in out
    assert process.returncode in (1, 130), err
    assert processes_with(str(run)) == []


def test_process_that_never_attaches_is_noticed(luff: Luff) -> None:
    run = luff.tmp / "run"
    code, _, err = luff("run", "--run", str(run), "--", sys.executable, "-I", "-c", "print(1)")
    assert code == 0
    assert "nothing was recorded" in err
    assert not run.exists()


def test_a_job_is_recorded_for_rules_that_judge_it_later(luff: Luff) -> None:
    job = luff.run(
        "steps.py", "--rules", "later", arguments=("--steps", "40", "--nan-at", "30", "--interval", "0")
    )
    assert job.code == 0 and job.findings == [], job.stderr
    assert re.search(
        r"luff: done: 40 steps, recorded for \d+ rules, not judged yet \(`luff check`\) — run", job.stderr
    )
    code, out, _ = luff("check", str(job.run))
    assert code == 3 and "STOP NonFinite" in out and "recorded without" not in out
    code, _, err = luff(
        "run", "--rules", "later", "--on-finding", "stop", "--run", str(luff.tmp / "x"), "--", "true"
    )
    assert code == 2 and "no rule is judged here" in err


def test_existing_run_is_refused_and_resumed(luff: Luff) -> None:
    first = luff.run("steps.py", arguments=("--steps", "40", "--nan-at", "30"))
    again = luff.run("steps.py", arguments=("--steps", "10"))
    assert again.code == 2
    assert "--resume" in again.stderr
    resumed = luff.run("steps.py", "--resume", arguments=("--steps", "10"))
    assert resumed.code == first.code == 0, resumed.stderr
    assert "STOP NonFinite" in first.stderr
    # Reported once, and in the verdict of all parts.
    assert "\nluff: STOP" not in f"\n{resumed.stderr}" and "healed: STOP NonFinite" in resumed.stderr
    assert "NonFinite loss has healed at step 40" in resumed.stderr
    assert [f["since_step"] for f in luff.assert_check_gives_what_was_seen(first.run)] == [30]


def test_home_holds_nothing_but_the_run(luff: Luff) -> None:
    script = Path(__file__).parent / "scripts" / "steps.py"
    code, _, err = luff("run", "--", sys.executable, str(script), "--steps", "10")
    assert code == 0, err
    assert [path.name for path in luff.home.iterdir()] == [".luff"]
    assert [path.name for path in (luff.home / ".luff").iterdir()] == ["runs"]
    assert list(luff.cwd.iterdir()) == []


def test_dead_rule_worker_never_holds_the_job(luff: Luff) -> None:
    run, go = luff.tmp / "run", luff.tmp / "go"
    script = Path(__file__).parent / "scripts" / "steps.py"
    job = luff.start(
        "run", "--run", str(run), "--", sys.executable, str(script), "--wait-at", "50", "--go", str(go)
    )
    killed: set[int] = set()
    while len(killed) < 4 and job.poll() is None:
        for pid in set(processes_with(f"_evaluate {run}")) - killed:
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
    go.touch()
    out, err = job.communicate(timeout=120)
    assert job.returncode == 0, err
    assert "the rule worker ended (signal 9) and is not started again: rules are off" in err
    assert "done" in out
