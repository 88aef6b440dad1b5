"""Actors of Ray that judge the runs of a directory: started again when they die, and no finding is said twice."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
from sweep_scripts import run_script

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
        ("/runs", {"shards": 0}, "from 1 to 16"),
        ("/runs", {"shards": True}, "from 1 to 16"),
        ("/runs", {"options": "--rules"}, "as a list of texts"),
    ],
)
def test_wrong_arguments_are_named(base, options, said):
    import luff.ray

    with pytest.raises(luff.errors.InvalidArgumentError, match=said):
        luff.ray.start(base, **options)


def test_without_ray_it_says_what_to_call():
    import luff.ray

    with pytest.raises(luff.errors.FailedPreconditionError, match=r"ray\.init"):
        luff.ray.start("/runs")


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
    import textwrap

    script = textwrap.dedent(CLUSTER) + textwrap.dedent(NO_ROOM)
    done = run_script(tmp_path, "cluster.py", script, timeout=300, LUFF_HOME=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["16 {True}", "done"]


@pytest.mark.thorough
@pytest.mark.parametrize("script", [ONE_NODE, TWO_NODES])
def test_actors_that_die_go_on_and_say_nothing_twice(tmp_path, runs, script):
    import textwrap

    (tmp_path / "job.py").write_text(textwrap.dedent(JOB))
    done = run_script(
        tmp_path,
        "cluster.py",
        textwrap.dedent(CLUSTER) + textwrap.dedent(script),
        timeout=500,
        LUFF_HOME=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    (told,) = (json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"said"'))
    lines = [
        json.dumps({k: v for k, v in line.items() if k not in ("told_unix_ns",)}, sort_keys=True)
        for line in told["said"]
    ]
    assert len(lines) == len(set(lines))
    assert not any(alive(pid) for pid in told["pids"])
