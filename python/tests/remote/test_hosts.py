"""Hosts of a job that share a bucket and no file system: what they tell each other, and a stop of all of them."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from luff._verbs import sync
from luff.remote import _hosts
from luff.remote._errors import Conflict, Refused, Unreachable
from luff.remote._hosts import Hosts, message_key
from luff.remote._requests import put_request
from luff.remote._store import FolderStore, open_store
from luff.remote._uploader import Uploader

JOB_ID = "0123456789abcdef" * 2


class Flaky(FolderStore):
    """A folder whose bucket can be away, and lose the answer of a put."""

    def __init__(self, folder):
        super().__init__("s3://flaky/team", str(folder))
        self.away = self.loses = False

    def get(self, key, most, unless=""):
        if self.away:
            raise Unreachable("away")
        return super().get(key, most, unless)

    def put_new(self, key, data):
        if self.away:
            raise Unreachable("away")
        etag = super().put_new(key, data)
        if self.loses:
            self.loses = False
            raise Conflict("it is there")
        return etag


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    for name in ("_LOOK_S", "_BUSY_S", "_FAILED_S"):
        monkeypatch.setattr(_hosts, name, 0.0)


@pytest.fixture
def flaky(tmp_path):
    return Flaky(tmp_path / "flaky")


class Host:
    """The folder of a host's run, as its supervisor has made it."""

    def __init__(self, path, store):
        self.folder = path / "hosts"
        for name in ("in", "out"):
            (self.folder / name).mkdir(parents=True)
        self.said = []
        self.hosts = Hosts(str(path), store, JOB_ID, self.said.append)

    def says(self, sequence, data):
        (self.folder / "out" / f"{sequence:06d}.json").write_bytes(data)

    def heard(self):
        return {p.name[:6]: p.read_bytes() for p in sorted((self.folder / "in").glob("*.json"))}

    def out(self):
        return sorted(p.name for p in (self.folder / "out").iterdir())


@pytest.fixture
def two(tmp_path, flaky):
    return Host(tmp_path / "a", flaky), Host(tmp_path / "b", flaky)


# ---- Messages ----


def test_all_hear_the_same_in_the_same_order(two):
    a, b = two
    a.hosts.look()
    b.hosts.look()
    assert (a.folder / "begun").read_text() == "0"
    a.says(1, b"one")
    b.says(1, b"two")
    a.says(2, b"three")
    for host in (a, b, a, b):
        host.hosts.look()
    assert a.heard() == b.heard() == {"000001": b"one", "000002": b"three", "000003": b"two"}
    assert a.out() == b.out() == []
    assert a.said == b.said == []


def test_who_begins_later_hears_only_what_is_said_from_then_on(two, tmp_path, flaky):
    a, _ = two
    flaky.put(message_key(JOB_ID, 999_999), b"far beyond")
    a.says(1, b"one")
    a.hosts.look()
    (tmp_path / "c").mkdir()
    c = Host(tmp_path / "c", flaky)
    c.hosts.look()
    assert (c.folder / "begun").read_text() == "1"
    assert c.heard() == {}
    c.says(1, b"two")
    c.hosts.look()
    a.hosts.look()
    assert list(a.heard().values()) == [b"one", b"two"]


def test_a_lost_answer_makes_no_second_message(two, flaky):
    a, b = two
    b.hosts.look()
    a.says(1, b"one")
    flaky.loses = True
    a.hosts.look()
    b.hosts.look()
    assert a.heard() == b.heard() == {"000001": b"one"}
    assert a.out() == []


def test_while_the_bucket_is_away_what_was_not_sent_can_be_taken_back(two, flaky):
    a, b = two
    for host in two:
        host.hosts.look()
    flaky.away = True
    a.says(1, b"stop")
    for _ in range(3):
        a.hosts.look()
    assert a.out() == ["000001.json"]
    os.unlink(a.folder / "out/000001.json")  # as the supervisor does
    flaky.away = False
    for host in two:
        host.hosts.look()
    assert a.heard() == b.heard() == {}
    assert a.said == []


def test_a_message_that_was_begun_is_put_when_the_bucket_is_back(two, flaky):
    a, b = two
    a.hosts.look()
    (a.folder / "out/000001.sent").write_bytes(b"begun")
    flaky.away = True
    a.hosts.look()
    assert a.out() == ["000001.sent"]
    flaky.away = False
    a.hosts.look()
    b.hosts.look()
    assert a.heard() == {"000001": b"begun"}
    assert (b.folder / "begun").read_text() == "1"


def test_an_upload_that_is_started_again_goes_on_where_the_first_was(two, flaky):
    a, b = two
    b.hosts.look()
    a.hosts.look()
    b.says(1, b"one")
    b.hosts.look()
    a.hosts.look()
    (a.folder / "in/000001.json").unlink()  # the supervisor has taken it
    # The first was killed within a put that was carried out, and another host goes on meanwhile.
    flaky.put(message_key(JOB_ID, 2), b"own")
    (a.folder / "out/000001.sent").write_bytes(b"own")
    b.says(2, b"three")
    b.hosts.look()
    a.says(2, b"four")
    again = Hosts(str(a.folder.parent), flaky, JOB_ID, a.said.append)
    again.look()
    b.hosts.look()
    assert a.heard() == {"000002": b"own", "000003": b"three", "000004": b"four"}
    assert list(b.heard().values()) == [b"one", b"own", b"three", b"four"]
    assert a.out() == []
    assert a.said == []
    assert (a.folder / "begun").read_text() == "0"


def test_what_is_too_large_is_passed_on_as_nothing(two, flaky):
    a, _ = two
    a.hosts.look()
    flaky.put(message_key(JOB_ID, 1), b"x" * 1_000_000)
    a.says(1, b"one")
    a.hosts.look()
    assert a.heard() == {"000001": b"", "000002": b"one"}
    assert len(a.said) == 1
    assert "cannot be read" in a.said[0]


def test_what_cannot_be_read_is_not_left_out(two, flaky, monkeypatch):
    """It may be what the hosts have decided."""
    a, _ = two
    a.hosts.look()
    flaky.put(message_key(JOB_ID, 1), b"one")
    flaky.put(message_key(JOB_ID, 2), b"two")

    def denied(*_):
        raise Refused("no right to get")

    with monkeypatch.context() as denying:
        denying.setattr(flaky, "get", denied)
        for _ in range(3):
            a.hosts.look()
        assert a.heard() == {}
    a.hosts.look()
    assert a.heard() == {"000001": b"one", "000002": b"two"}
    assert len(a.said) == 1


def test_what_nobody_takes_does_not_pile_up(two, flaky, monkeypatch):
    a, _ = two
    monkeypatch.setattr(_hosts, "MOST_WAITING", 5)
    a.hosts.look()
    for number in range(1, 10):
        flaky.put(message_key(JOB_ID, number), b"%d" % number)
    a.hosts.look()
    assert len(a.heard()) == 5


def test_without_a_supervisor_the_bucket_is_not_asked(tmp_path, flaky):
    hosts = Hosts(str(tmp_path), flaky, JOB_ID, print)
    hosts.look()
    assert flaky.requests == 0


def test_a_refusal_is_told_once(two, flaky, monkeypatch):
    a, _ = two

    def denied(*_):
        raise Refused("no right to list")

    monkeypatch.setattr(flaky, "children", denied)
    for _ in range(3):
        a.hosts.look()
    assert a.said == ["the hosts of the job cannot talk to each other: no right to list"]


def test_numbers_race_on_each_kind_of_bucket(tmp_path, store):
    a, b = Host(tmp_path / "a", store), Host(tmp_path / "b", store)
    for host in (a, b):
        host.hosts.look()
    for sequence in range(1, 4):
        a.says(sequence, b"a%d" % sequence)
        b.says(sequence, b"b%d" % sequence)
        a.hosts.look()
        b.hosts.look()
    a.hosts.look()
    assert a.heard() == b.heard()
    assert sorted(a.heard().values()) == [b"a1", b"a2", b"a3", b"b1", b"b2", b"b3"]


def test_a_wrong_job_is_refused(capsys):
    assert sync.main(["--job=../x", "--", ".", "file:///tmp/x"]) == sync.WRONG_USAGE
    assert "32 hexadecimal digits" in capsys.readouterr().err


def test_what_is_missing_is_said_before_the_job_begins(luff, tmp_path):
    config, url = tmp_path / "luff.toml", f"file://{tmp_path}/bucket"
    job = ("--job", "two", "--config", config, "--", "true")
    lines = luff("keys", "new", tmp_path / "hosts.key", "--id", "hosts", "--may", "host").stdout
    config.write_text(lines)
    assert 'write host_key = "FILE" below [control]' in luff("run", *job, expect=2).stderr
    config.write_text(f'[control]\nhost_key = "hosts.key"\n{lines}')
    assert "give --sync URL, too" in luff("run", *job, expect=2).stderr
    assert "a name is one line" in luff("run", "--job", "two\n2", *job[2:], expect=2).stderr
    config.write_text(f'[control]\nhost_key = "hosts.key"\n{lines}'.replace('"host"', '"stop"'))
    assert 'may = ["host"]' in luff("run", "--sync", url, *job, expect=2).stderr
    config.write_text(f'[control]\nhost_key = "none.key"\n{lines}')
    assert "none.key" in luff("run", "--sync", url, *job, expect=2).stderr
    config.write_text(f"[control]\nhost_key = 3\n{lines}")
    assert "'host_key' of [control] names no file" in luff("run", "--sync", url, *job, expect=2).stderr
    config.write_text("[stop]\nhosts_answer_s = 40\n")
    assert "'hosts_wait_s' in [stop] is 30, expected 46" in luff("run", *job, expect=2).stderr


# ---- The whole way: two folders as two hosts, two gloo ranks ----

RANK = """
import os, sys, time
open(sys.argv[1], "w").write(str(os.getpid()))
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import luff.corrections
dist.init_process_group("gloo")
if os.environ["RANK"] not in os.environ.get("UNWILLING", ""):
    luff.corrections.accept(lower_lr=True)
if os.environ.get("TRAININGS") == "2":  # another one comes first
    first = DistributedDataParallel(nn.Linear(4, 3))
    other = torch.optim.SGD(first.parameters(), lr=0.05)
    for step in range(150):
        other.zero_grad()
        nn.functional.cross_entropy(first(torch.randn(8, 4)), torch.randint(0, 3, (8,))).backward()
        other.step()
    del first, other
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(100_000):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.randint(0, 2, (8,))).backward()
    print(step, optimizer.param_groups[0]["lr"], flush=True)  # by which the update is made
    optimizer.step()
    time.sleep(0.01)
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class TwoHosts:
    """One job of two ranks, each below its own `luff run` with a folder of its own."""

    def __init__(self, luff, tmp_path, url, answer_s=50, wait_s=60, **variables):
        self.luff, self.base = luff, url
        self.training = int(variables.get("TRAININGS", 1))
        self.key, hosts_key = tmp_path / "boss.key", tmp_path / "hosts.key"
        self.config = tmp_path / "luff.toml"
        lines = luff("keys", "new", self.key, "--id", "boss", "--may", "stop,lower_lr,capture").stdout
        lines += luff("keys", "new", hosts_key, "--id", "hosts", "--may", "host").stdout
        patience = f"[stop]\nanswer_s = 60\nhosts_answer_s = {answer_s}\nhosts_wait_s = {wait_s}\n"
        patience += "hosts_lead_s = 6\n"  # a slow machine is not late
        self.config.write_text(f'{patience}[control]\nhost_key = "hosts.key"\n{lines}')
        name = b"luff-job-v1\ntwo" + (b"\n%d" % self.training if self.training > 1 else b"")
        self.job = hashlib.blake2b(name, digest_size=16).hexdigest()
        (tmp_path / "rank.py").write_text(RANK)
        self.logs = [tmp_path / f"stderr{rank}" for rank in range(2)]
        self.outs = [tmp_path / f"stdout{rank}" for rank in range(2)]
        self.pids = [tmp_path / f"pid{rank}" for rank in range(2)]
        self.runs = [tmp_path / f"host{rank}" / "run" for rank in range(2)]
        port = free_port()
        self.processes = []
        for rank in range(2):
            environment = os.environ | {
                "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1", **variables,
            }  # fmt: skip
            with self.logs[rank].open("w") as log, self.outs[rank].open("w") as out:
                self.processes.append(subprocess.Popen(
                    [luff.executable, "run", "--run", self.runs[rank], "--rules", "none", "--config", self.config,
                     "--sync", url, "--job", "two", "--", sys.executable, tmp_path / "rank.py", self.pids[rank]],
                    stdout=out, stderr=log, env=environment,
                ))  # fmt: skip

    def begin(self):
        """Waits until both train, and the bucket tells whose requests count."""
        if self.training > 1:
            told = f"training {self.training} of the job has a run of its own: "
            self.wait(lambda: all(told in self.err(rank) for rank in range(2)), "no other training")
            self.runs = [Path(self.err(rank).split(told)[1].splitlines()[0]) for rank in range(2)]
        self.wait(lambda: all((run / "hosts/begun").exists() for run in self.runs), "no log of the hosts")
        ids = [json.loads((run / "run.json").read_text())["run_id"] for run in self.runs]
        self.urls = [f"{self.base}/{run_id}" for run_id in ids]
        self.wait(
            lambda: all(f"this run is {self.urls[rank]} " in self.err(rank) for rank in range(2)), "no URL"
        )
        self.wait(lambda: all(self.steps(rank) > 3 for rank in range(2)), "no steps")
        check = ("keys", "check", "--run", self.urls[0], "--json")
        self.wait(lambda: json.loads(self.luff(*check).stdout)["known"], "no keys in the bucket")

    def err(self, rank):
        return self.logs[rank].read_text()

    def steps(self, rank):
        workers = json.loads(self.luff("show", self.runs[rank], "--json").stdout)["workers"]
        return workers[0]["last_train_step"] + 1 if workers else 0

    def records(self, rank):
        return [json.loads(p.read_text()) for p in sorted(self.runs[rank].glob("control/*.json"))]

    def phases(self, rank):
        return [r["phase"] for r in self.records(rank) if r["kind"] == "stop"]

    def wait(self, holds, what="", seconds=120):
        until = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < until, what + self.err(0) + self.err(1)
            time.sleep(0.05)

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for pid in self.pids:  # of a host whose supervisor was killed
            try:
                os.kill(int(pid.read_text()), signal.SIGKILL)
            except (OSError, ValueError):
                continue
        for process in self.processes:
            process.wait(120)


@pytest.fixture
def hosts(luff, tmp_path, store, request):
    pytest.importorskip("torch")
    started = TwoHosts(luff, tmp_path, store.url, **getattr(request, "param", {}))
    try:
        started.begin()
        yield started
    finally:
        started.end()


def test_a_stop_that_is_asked_for_once_stops_both_hosts_after_the_same_step(luff, hosts, store):
    # What nobody has signed does nothing, among the requests and between the hosts.
    put_request(store, hosts.urls[0].rsplit("/", 1)[1], b'{"version": 1, "signed": "{}", "key_id": "boss"}')
    forged = {"version": 1, "key_id": "hosts", "signature": "", "signed": "{}"}
    store.put_new(message_key(hosts.job, 1), json.dumps(forged).encode())
    hosts.wait(lambda: all("counts for nothing" in hosts.err(rank) for rank in range(2)))
    assert [hosts.phases(rank) for rank in range(2)] == [[], []]

    done = luff("request", "stop", hosts.urls[0], "--key", hosts.key, "--reason", "it is enough", "--json",
                "--wait-s", 120)  # fmt: skip
    step = json.loads(done.stdout)["train_step"]
    assert [process.wait(120) for process in hosts.processes] == [76, 76], hosts.err(0) + hosts.err(1)
    for rank in range(2):
        commits = [r for r in hosts.records(rank) if r["kind"] == "stop" and r["phase"] == "commit"]
        assert [r["train_step"] for r in commits] == [step]
        assert hosts.steps(rank) == step
    assert "on another host of the job: asked by" in hosts.err(1)
    assert "it is enough" in hosts.err(1)
    shown = json.loads(luff("show", hosts.urls[1], "--json").stdout)
    assert shown["outcome"] == "stopped"


SLOWER = [pytest.param(name, marks=pytest.mark.thorough) for name in ("s3", "rgw", "gs", "az")]


@pytest.mark.thorough  # `actions_test` has it, too
@pytest.mark.parametrize("base", ["file", *SLOWER], indirect=True)
@pytest.mark.parametrize("hosts", [{"answer_s": 4}], indirect=True)
def test_with_a_host_whose_supervisor_was_killed_nothing_is_stopped(luff, hosts):
    hosts.processes[1].send_signal(signal.SIGKILL)
    hosts.processes[1].wait(60)
    done = luff("request", "stop", hosts.urls[0], "--key", hosts.key, "--json", "--wait-s", 120, expect=1)
    answer = json.loads(done.stdout)
    assert answer["state"] == "refused"
    assert "of 2 has not answered" in answer["why"]
    steps = hosts.steps(0)
    hosts.wait(lambda: hosts.steps(0) > steps)  # both go on
    assert "commit" not in hosts.phases(0)


def upload_of(process, run):
    """The process of `luff sync` below a supervisor."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        if parent == process.pid and b"--until-closed" in words and os.fsencode(run) in words:
            return int(entry.name)
    return None


@pytest.mark.parametrize("base", ["file", *SLOWER], indirect=True)
def test_an_upload_that_was_killed_is_begun_again_and_the_hosts_agree(luff, hosts):
    upload = upload_of(hosts.processes[1], hosts.runs[1])
    assert upload is not None
    os.kill(upload, signal.SIGKILL)
    hosts.wait(lambda: upload_of(hosts.processes[1], hosts.runs[1]) not in (None, upload), "no other upload")
    luff("request", "stop", hosts.urls[0], "--key", hosts.key, "--wait-s", 120)
    assert [process.wait(120) for process in hosts.processes] == [76, 76], hosts.err(0) + hosts.err(1)


@pytest.mark.thorough
@pytest.mark.parametrize("base", ["file"], indirect=True)
def test_an_upload_that_was_taken_over_is_started_again_by_the_command_that_is_printed(luff, hosts):
    Uploader(str(hosts.runs[1]), open_store(hosts.urls[1].rpartition("/")[0])).begin()
    hosts.wait(lambda: "--job 'two'" in hosts.err(1), "no command")
    (command,) = (line.split("`")[1] for line in hosts.err(1).splitlines() if "--job 'two'" in line)
    words = shlex.split(command)
    assert words[0] == "luff"
    with subprocess.Popen([luff.executable, *words[1:]], stdout=subprocess.DEVNULL) as again:
        luff("request", "stop", hosts.urls[0], "--key", hosts.key, "--wait-s", 120)
        assert [process.wait(120) for process in hosts.processes] == [76, 76], hosts.err(0) + hosts.err(1)
        assert again.wait(120) == 0


# ---- A supervisor that dies while the others wait for its consent, or it for theirs ----


def messages(hosts):
    """What the hosts have said in the folder that is their bucket, in the order of the log."""
    folder = Path(hosts.base.removeprefix("file://")) / "jobs" / hosts.job
    objects = (json.loads(path.read_text())["signed"] for path in sorted(folder.glob("*.json")))
    return [json.loads(text) for text in objects]


def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("base", ["file"], indirect=True)
@pytest.mark.parametrize("who", [1, pytest.param(0, marks=pytest.mark.thorough)])
def test_a_supervisor_that_is_killed_after_its_consent_leaves_no_rank_waiting(luff, hosts, who):
    asking = [luff.executable, "request", "stop", hosts.urls[0], "--key", hosts.key, "--no-wait"]
    subprocess.run(list(map(str, asking)), check=True, stdout=subprocess.DEVNULL)

    def about_the_last():  # one that came too late is made again
        said = messages(hosts)
        ids = [f"{m['instance']}-{m['sequence']}" for m in said if m["kind"] == "propose"]
        return [m for m in said if m.get("proposal", "") in ids[-1:]]

    def consented():
        return sum(m.get("verdict") == "accepted" for m in about_the_last()) >= 2

    hosts.wait(consented)
    hosts.processes[who].send_signal(signal.SIGKILL)  # the commit comes a second later
    hosts.processes[who].wait(60)
    pids = [int(path.read_text()) for path in hosts.pids]
    decided = ("commit", "abort")
    hosts.wait(lambda: any(m["kind"] in decided for m in about_the_last()))
    if any(m["kind"] == "commit" for m in about_the_last()):
        hosts.wait(lambda: not any(lives(pid) for pid in pids), "a rank waits for one that has left")
        assert [hosts.phases(rank)[-1] for rank in range(2)] == ["commit", "commit"]
        assert hosts.steps(0) == hosts.steps(1)
    else:  # it was the one that decides
        steps = hosts.steps(1 - who)
        hosts.wait(lambda: hosts.steps(1 - who) > steps)
        assert "commit" not in hosts.phases(0) + hosts.phases(1)


# ---- Corrections, captures ----


def rates(hosts, rank):
    """The first step of each rate."""
    first = {}
    for line in hosts.outs[rank].read_text().splitlines():
        step, rate = line.split()
        first.setdefault(float(rate), int(step))
    return first


@pytest.mark.parametrize("base", ["file", *SLOWER], indirect=True)
@pytest.mark.parametrize("hosts", [{"TRAININGS": "2"}], indirect=True)
def test_a_second_training_is_corrected_and_recorded_on_both_hosts_after_the_same_step(luff, hosts):
    done = luff(
        "request", "lower_lr", hosts.urls[0], "--factor", 0.5, "--key", hosts.key, "--json", "--wait-s", 120
    )
    step = json.loads(done.stdout)["train_step"]
    hosts.wait(lambda: all(0.025 in rates(hosts, rank) for rank in range(2)))
    assert rates(hosts, 0) == rates(hosts, 1) == {0.05: 0, 0.025: step}
    # One that came too late is made again.
    asked = [r for r in hosts.records(1) if r["kind"] == "lower_lr" and r["phase"] == "propose"][-1]
    assert asked["body"]["factor"] == 0.5
    more = ("--include", "weight", "--for-steps", 5)
    done = luff("request", "capture", hosts.urls[1], *more, "--key", hosts.key, "--json", "--wait-s", 120)
    step = json.loads(done.stdout)["train_step"]

    def committed(rank):
        return [
            r["train_step"] for r in hosts.records(rank) if r["kind"] == "capture" and r["phase"] == "commit"
        ]

    hosts.wait(lambda: committed(0) and committed(1))  # each reads the decision by itself
    assert committed(0) == committed(1) == [step]


@pytest.mark.thorough
@pytest.mark.parametrize("base", ["file", *SLOWER], indirect=True)
@pytest.mark.parametrize("hosts", [{"UNWILLING": "1"}], indirect=True)
def test_a_rate_that_one_host_cannot_lower_is_lowered_on_none(luff, hosts):
    done = luff("request", "lower_lr", hosts.urls[0], "--factor", 0.5, "--key", hosts.key, "--json", "--wait-s", 120,
                expect=1)  # fmt: skip
    assert "has not opted in to lower_lr; no host does it" in json.loads(done.stdout)["why"]
    seen = [hosts.steps(rank) for rank in range(2)]
    hosts.wait(lambda: all(hosts.steps(rank) > seen[rank] for rank in range(2)))
    assert rates(hosts, 0) == rates(hosts, 1) == {0.05: 0}
