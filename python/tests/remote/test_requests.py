"""Requests through a bucket: what is signed by a key of the job is done, everything else does nothing and is told."""

from __future__ import annotations

import base64
import collections
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
from bucket_copies import copy_of
from luff._verbs import sync
from luff.remote import _requests
from luff.remote._errors import Refused, Unreachable
from luff.remote._requests import Requests, put_request, request_key
from luff.remote._store import FolderStore

JOB = """
import sys, time
import numpy as np
import luff.numpy

weights = {"w": np.ones(4, np.float32)}
with luff.numpy.attach(weights) as hook:
    for number in range(int(sys.argv[1])):
        with hook.step() as step:
            step.gradients({"w": np.full(4, 0.1, np.float32)})
            step.loss(1.0 / (number + 1))
        time.sleep(0.01)
"""


OBJECT = re.compile(r"request (\d+) of the bucket")


def children_of(pid):
    """Those that a process has started; none where the kernel does not tell."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


# ---- Fetching ----


@pytest.fixture
def fetched(run, store):
    """Requests of a run whose supervisor wants some, and what was said."""
    (run.path / "requests").mkdir(mode=0o700)
    said = []
    return Requests(str(run.path), store, run.run_id, said.append), said


def arrived(run):
    folder = run.path / "requests"
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name[:6].isdigit()}


def test_each_is_fetched_once_and_in_order(run, store, fetched):
    requests, said = fetched
    assert requests.look() == 0
    assert [put_request(store, run.run_id, b"one"), put_request(store, run.run_id, b"two")] == [1, 2]
    assert requests.look() == 2
    assert arrived(run) == {"000001.json": b"one", "000002.json": b"two"}
    assert requests.look() == 0
    for path in (run.path / "requests").glob("0*.json"):
        path.unlink()
    # Another uploader goes on where this one was.
    again = Requests(str(run.path), store, run.run_id, said.append)
    assert put_request(store, run.run_id, b"three") == 3
    assert again.look() == 1
    assert arrived(run) == {"000003.json": b"three"}
    assert said == []


def test_without_a_supervisor_that_wants_some_the_bucket_is_not_asked(run, store):
    asked = store.requests
    assert Requests(str(run.path), store, run.run_id, print).look() == 0
    assert store.requests == asked


def test_what_is_too_large_is_told_and_not_read(run, store, fetched):
    requests, _ = fetched
    store.put(request_key(run.run_id, 1), b"x" * 5_000_000)
    put_request(store, run.run_id, b"fine")
    received = store.received
    assert requests.look() == 2
    assert set(arrived(run)) == {"000001.problem", "000002.json"}
    assert store.received - received < 1000
    assert b"larger than 64 KiB" in arrived(run)["000001.problem"]


class Denied(FolderStore):
    """A store that gives nobody some of its objects, and a list only if `lists`."""

    def __init__(self, folder, denied, lists=True):
        super().__init__("s3://terabytes/team", str(folder))  # a name with a word of another error
        self.denied, self.lists = denied, lists

    def get(self, key, most, unless=""):
        if self.denied(key):
            raise Refused(f"no right to do this: {self.url}/{key}")
        return super().get(key, most, unless)

    def children(self, prefix):
        if not self.lists:
            raise Refused(f"no right to do this: {self.url}/{prefix}")
        return super().children(prefix)


@pytest.mark.parametrize("lists", [True, False])
def test_a_refusal_is_no_request(run, tmp_path, lists):
    """Of an object that is not there, a store says "no right" to who may not list."""
    (run.path / "requests").mkdir()
    said = []
    store = Denied(tmp_path / "bucket", lambda key: True, lists)
    requests = Requests(str(run.path), store, run.run_id, said.append)
    assert [requests.look() for _ in range(3)] == [0, 0, 0]
    assert arrived(run) == {}
    assert len(said) == 1
    assert "no right" in said[0]


def test_one_that_cannot_be_read_holds_up_none_behind_it(run, tmp_path):
    (run.path / "requests").mkdir()
    said = []
    store = Denied(tmp_path / "bucket", lambda key: key.endswith("000001.json"))
    for text in (b"theirs", b"ours", b"ours, too"):
        put_request(store, run.run_id, text)
    (tmp_path / "bucket/requests" / run.run_id / "000004.json").mkdir()
    os.mkfifo(tmp_path / "bucket/requests" / run.run_id / "000005.json")
    store.put(request_key(run.run_id, 6), b"last")
    requests = Requests(str(run.path), store, run.run_id, said.append)
    assert requests.look() == 6
    found = arrived(run)
    assert [name for name in sorted(found) if name.endswith("json")] == [
        "000002.json",
        "000003.json",
        "000006.json",
    ]
    assert b"cannot be read: no right" in found["000001.problem"]
    assert b"no file" in found["000004.problem"]
    assert b"no file" in found["000005.problem"]
    assert said == []


def test_a_number_that_was_left_out_holds_nothing_up(run, store, fetched, monkeypatch):
    requests, _ = fetched
    monkeypatch.setattr(_requests, "_LIST_EVERY_S", 0.0)
    store.put(request_key(run.run_id, 7), b"seven")
    store.put(f"requests/{run.run_id}/0000001.json", b"no such name")
    assert requests.look() == 1
    assert arrived(run) == {"000007.json": b"seven"}
    assert put_request(store, run.run_id, b"next") == 8
    assert put_request(store, run.run_id, b"later", after=20) == 21


def test_a_number_far_beyond_uses_none_up(run, store, fetched, monkeypatch):
    requests, _ = fetched
    monkeypatch.setattr(_requests, "_LIST_EVERY_S", 0.0)
    store.put(request_key(run.run_id, 999_999), b"far")
    assert requests.look() == 0
    assert put_request(store, run.run_id, b"one") == 1
    assert put_request(store, run.run_id, b"two") == 2
    assert requests.look() == 2
    assert arrived(run) == {"000001.json": b"one", "000002.json": b"two"}
    with pytest.raises(Unreachable, match="remove what others have put there"):
        put_request(store, run.run_id, b"none is left", after=999_999)


def test_requests_are_looked_for_between_two_flushes(run, tmp_path, monkeypatch):
    monkeypatch.setattr(sync, "_REQUESTS_S", 0.01)
    beside = sync.Sync(
        sync._parser().parse_args([str(run.path), f"file://{tmp_path}/bucket", "--flush", "3600"])
    )

    class Counted:
        looks = 0

        def look(self):
            self.looks += 1
            if self.looks == 3:
                beside._closed.set()

    counted = Counted()
    beside._pause(counted)
    assert counted.looks == 3


def test_what_nobody_takes_does_not_pile_up(run, store, fetched):
    requests, _ = fetched
    for number in range(1, 81):
        store.put(request_key(run.run_id, number), b"%d" % number)
    for _ in range(20):
        requests.look()
    assert len(arrived(run)) == _requests.MOST_WAITING


def test_of_two_that_sign_at_once_each_gets_a_number(run, store, monkeypatch):
    monkeypatch.setattr(_requests, "_numbers", lambda *_: [])  # neither has seen the other
    assert put_request(store, run.run_id, b"a") == 1
    assert put_request(store, run.run_id, b"b") == 2
    assert put_request(store, run.run_id, b"b") == 2  # its own, whose answer was lost
    assert store.get(request_key(run.run_id, 2), 99)[0] == b"b"


# ---- The whole way ----


class Job:
    """A training under `luff run --sync` with a key."""

    def __init__(self, luff, tmp_path, url, may="stop,lower_lr", steps=100_000, resume=False):
        self.luff, self.key, self.run = luff, tmp_path / "secret.key", tmp_path / "run"
        self.config = tmp_path / "luff.toml"
        if not self.key.exists():
            lines = luff("keys", "new", self.key, "--id", "boss", "--may", may).stdout
            self.config.write_text(lines)
        (tmp_path / "train.py").write_text(JOB)
        self.log = tmp_path / "stderr"
        self.base = url
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [luff.executable, "run", "--run", self.run, "--rules", "none", "--config", self.config, "--sync", url,
                 *(["--resume-or-new"] if resume else []), "--", sys.executable, tmp_path / "train.py", str(steps)],
                stdout=subprocess.DEVNULL, stderr=log,
            )  # fmt: skip
        self.wait(lambda: "this run is" in self.err() and "keys" in self.kinds())
        self.url = next(w for w in self.err().split() if w.startswith(url + "/"))
        until = time.monotonic() + 60
        while not json.loads(luff("keys", "check", "--run", self.url, "--json").stdout)["known"]:
            assert time.monotonic() < until

    def err(self):
        return self.log.read_text()

    def kinds(self):
        return [json.loads(p.read_text())["kind"] for p in sorted(self.run.glob("control/*.json"))]

    def wait(self, holds, seconds=60):
        until = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < until, self.err()
            assert self.process.poll() is None, self.err()
            time.sleep(0.05)

    def refused(self):
        """What the bucket says was refused, and why."""
        actions = json.loads(self.luff("show", self.url, "--json").stdout)["actions"]
        return [action["detail"] for action in actions if action["state"] == "refused"]

    def end(self):
        self.process.terminate()
        self.process.wait(60)


@pytest.fixture
def started():
    """Jobs that end with the test."""
    jobs = []
    yield jobs
    for one in jobs:
        if one.process.poll() is None:
            one.end()


@pytest.fixture
def job(luff, tmp_path, store, started):
    started.append(Job(luff, tmp_path, store.url))
    return started[0]


def test_a_signed_request_stops_the_job_and_all_others_do_nothing(luff, job, store, tmp_path):
    run_id = job.url.rsplit("/", 1)[1]
    # By somebody who may put objects and has no key; by a key of the same name that the job does not know.
    put_request(store, run_id, b'{"version": 1, "signed": "{}", "key_id": "boss", "signature": ""}')
    luff("keys", "new", tmp_path / "other.key", "--id", "boss")
    done = luff("request", "stop", job.url, "--key", tmp_path / "other.key", expect=2)
    assert "another key named 'boss'" in done.stderr
    store.put(request_key(run_id, 2), b"x" * 100_000)
    # By the key, without the right.
    done = luff("request", "skip_batch", job.url, "--key", job.key, expect=2)
    assert "may not skip_batch; it may stop, lower_lr" in done.stderr
    # One that no training has opted in to: taken, and refused in all ranks.
    done = luff("request", "lower_lr", job.url, "--key", job.key, "--factor", 0.5, "--json", expect=1)
    assert "has not opted in" in json.loads(done.stdout)["why"]
    # A replay under another number.
    replayed = store.get(request_key(run_id, 3), 1 << 16)[0]
    put_request(store, run_id, replayed)
    job.wait(lambda: "(key boss)" in job.err() or len(job.kinds()) > 3)
    until = time.monotonic() + 30
    while len(job.refused()) < 4 and time.monotonic() < until:
        time.sleep(0.3)
    refused = " | ".join(job.refused())
    for part in ("it is not signed", "larger than 64 KiB", "has not opted in", "counts once"):
        assert part in refused
    assert job.process.poll() is None
    assert job.kinds().count("request") == 1
    store.delete_all([request_key(run_id, number) for number in range(1, 5)])  # a rule of the bucket may

    done = luff("request", "stop", job.url, "--key", job.key, "--reason", "it is enough", "--json")
    answer = json.loads(done.stdout)
    assert (answer["state"], answer["object"]) == ("done", 5)
    assert job.process.wait(60) == 76, job.err()
    shown = json.loads(luff("show", job.url, "--json").stdout)
    assert shown["outcome"] == "stopped"
    assert any("(key boss): it is enough" in action["asked"] for action in shown["actions"])
    assert shown["workers"][0]["last_train_step"] + 1 == answer["train_step"]
    done = luff("request", "stop", job.url, "--key", job.key, expect=2)
    assert "has ended" in done.stderr


def test_clocks_that_differ_expiry_and_another_run_are_told_apart(luff, job, store, tmp_path):
    cryptography = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    file = json.loads(job.key.read_text())
    key = cryptography.Ed25519PrivateKey.from_private_bytes(base64.b64decode(file["ed25519_secret"]))
    run_id = job.url.rsplit("/", 1)[1]

    def put(**changes):
        now = time.time_ns()
        order = {
            "version": 1, "run_id": run_id, "nonce": os.urandom(16).hex(), "kind": "request",
            "body": {"action": "stop"}, "finding": "", "reason": "", "author": "me",
            "created_unix_ns": now, "not_after_unix_ns": now + 60 * 10**9,
        } | changes  # fmt: skip
        text = json.dumps(order)
        signature = base64.b64encode(key.sign(b"luff-request-v1\n" + text.encode())).decode()
        envelope = {"version": 1, "key_id": "boss", "signature": signature, "signed": text}
        put_request(store, run_id, json.dumps(envelope).encode())

    now, hour = time.time_ns(), 3600 * 10**9
    put(created_unix_ns=now - hour, not_after_unix_ns=now - hour + 60 * 10**9)
    put(created_unix_ns=now + hour, not_after_unix_ns=now + hour + 60 * 10**9)
    put(run_id="0" * 32)
    put(version=2)
    put(body={"action": "trace", "steps": 1})
    put(not_after_unix_ns=now + 24 * hour)
    until = time.monotonic() + 30
    while len(job.refused()) < 6 and time.monotonic() < until:
        time.sleep(0.3)
    refused = job.refused()
    assert len(refused) == 6
    for part in (
        "expired 59 min ago",
        "60 min in the future",
        "another run",
        "version 2",
        "may not trace",
        "10 min are the most",
    ):
        assert sum(part in why for why in refused) == 1, refused
    assert job.process.poll() is None
    assert "request" not in job.kinds()
    # Signed by another implementation, the right one counts.
    put(author="somebody")
    assert job.process.wait(60) == 76, job.err()


@pytest.mark.thorough
def test_twenty_kills_of_the_supervisor_answer_each_request_once(luff, tmp_path, store, started):
    """At any moment of a request, with the job and its upload or without: the next one that goes on with the run
    answers what is open, and nothing twice.
    """
    draw, job = random.Random(5), None
    asked = 0
    for kill in range(20):
        job = Job(luff, tmp_path, store.url, resume=True)
        started.append(job)
        for _ in range(draw.randint(1, 3)):
            luff("request", "lower_lr", job.url, "--key", job.key, "--factor", 0.5, "--no-wait")
            asked += 1
        time.sleep(draw.uniform(0, 4))
        pids = children_of(job.process.pid)
        os.kill(job.process.pid, signal.SIGKILL)
        job.process.wait()
        for pid in pids if kill % 2 else pids[::-1]:  # else the run is in use
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        until = time.monotonic() + 60
        while any(Path(f"/proc/{pid}/exe").exists() for pid in pids) and time.monotonic() < until:
            time.sleep(0.05)
    job = Job(luff, tmp_path, store.url, resume=True)
    started.append(job)
    names = store.children(f"requests/{job.url[-32:]}/")
    assert len(names) == asked

    def answers():
        """Of each request, by its number in the bucket: how often it was taken, and how often refused."""
        taken = [json.loads(p.read_text()) for p in sorted(job.run.glob("control/*.json"))]
        numbers = [one["body"]["object"] for one in taken if one["kind"] == "request"]
        lines = (job.run / "rules/luff/actions.jsonl").read_text().splitlines()
        refused = [one for one in map(json.loads, lines) if one.get("event") == "refused"]
        numbers += [int(found[1]) for one in refused if (found := OBJECT.search(json.dumps(one)))]
        return collections.Counter(numbers)

    job.wait(lambda: len(answers()) == asked, seconds=300)
    assert set(answers().values()) == {1}
    done = luff("request", "stop", job.url, "--key", job.key, "--json")
    assert json.loads(done.stdout)["state"] == "done"
    assert job.process.wait(120) == 76, job.err()
    assert luff("verify", job.run).returncode == 0
    here = {p.name: p.read_bytes() for p in job.run.glob("control/*.json")}
    _, copy = copy_of(store, types.SimpleNamespace(run_id=job.url[-32:]), tmp_path / "copy")
    there = {name[8:]: data for name, data in copy.items() if name.startswith("control/")}
    # How it ended is written once the upload has ended, and stands on the host alone.
    here = {
        name: data for name, data in here.items() if json.loads(data)["kind"] != "outcome" or name in there
    }
    assert there == here, job.err()


def test_the_secret_is_in_no_file_but_its_own(luff, job, tmp_path, own_cache):
    luff("request", "stop", job.url, "--key", job.key)
    assert job.process.wait(60) == 76
    seed = base64.b64decode(json.loads(job.key.read_text())["ed25519_secret"])
    forms = [seed, seed.hex().encode(), base64.b64encode(seed), base64.urlsafe_b64encode(seed).rstrip(b"=")]
    looked = 0
    for folder, _, names in os.walk(tmp_path):
        for name in names:
            path = Path(folder) / name
            if not path.is_file() or path == job.key:
                continue
            data = path.read_bytes()
            looked += 1
            assert not any(form in data for form in forms), path
    assert looked > 20
    assert (job.key.stat().st_mode & 0o777) == 0o600
    assert own_cache in [path.parent for path in own_cache.iterdir()]
