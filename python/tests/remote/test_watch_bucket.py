"""`luff watch URL`: the live runs of a bucket, judged by other machines than those that train."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import luff as package
import pytest
from luff.remote._commits import read_commit
from luff.remote._store import open_store

JOB = """
import sys, time
import numpy as np
import luff.numpy

weights = {"w": np.ones(4, np.float32)}
nan_at, steps = int(sys.argv[1]), int(sys.argv[2])
with luff.numpy.attach(weights) as hook:
    for number in range(steps):
        with hook.step() as step:
            step.gradients({"w": np.full(4, 0.1, np.float32)})
            step.loss(float("nan") if number >= nan_at else 1.0 + 1.0 / (number + 1))
        time.sleep(0.01)
"""
NEVER = 10**9


def wait_for(what, seconds=120):
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


class Bench:
    """Jobs that upload their runs, and watches of the bucket."""

    def __init__(self, luff, base, folder):
        self.luff, self.base, self.folder = luff, base, folder
        self.processes = []
        (folder / "job.py").write_text(JOB)

    def _start(self, name, *words):
        with (self.folder / f"{name}.err").open("w") as err:
            process = subprocess.Popen([self.luff.executable, *map(str, words)], stderr=err, stdout=err)
        self.processes.append(process)
        return process

    def job(self, name, nan_at=NEVER, steps=60, options=()):
        words = ["run", "--run", self.folder / name, "--rules", "none", "--sync", self.base, *options, "--"]
        return self._start(name, *words, sys.executable, self.folder / "job.py", nan_at, steps)

    def watch(self, *options, name="watch", state="state"):
        return self._start(name, "watch", self.base, "--state", self.folder / state, *options)

    def begin(self):
        """Runs that begin from now on are judged, however late the first watch is."""
        open_store(self.base).put_new("judges/luff", b"{}")

    def drain(self, *options, state="state"):
        watch = self.watch("--drain", *options, name="drain", state=state)
        assert watch.wait(600) == 0, self.err("drain")
        return self.err("drain")

    def err(self, name):
        return (self.folder / f"{name}.err").read_text()

    def url(self, name):
        return f"{self.base}/{json.loads((self.folder / name / 'run.json').read_text())['run_id']}"

    def committed(self, name):
        """The lines of all commits of a run."""
        store, run_id, number, lines = open_store(self.base), self.url(name)[-32:], 1, []
        while (commit := read_commit(store, run_id, number)) is not None:
            lines += commit.lines
            number += 1
        return lines

    def said(self, state="state"):
        path = self.folder / state / "findings.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def bench(luff, base, tmp_path):
    bench = Bench(luff, base, tmp_path)
    yield bench
    for process in bench.processes:
        if process.poll() is None:
            process.kill()
            process.wait()


def new(lines):
    return [(line["id"], line["rule"]) for line in lines if line["event"] == "new"]


def test_runs_are_judged_from_the_bucket_as_beside_them(luff, bench):
    """What is found stands in the bucket, byte for byte as a look at the run itself finds it, and readers see it."""
    bench.begin()
    watch = bench.watch()
    jobs = {"sick": bench.job("sick", nan_at=25, steps=120), "sound": bench.job("sound", steps=120)}
    for name, job in jobs.items():
        assert job.wait(180) == 0, bench.err(name)
    children = Path(f"/proc/{watch.pid}/task/{watch.pid}/children")
    for child in children.read_text().split() if children.exists() else []:
        os.kill(int(child), signal.SIGTERM)  # as a service manager does
    watch.send_signal(signal.SIGTERM)
    assert watch.wait(180) == 0, bench.err("watch")
    assert "another one is started" not in bench.err("watch")
    bench.drain()
    for name in jobs:
        here = luff("check", bench.folder / name, "--json", expect=None).stdout.splitlines()
        assert bench.committed(name) == here
        with package.open_trial(bench.url(name)) as trial:
            assert [finding["id"] for finding in trial.findings()] == [
                json.loads(line)["id"] for line in here if json.loads(line)["event"] == "new"
            ]
    assert "NonFinite" in str(bench.committed("sick"))
    shown = luff("show", bench.url("sick"), "--json", expect=None).stdout
    assert "NonFinite" in shown
    listed = [json.loads(line) for line in luff("runs", bench.base, "--json").stdout.splitlines()]
    found = {card["run_id"]: card["findings"]["count"] for card in listed}
    assert found[bench.url("sick")[-32:]] > 0
    assert found[bench.url("sound")[-32:]] == 0
    said = bench.said()
    assert len(new(said)) == len(set(new(said)))
    assert {line["run_id"] for line in said} == {bench.url("sick")[-32:]}
    again = bench.drain(state="elsewhere")  # another machine: all is judged
    assert "NonFinite" not in again
    assert bench.said("elsewhere") == []


def test_killed_at_any_moment_and_two_at_once_each_finding_is_said_once(bench):
    bench.begin()
    jobs = [bench.job(f"job{i}", nan_at=30 if i % 2 else NEVER, steps=150) for i in range(4)]
    states = ("state", "other")
    for pause in (1.0, 2.5, 0.7, 1.8):
        watches = [bench.watch(name=f"watch-{state}", state=state) for state in states]
        time.sleep(pause)
        for watch in watches:
            watch.send_signal(signal.SIGKILL)
            watch.wait()
    for i, job in enumerate(jobs):
        assert job.wait(180) == 0, bench.err(f"job{i}")
    for state in states:
        bench.drain(state=state)
    said = [line for state in states for line in bench.said(state)]
    news = [(line["run_id"], line["id"]) for line in said if line["event"] == "new"]
    assert len(news) == len(set(news))
    for i in range(4):
        lines = bench.committed(f"job{i}")
        assert len(lines) == len(set(lines))
        found = {json.loads(line)["id"] for line in lines}
        assert found == {line["id"] for line in said if line["run_id"] == bench.url(f"job{i}")[-32:]}
        assert ("NonFinite" in str(lines)) == (i % 2 == 1)


@pytest.mark.thorough
def test_a_hundred_kills_lose_nothing_and_say_nothing_twice(luff, bench):
    """Of the watch, or of the process beside it, at any moment while jobs begin, fail and end."""
    bench.begin()
    draw, jobs = random.Random(11), []
    for kill in range(100):
        if kill % 10 == 0:
            name = f"job{len(jobs)}"
            nan_at = draw.randrange(20, 300) if len(jobs) % 2 else NEVER
            jobs.append((name, nan_at, bench.job(name, nan_at=nan_at, steps=400)))
        watch = bench.watch()
        time.sleep(draw.uniform(0.1, 2.5))
        try:
            children = Path(f"/proc/{watch.pid}/task/{watch.pid}/children").read_text().split()
        except OSError:
            children = []
        beside = list(map(int, children))
        if kill % 3 == 0 and beside:  # it is started again
            os.kill(beside[0], signal.SIGKILL)
            time.sleep(draw.uniform(0.1, 1.5))
        watch.send_signal(signal.SIGKILL)
        watch.wait()
    for name, _, job in jobs:
        assert job.wait(180) == 0, bench.err(name)
    bench.drain()
    said = bench.said()
    news = [(line["run_id"], line["id"]) for line in said if line["event"] == "new"]
    assert len(news) == len(set(news))
    for name, nan_at, _ in jobs:
        here = luff("check", bench.folder / name, "--json", expect=None).stdout.splitlines()
        assert bench.committed(name) == here
        assert ("NonFinite" in str(here)) == (nan_at != NEVER)
        of_run = [line for line in said if line["run_id"] == bench.url(name)[-32:]]
        assert {line["id"] for line in of_run} == {json.loads(line)["id"] for line in here}


def test_a_bucket_that_was_judged_is_left_as_it_is(luff, tmp_path):
    """The golden one: nothing is found twice or written; that its rules were others is said."""
    shutil.copytree(Path(__file__).parents[3] / "testdata/bucket/v1/judged", tmp_path / "bucket")
    base, folder = f"file://{tmp_path}/bucket", tmp_path / "bucket"

    def objects():
        return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and not p.name.startswith(".")}

    before = objects()
    done = luff("watch", base, "--drain", "--earlier", "--state", tmp_path / "state")
    assert "NonFinite" not in done.stderr
    assert "with other rules or parameters" in done.stderr
    assert objects() == before
    with package.open_trial(f"{base}/01080f161d242b323940474e555c636a") as trial:
        assert [(found["id"][-1], found["healed"]) for found in trial.findings()] == [
            ("1", False),
            ("2", True),
        ]


def test_a_job_is_stopped_through_the_bucket(luff, bench):
    done = luff("keys", "new", bench.folder / "key", "--id", "judge", "--may", "stop")
    config = bench.folder / "luff.toml"
    config.write_text(done.stdout)
    refused = luff("watch", bench.base, "--on-finding", "stop", expect=2)
    assert "--key" in refused.stderr
    bench.watch("--on-finding", "stop", "--key", bench.folder / "key", "--rules", "NonFinite")
    job = bench.job("job", nan_at=20, steps=NEVER, options=("--config", config))
    assert job.wait(600) == 76, bench.err("job") + bench.err("watch")
    with package.open_trial(bench.folder / "job") as trial:
        assert trial.outcome == "stopped"
    names = open_store(bench.base).children(f"requests/{bench.url('job')[-32:]}/")
    assert names == ["000001.json"]


def test_what_stands_in_the_way_is_said(luff, bench, tmp_path):
    assert "run" in luff("watch", f"{bench.base}/{'0' * 32}", expect=2).stderr
    bench.watch()
    wait_for(lambda: "judging" in bench.err("watch"))
    second = luff("watch", bench.base, "--state", bench.folder / "state", expect=2)
    assert "another luff watch" in second.stderr
    if bench.base.startswith("file:"):
        folder = tmp_path / "foreign"
        folder.mkdir()
        (folder / "luff.json").write_text("{}")
        assert "another prefix" in luff("watch", f"file://{folder}", expect=2).stderr


@pytest.mark.parametrize(("seconds", "code"), [(0.0, 6), (60.0, 2)])
def test_a_bucket_that_does_not_answer_at_first_is_no_wrong_usage(
    luff, s3, tmp_path, monkeypatch, seconds, code
):
    """Who keeps the process is to start it again, but not where the bucket has refused."""
    if code == 6:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    else:
        s3 = "s3://luff-no-such-bucket/team"
    python = tmp_path / "python"
    python.write_text(
        f"#!/bin/sh\nwhile [ \"$1\" != judge ]; do shift; done; shift\nexec '{sys.executable}' -c '\n"
        f"import sys\nfrom luff.remote import _judge\n_judge._START_S = {seconds}\n"
        'from luff._verbs import judge\nsys.exit(judge.main(sys.argv[1:]))\n\' "$@"\n'
    )
    python.chmod(0o755)
    monkeypatch.setenv("LUFF_PYTHON", str(python))
    done = luff("watch", s3, "--state", tmp_path / "state", expect=None)
    assert done.returncode == code, done.stderr
    assert s3.split("/")[2] in done.stderr
