"""Actors of Ray that judge the runs of a directory or bucket are started again, and say no finding twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from sweep_scripts import luff_command, run_script

pytest.importorskip("ray")


def wait_for(what, seconds=60):
    """Waits until a condition holds; returns what it was."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "it has not come about"
        time.sleep(0.05)
    return found


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def runs(tmp_path):
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


def test_a_shard_is_started_again_and_leaves_when_it_is_told(runs):
    from luff.ray._shard import Shard

    shard = Shard(str(runs), 1, 2, ["--rules", "NonFinite"])
    assert shard.wait_until_judging(60)
    told = wait_for(lambda: (told := shard.report())["ready"] and told)
    assert (told["shard"], told["starts"], told["problem"]) == (1, 1, "")
    assert told["runs"]["live"] == 0
    assert told["lag_p99_s"] is None
    os.kill(told["pid"], signal.SIGKILL)
    again = wait_for(lambda: (again := shard.report())["starts"] == 2 and again["ready"] and again)
    assert again["pid"] != told["pid"]
    shard.stop()
    assert not alive(again["pid"])
    assert (runs / ".luff-watch/1-of-2/findings.jsonl").exists()


def committed(bucket, run):
    """Findings that stand in the bucket, of a run directory."""
    from luff.remote._commits import read_commit
    from luff.remote._store import open_store

    run_id = json.loads((run / "run.json").read_text())["run_id"]
    lines, number = [], 1
    while (commit := read_commit(open_store(bucket), run_id, number)) is not None:
        lines += [json.loads(line) for line in commit.lines]
        number += 1
    return lines


def test_a_shard_judges_a_bucket(tmp_path, monkeypatch):
    """Started again, it goes on there, and commits no finding twice."""
    from luff.ray._shard import Shard

    monkeypatch.setenv("LUFF_CACHE", str(tmp_path / "cache"))
    bucket = f"file://{tmp_path}/bucket"
    shard = Shard(bucket, 0, 1, ["--rules", "NonFinite"])
    assert shard.wait_until_judging(120), shard.report()
    monkeypatch.setenv("LUFF_PYTHON", sys.executable)
    (tmp_path / "job.py").write_text(textwrap.dedent(JOB))
    for name in ("one", "two"):
        words = [luff_command(), "run", "--rules", "later", "--sync", bucket, "--run", name, "--"]
        subprocess.run([*words, sys.executable, "job.py", name], cwd=tmp_path, check=True, timeout=120)
        wait_for(lambda name=name: committed(bucket, tmp_path / name))
        told = wait_for(lambda: (told := shard.report())["ready"] and told)
        os.kill(told["pid"], signal.SIGKILL)
    wait_for(lambda: shard.report()["starts"] == 3 and shard.report()["ready"])
    shard.stop()
    for name in ("one", "two"):
        lines = committed(bucket, tmp_path / name)
        assert [line["rule"] for line in lines if line["event"] == "new"] == ["NonFinite"] * len(
            {line["id"] for line in lines}
        )


def test_a_bucket_that_is_none_ends_it_for_good(tmp_path, monkeypatch):
    from luff.ray._shard import Shard

    monkeypatch.setenv("LUFF_CACHE", str(tmp_path / "cache"))
    (tmp_path / "file").write_text("")
    shard = Shard(f"file://{tmp_path}/file", 0, 1)
    assert not shard.wait_until_judging(60)
    assert "exit code 2" in shard.report()["problem"]
    shard.stop()


def test_a_shard_waits_for_the_one_before_it(runs):
    from luff.ray._shard import Shard

    first = Shard(str(runs), 0, 1)
    assert first.wait_until_judging(60)
    second = Shard(str(runs), 0, 1)
    wait_for(lambda: any("another luff watch" in line for line in second.report()["said"]))
    assert not second.wait_until_judging(0.1)
    first.stop()
    assert second.wait_until_judging(60)
    second.stop()


def test_wrong_options_end_it_for_good(runs):
    from luff.ray._shard import Shard

    shard = Shard(str(runs), 0, 1, ["--rules", "NoSuchRule"])
    assert not shard.wait_until_judging(60)
    told = shard.report()
    assert told["starts"] == 1
    assert "exit code 2" in told["problem"]
    assert "NoSuchRule" in told["problem"] + "".join(told["said"])
    shard.stop()


def test_whatever_ends_the_keeper_is_said(runs, monkeypatch):
    from luff.ray import _shard

    def fails():
        raise RuntimeError("of another kind")

    monkeypatch.setattr(_shard, "luff_command", fails)
    shard = _shard.Shard(str(runs), 0, 1)
    assert not shard.wait_until_judging(60)
    assert shard.report()["problem"] == "of another kind"
    shard.stop()


def test_a_lag_is_the_end_of_a_bucket():
    from luff.ray._shard import lag_of

    text = "".join(
        f'luff_watch_lag_seconds_bucket{{le="{end}"}} {count}\n'
        for end, count in (("0.5", 10), ("2", 98), ("5", 99), ("+Inf", 100))
    )
    assert [lag_of(text, share) for share in (0.1, 0.5, 0.99)] == [0.5, 2.0, 5.0]
    assert lag_of(text, 1.0) == float("inf")
    assert lag_of("", 0.5) is None


@pytest.mark.parametrize(
    ("base", "options", "said"),
    [
        ("runs", {}, "absolute path"),
        ("s3://", {}, "base: .*expected s3://BUCKET"),
        ("https://bucket/team", {}, "base: .*expected one of .*s3://"),
        ("file://folder", {}, "an absolute path"),
        ("s3://bucket/team?x=1", {}, "no user, password, query"),
        ("/runs", {"shards": 0}, "from 1 to 16"),
        ("/runs", {"shards": True}, "from 1 to 16"),
        ("/runs", {"options": "--rules"}, "as a list of texts"),
    ],
)
def test_wrong_arguments_are_named(base, options, said):
    import luff.ray

    with pytest.raises(luff.errors.InvalidArgumentError, match=said):
        luff.ray.start(base, **options)


@pytest.mark.parametrize("base", ["/runs", "s3://bucket/team"])
def test_without_ray_it_says_what_to_call(base):
    import luff.ray

    with pytest.raises(luff.errors.FailedPreconditionError, match=r"ray\.init"):
        luff.ray.start(base)


def test_a_place_has_one_name():
    from luff.ray._watch import _place

    assert _place("/shared//runs/") == "/shared/runs"
    assert _place("/shared/a://b") == "/shared/a:/b"  # begins as no URL does
    assert _place("s3://bucket/team/") == _place("s3://bucket/team") == "s3://bucket/team"
    assert _place("file:///shared/bucket/") == "file:///shared/bucket"


JOB = """
    import sys
    import numpy as np
    import luff.numpy
    hook = luff.numpy.attach({"w": np.ones(4, np.float32)}, run=sys.argv[1], rules=False)
    for i in range(30):
        with hook.step() as step:
            step.loss(float("nan") if i > 5 else 1 / (i + 1))
    hook.close()
"""

CLUSTER = """
    import json, os, signal, subprocess, sys, time
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    import luff.ray

    runs = os.path.join(os.getcwd(), "runs")

    def job(name):
        subprocess.run([sys.executable, "job.py", os.path.join(runs, name)], check=True)

    def said():
        lines = []
        for shard in os.listdir(os.path.join(runs, ".luff-watch")):
            with open(os.path.join(runs, ".luff-watch", shard, "findings.jsonl")) as file:
                lines += [json.loads(line) for line in file]
        return lines

    def wait(what):
        end = time.monotonic() + 120
        while not what():
            assert time.monotonic() < end, (watch.report(), said())
            time.sleep(0.1)

    def found(name):
        return [line for line in said() if line["run"] == name and line["rule"] == "NonFinite"]
"""

ONE_NODE = """
    ray.init(
        num_cpus=2, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False, logging_level="ERROR"
    )
    watch = luff.ray.start(runs, 2, options=["--rules", "NonFinite"], num_cpus=0.5)
    wait(lambda: all(told["ready"] for told in watch.report()))
    for number in range(4):
        job(f"before-{number}")
    wait(lambda: all(found(f"before-{number}") for number in range(4)))
    wait(lambda: sum(told["steps"] or 0 for told in watch.report()) == 120)
    first = watch.report()
    assert sum(told["findings"] for told in first) >= 4, first
    again = luff.ray.start(runs, 2, num_cpus=0.5)  # finds those that are there
    assert [told["pid"] for told in again.report()] == [told["pid"] for told in first]
    for told in first:  # the actors die, with what they keep
        os.kill(int(open(f"/proc/{told['pid']}/stat").read().split()[3]), signal.SIGKILL)
    for number in range(4):
        job(f"after-{number}")
    wait(lambda: all(found(f"after-{number}") for number in range(4)))
    wait(lambda: all(told["ready"] for told in watch.report()))
    assert not {told["pid"] for told in first} & {told["pid"] for told in watch.report()}
    stopped = watch.stop()
    print(json.dumps({"said": said(), "pids": [told["pid"] for told in stopped if told["pid"]]}))
    ray.shutdown()
"""

NO_ROOM = """
    ray.init(
        num_cpus=2, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False, logging_level="ERROR"
    )
    from luff.ray import _watch
    _watch._BEGIN_S, _watch._ANSWER_S = 1.0, 1.0

    def exists(name):
        try:
            ray.get_actor(name, namespace="luff")
        except ValueError:
            return False
        return True

    def left():
        names = [f"luff-watch-{_watch.hashlib.sha256(runs.encode()).hexdigest()[:12]}-{n}-of-16" for n in range(16)]
        return any(map(exists, names))

    try:
        luff.ray.start(runs, 16, num_cpus=0.25, resources={"what no node has": 1.0})
    except luff.errors.UnavailableError as error:
        assert "shard 0 of 16 does not judge" in str(error), error
    else:
        raise AssertionError("it has begun")
    silent = luff.ray.Watch(runs, [ray.remote(_watch._Actor).options(resources={"what no node has": 1.0}).remote(
        runs, number, 16, []) for number in range(16)])
    told = silent.report()
    print(len(told), {one["problem"] != "" and one["steps"] is None for one in told})
    watch = silent
    wait(lambda: not left())

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    _watch._get = interrupted
    try:
        luff.ray.start(runs, 16, num_cpus=0.25, resources={"what no node has": 1.0})
    except KeyboardInterrupt:
        pass
    wait(lambda: not left())

    # Of calls at once one makes the actor, so only that one ends it if it fails.
    import concurrent.futures
    named = ray.remote(_watch._Actor).options(
        name="one", namespace="luff", lifetime="detached", resources={"what no node has": 1.0}
    )
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: _watch._make_or_find(named, "one", runs, 0, 1, []), range(8)))
    assert sum(new for _, new in made) == 1, made
    assert len({actor._actor_id for actor, _ in made}) == 1
    ray.kill(made[0][0])
    ray.shutdown()
    print("done")
"""

BUCKET = """
    from luff._rules_beside import luff_command
    from luff.remote._commits import read_commit
    from luff.remote._store import open_store

    base = f"file://{os.getcwd()}/bucket"

    def upload(name):
        words = [luff_command(), "run", "--rules", "later", "--sync", base, "--run", name, "--"]
        words += [sys.executable, "job.py", name]
        subprocess.run(words, check=True, env=os.environ | {"LUFF_PYTHON": sys.executable})

    def said():
        store, lines = open_store(base), []
        for run in store.children("runs/"):
            number = 1
            while (commit := read_commit(store, run, number)) is not None:
                lines += [{"run": run, **json.loads(line)} for line in commit.lines]
                number += 1
        return lines

    def runs_named():
        return {line["run"] for line in said() if line["rule"] == "NonFinite"}

    ray.init(
        num_cpus=2, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False, logging_level="ERROR"
    )
    watch = luff.ray.start(base, 2, options=["--rules", "NonFinite"], num_cpus=0.5)
    for number in range(2):
        upload(f"before-{number}")
    wait(lambda: len(runs_named()) == 2)
    wait(lambda: all(told["ready"] for told in watch.report()))
    first = watch.report()
    again = luff.ray.start(base + "/", 2, num_cpus=0.5)  # finds those that are there
    assert [told["pid"] for told in again.report()] == [told["pid"] for told in first]
    for told in first:  # the actors die, with what they keep
        os.kill(int(open(f"/proc/{told['pid']}/stat").read().split()[3]), signal.SIGKILL)
    for number in range(2):
        upload(f"after-{number}")
    wait(lambda: len(runs_named()) == 4)
    wait(lambda: all(told["ready"] for told in watch.report()))
    stopped = watch.stop()
    print(json.dumps({"said": said(), "pids": [told["pid"] for told in stopped if told["pid"]]}))
    ray.shutdown()
"""

TWO_NODES = """
    from ray.cluster_utils import Cluster
    small = {"object_store_memory": 80 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    lost = cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    watch = luff.ray.start(runs, 1, options=["--rules", "NonFinite"])
    job("before")
    wait(lambda: found("before"))
    node = watch.report()[0]["node"]
    other = cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
    cluster.remove_node(lost, allow_graceful=False)
    job("after")
    wait(lambda: found("after"))
    wait(lambda: watch.report()[0]["ready"])
    assert watch.report()[0]["node"] not in ("", node)
    stopped = watch.stop()
    print(json.dumps({"said": said(), "pids": [told["pid"] for told in stopped]}))
    ray.shutdown()
    cluster.shutdown()
"""


@pytest.mark.thorough
def test_actors_that_find_no_room_are_waited_for_once_and_leave(tmp_path, runs):
    script = textwrap.dedent(CLUSTER) + textwrap.dedent(NO_ROOM)
    done = run_script(tmp_path, "cluster.py", script, timeout=300, LUFF_HOME=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["16 {True}", "done"]


@pytest.mark.thorough
@pytest.mark.parametrize("script", [ONE_NODE, BUCKET, TWO_NODES])
def test_actors_that_die_go_on_and_say_nothing_twice(tmp_path, runs, script):
    (tmp_path / "job.py").write_text(textwrap.dedent(JOB))
    done = run_script(
        tmp_path,
        "cluster.py",
        textwrap.dedent(CLUSTER) + textwrap.dedent(script),
        timeout=500,
        LUFF_HOME=tmp_path,
        LUFF_CACHE=tmp_path / "cache",
    )
    assert done.returncode == 0, done.stderr
    (told,) = (json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"said"'))
    lines = [
        json.dumps({k: v for k, v in line.items() if k not in ("told_unix_ns",)}, sort_keys=True)
        for line in told["said"]
    ]
    assert len(lines) == len(set(lines))
    assert not any(alive(pid) for pid in told["pids"])
