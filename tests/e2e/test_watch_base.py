"""`luff watch DIR`: all runs of a directory, judged by one process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import luff as package
import pytest

from .conftest import Luff

_SCRIPT = """
import os, sys, time
import numpy as np
import luff.numpy

weights = {"w": np.ones(4, np.float32)}
hook = luff.numpy.attach(weights, run=sys.argv[1] if len(sys.argv) > 3 else None)
nan_at, steps = int(sys.argv[-2]), int(sys.argv[-1])
for number in range(steps):
    with hook.step() as step:
        step.gradients({"w": np.full(4, 0.1, np.float32)})
        step.loss(float("nan") if number >= nan_at else 1.0 + 1.0 / (number + 1))
    time.sleep(0.01)
hook.close()
print("trained", flush=True)
"""


@pytest.fixture
def base(luff: Luff) -> Path:
    folder = luff.tmp / "runs"
    folder.mkdir()
    (luff.tmp / "train.py").write_text(_SCRIPT)
    return folder


def train(luff: Luff, run: Path, nan_at: int = 10**9, steps: int = 60) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(luff.tmp / "train.py"), str(run), "-", str(nan_at), str(steps)],
        env=luff.environment | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        stdout=subprocess.DEVNULL,
        text=True,
    )


def said(base: Path, state: str = "all") -> list[dict[str, Any]]:
    file = base / ".luff-watch" / state / "findings.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def wait_for(what: Callable[[], object], seconds: float = 90) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.fixture
def watching(luff: Luff, base: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        started.append(luff.start("watch", str(base), *words))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_each_finding_is_said_once_also_when_the_process_is_killed(
    luff: Luff, base: Path, watching: Callable[..., subprocess.Popen[str]]
) -> None:
    jobs = [train(luff, base / f"run{i}", nan_at=30 if i % 2 else 10**9, steps=200) for i in range(4)]
    for pause in (0.6, 0.4, 0.9):  # killed at any moment
        watch = watching()
        time.sleep(pause)
        watch.send_signal(signal.SIGKILL)
        watch.wait()
    for job in jobs:
        assert job.wait(120) == 0
    done = luff.start("watch", str(base), "--drain")
    done.communicate(timeout=120)
    assert done.returncode == 0
    news = [(line["run"], line["rule"]) for line in said(base) if line["event"] == "new"]
    assert len(news) == len(set(news))
    assert {run for run, rule in news if rule == "NonFinite"} == {"run1", "run3"}
    for i in range(4):  # the same findings as those of a look afterwards
        with package.open_trial(base / f"run{i}") as trial:
            kept = {finding["id"] for finding in trial.findings()}
        assert kept == {line["id"] for line in said(base) if line["run"] == f"run{i}"}
    again = luff.start("watch", str(base), "--drain")
    _, err = again.communicate(timeout=60)
    assert again.returncode == 0
    assert "NonFinite" not in err


def test_a_job_that_luff_run_commands_is_asked_to_stop(
    luff: Luff, base: Path, watching: Callable[..., subprocess.Popen[str]]
) -> None:
    watch = watching("--on-finding", "stop", "--rules", "NonFinite")
    job = luff.start(
        "run", "--rules", "none", "--run", str(base / "job"), "--",
        sys.executable, str(luff.tmp / "train.py"), "20", "4000",
    )  # fmt: skip
    _, err = job.communicate(timeout=120)
    assert job.returncode == 76, err
    with package.open_trial(base / "job") as trial:
        assert trial.outcome == "stopped"
        assert len(trial.steps("TRAIN")) < 4000
    assert watch.poll() is None
    begun = time.monotonic()
    watch.send_signal(signal.SIGTERM)
    assert watch.wait(30) == 0
    assert time.monotonic() - begun < 10


def test_conditions_of_ones_own_judge_each_run_also_after_a_restart(
    luff: Luff, base: Path, watching: Callable[..., subprocess.Popen[str]]
) -> None:
    config = luff.tmp / "luff.toml"
    config.write_text(
        'rules = "NonFinite"\n[[rule_expression]]\nname = "StillHigh"\nwhen = "loss > 1.02"\n'
        'for = 20\nseverity = "stop"\n'
    )
    jobs = [train(luff, base / f"run{i}", steps=100) for i in range(3)]
    for pause in (0.7, 0.5):
        watch = watching("--config", str(config))
        time.sleep(pause)
        watch.send_signal(signal.SIGKILL)
        watch.wait()
    for job in jobs:
        assert job.wait(120) == 0
    done = luff.start("watch", str(base), "--drain", "--config", str(config))
    done.communicate(timeout=120)
    assert done.returncode == 0
    news = sorted((line["run"], line["rule"]) for line in said(base) if line["event"] == "new")
    assert news == [(f"run{i}", "StillHigh") for i in range(3)]


_OWN = """
import time
import luff

class Third(luff.Rule):
    needs = [{"roles": ["loss"], "forms": ["summary"]}]

    def on_step(self, view):
        if view.mode == "TRAIN" and view.mode_step == 30:
            while "bad" in self.base_trial.path:
                time.sleep(1)
            return luff.Finding("the thirtieth step", cause="third")
"""


def test_a_rule_in_python_has_one_process_for_all_runs(
    luff: Luff, base: Path, watching: Callable[..., subprocess.Popen[str]]
) -> None:
    (luff.tmp / "own.py").write_text(_OWN)
    words = ["--rules", f"{luff.tmp}/own.py:Third:limit_step_s=5"]
    names = [f"run{i}" for i in range(4)] + ["bad"]
    jobs = [train(luff, base / name, steps=600) for name in names]  # they outlast the start of both
    watch = watching(*words)
    time.sleep(1.5)
    watch.send_signal(signal.SIGKILL)
    watch.wait()
    watch = watching(*words)
    most = 0
    until = time.monotonic() + 300
    while any(job.poll() is None for job in jobs):
        assert time.monotonic() < until, "the jobs do not end"
        rules = subprocess.run(
            ["pgrep", "-c", "-P", str(watch.pid)], capture_output=True, text=True, check=False
        ).stdout
        most = max(most, int(rules or 0))
        time.sleep(0.1)
    watch.send_signal(signal.SIGTERM)
    assert watch.wait(30) == 0
    done = luff.start("watch", str(base), "--drain", *words)
    done.communicate(timeout=120)
    assert done.returncode == 0
    news = sorted((line["run"], line["rule"]) for line in said(base) if line["event"] == "new")
    assert news == [(f"run{i}", "Third") for i in range(4)]
    assert most <= 1


def test_metrics_and_readiness_need_the_token_also_where_others_reach_them(
    luff: Luff, base: Path, watching: Callable[..., subprocess.Popen[str]]
) -> None:
    job = train(luff, base / "one", nan_at=20, steps=100)
    token = luff.tmp / "token"
    watch = watching("--metrics", "0.0.0.0:0", "--metrics-unencrypted", "--metrics-token", str(token))
    assert watch.stderr is not None
    url = ""
    while not url:
        line = watch.stderr.readline()
        assert line
        if found := re.search(r"metrics: http://0\.0\.0\.0:(\d+)/metrics", line):
            url = f"http://127.0.0.1:{found[1]}"

    def ask(path: str, word: str) -> str:
        request = urllib.request.Request(url + path, headers={"Authorization": f"Bearer {word}"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            return str(answer.read().decode())

    with pytest.raises(urllib.error.HTTPError, match="401"):
        ask("/metrics", "wrong")
    good = token.read_text().strip()
    wait_for(lambda: "luff_watch_steps_total 100\n" in ask("/metrics", good))
    text = ask("/metrics", good)
    assert 'luff_watch_findings_total{rule="NonFinite",severity="stop"} 1' in text
    assert "one" not in re.sub(r"#.*", "", text)  # no run is named
    assert ask("/ready", good) == "ready\n"
    assert job.wait(60) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--shard", "3/2"], "expected I/N"),
        (["--rules", "NonFinit"], "NonFinite"),
        (["--detach"], "directory of runs"),
        (["--on-finding", "shout"], "warn and stop"),
        (["--metrics", "0.0.0.0:0"], "in a network that you trust, give --metrics-unencrypted"),
        (["--metrics-unencrypted"], "give --metrics ADDRESS:PORT, too"),
    ],
)
def test_mistakes_have_sentences(luff: Luff, base: Path, words: list[str], message: str) -> None:
    done = luff.start("watch", str(base), *words)
    out, err = done.communicate(timeout=30)
    assert (done.returncode, out) == (2, "")
    assert message in err
    assert list(base.iterdir()) == []


def test_a_rule_that_does_not_say_what_it_is_is_wrong_usage(luff: Luff, base: Path) -> None:
    """Who keeps the process must not start it again for ever, as where a bucket does not answer."""
    (luff.tmp / "own.py").write_text("import time\ntime.sleep(120)\n")
    done = luff.start("watch", str(base), "--rules", f"{luff.tmp}/own.py:Slow:limit_start_s=1")
    _, err = done.communicate(timeout=60)
    assert done.returncode == 2, err
    assert "did not say what it is within 1 s" in err


def test_options_of_a_directory_are_refused_for_a_run(luff: Luff, base: Path) -> None:
    assert train(luff, base / "run", steps=3).wait(60) == 0
    done = luff.start("watch", str(base / "run"), "--drain")
    _, err = done.communicate(timeout=30)
    assert done.returncode == 2
    assert "--drain is for a directory of runs" in err
