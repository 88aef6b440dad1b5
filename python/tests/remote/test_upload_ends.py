"""An upload that ends before its run does is begun again: under `luff run`, and beside a training without it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import luff as package
import pytest
from bucket_copies import copy_of, set_time
from conftest import TRAIN
from luff._upload_beside import upload_beside
from luff._verbs import sync
from luff.remote import _upload_key, _uploader
from luff.remote._head import parse_head_untrusted
from luff.remote._store import open_store
from luff.remote._uploader import Fenced, Uploader

OWNER, OTHER = "a" * 16, "b" * 16
PACKAGE = Path(package.__file__).parent


def wait_for(what):
    end = time.monotonic() + 200
    while not (found := what()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return found


def head_in(bucket):
    """The manifest of the only run in a folder that is a bucket; None if there is none yet."""
    for path in bucket.glob("live/*/*/u0000"):
        return parse_head_untrusted(path.read_bytes())[0]
    return None


def uploads_of(run):
    """Process ids of a run's uploads, without what keeps them or what they start (it shows their words at first)."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
            state, parent = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if b"sync" in words and os.fsencode(run) in words and state != "Z":
            found[int(pid)] = int(parent)
    return [pid for pid, parent in found.items() if parent not in found]


@pytest.fixture
def job(luff, tmp_path, monkeypatch):
    """Starts a training under `luff run --sync`. It goes on until the file `enough` is there."""
    monkeypatch.setenv("LUFF_UPLOAD_PAUSE_S", "0")
    script = tmp_path / "train.py"
    script.write_text(
        TRAIN.replace(
            "    time.sleep(pause)\n",
            "    time.sleep(pause)\n    import os\n    if os.path.exists('enough'): break\n",
        )
    )
    jobs = []

    def start(*options, environment=None):
        words = [
            luff.executable,
            "run",
            "--rules",
            "none",
            "--run",
            tmp_path / "run",
            "--sync",
            f"file://{tmp_path}/bucket",
        ]
        words += [*options, "--", sys.executable, script, 1_000_000, 0.01, 0.1]
        job = subprocess.Popen(
            list(map(str, words)), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **(environment or {})},
        )  # fmt: skip
        jobs.append(job)
        return job

    yield start
    (tmp_path / "enough").touch()  # the training outlives its supervisor
    for job in jobs:
        job.kill()
        job.communicate()
    for pid in uploads_of(tmp_path / "run"):
        os.kill(pid, signal.SIGKILL)


def ended(job, tmp_path):
    """What a job has said, once it was let go."""
    (tmp_path / "enough").touch()
    said = job.communicate(timeout=300)[1]
    assert job.returncode == 0, said
    return said


@pytest.mark.parametrize(
    ("number", "times"), [(signal.SIGKILL, 1), pytest.param(signal.SIGTERM, 2, marks=pytest.mark.thorough)]
)
def test_an_upload_that_is_killed_is_begun_again_and_the_run_is_whole(luff, job, tmp_path, number, times):
    running, run, instances = job(), tmp_path / "run", []
    for _ in range(times):
        manifest = wait_for(lambda: (m := head_in(tmp_path / "bucket")) and m.instance not in instances and m)
        assert manifest.state == "live"
        instances.append(manifest.instance)
        (pid,) = uploads_of(run)
        os.kill(pid, number)
        wait_for(lambda pid=pid: uploads_of(run) not in ([], [pid]))
    wait_for(lambda: head_in(tmp_path / "bucket").instance not in instances)
    said = ended(running, tmp_path)
    assert len({instance[:16] for instance in instances}) == 1  # they know each other
    how = f"signal {number}" if number == signal.SIGKILL else "exit code 7"
    assert said.count(f"luff: the sync output has ended ({how}) and is begun again") == 1
    assert "uploads what is missing" not in said
    assert head_in(tmp_path / "bucket").state == "ended"
    url = f"file://{tmp_path}/bucket/{head_in(tmp_path / 'bucket').run_id}"
    with package.open_trial(run) as here, package.open_trial(url) as there:
        assert there.steps() == here.steps()
    assert luff("verify", url).returncode == 0
    word = "2 times" if times == 2 else "1 time"
    assert f"ended too early {word}, the last time" in luff("show", run).stdout
    told = json.loads(luff("show", run, "--json").stdout)["upload_ends"]
    assert (told["ends"], told["last"], told["again"]) == (times, how, True)


def test_one_that_was_killed_before_there_was_a_run_is_begun_again(luff, job, tmp_path):
    """What is said of it must not make the directory one that a training refuses."""
    running = job()
    (pid,) = wait_for(lambda: uploads_of(tmp_path / "run"))
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: head_in(tmp_path / "bucket"))
    ended(running, tmp_path)
    assert head_in(tmp_path / "bucket").state == "ended"
    assert "ended too early 1 time" in luff("show", tmp_path / "run").stdout


@pytest.mark.thorough  # its rules: src/cli/upload_ends_test.cc
def test_one_that_ends_at_once_again_and_again_is_given_up(luff, job, tmp_path):
    """A wrong installation: the check before the job finds nothing, and no upload lives."""
    broken = tmp_path / "broken"
    shutil.copytree(PACKAGE / "_bootstrap", broken / "luff/_bootstrap")
    for name in os.listdir(PACKAGE):
        if name not in ("_bootstrap", "remote"):
            os.symlink((PACKAGE / name).resolve(), broken / "luff" / name)
    shutil.copytree(PACKAGE / "remote", broken / "luff/remote")
    with (broken / "luff/remote/_live.py").open("a") as file:
        file.write(
            "\nimport sys\nif '--try' not in sys.argv:\n    raise RuntimeError('a wrong installation')\n"
        )
    running = job(environment={"LUFF_BOOTSTRAP": str(broken / "luff/_bootstrap")})
    note = tmp_path / "run/sync/ends.json"
    wait_for(lambda: note.exists() and not json.loads(note.read_text())["again"])
    said = ended(running, tmp_path)  # the training has not noticed
    by_hand = f"`luff sync {tmp_path}/run file://{tmp_path}/bucket` uploads what is missing"
    assert said.count("luff: the sync output has ended") == 2, said
    assert (
        f"the sync output has ended 9 times, the last time so: exit code 1; it is not begun again: {by_hand}"
        in said
    )
    assert not (tmp_path / "bucket").exists()
    assert "ended too early 9 times, the last time" in luff("show", tmp_path / "run").stdout
    assert by_hand in luff("show", tmp_path / "run").stdout
    luff("sync", tmp_path / "run", f"file://{tmp_path}/bucket")
    assert "too early" not in luff("show", tmp_path / "run").stdout
    assert head_in(tmp_path / "bucket").state == "ended"


@pytest.mark.thorough
def test_what_was_taken_over_is_not_begun_again(job, tmp_path):
    running = job()
    wait_for(lambda: head_in(tmp_path / "bucket"))
    (pid,) = uploads_of(tmp_path / "run")
    other = Uploader(str(tmp_path / "run"), open_store(f"file://{tmp_path}/bucket"))
    other.begin()
    wait_for(lambda: pid not in uploads_of(tmp_path / "run"))
    said = ended(running, tmp_path)
    assert "has taken the run over" in said
    assert "luff: the sync output has ended (exit code 4); `luff sync " in said
    assert not uploads_of(tmp_path / "run")
    assert head_in(tmp_path / "bucket").state == "live"  # that of the other one


# ---- The rules between uploads of one owner ----


def begun(run, base, **options):
    uploader = Uploader(str(run.path), open_store(base), **options)
    uploader.begin()
    return uploader


def test_one_that_is_begun_again_goes_on_at_once(run, base, tmp_path, monkeypatch):
    set_time(monkeypatch, sleep=lambda _: pytest.fail("it has waited"))
    run.append("w0000/m-000001.lfm", b"rows")
    begun(run, base, owner=OWNER).flush()
    run.append("w0000/m-000001.lfm", b"more")
    again = begun(run, base, owner=OWNER, again=True)
    again.flush("ended")
    assert copy_of(open_store(base), run, tmp_path / "copy")[1] == run.files()


def test_one_that_is_begun_again_leaves_the_run_to_who_uploads_it_now(run, base, monkeypatch):
    begun(run, base, owner=OWNER)
    other = begun(run, base, owner=OTHER)  # took it over while nobody was there
    set_time(monkeypatch, sleep=lambda _: (run.append("aside.jsonl", b"{}\n"), other.flush()))
    with pytest.raises(Fenced, match="not begun again"):
        begun(run, base, owner=OWNER, again=True)
    other.flush()  # it has not noticed


@pytest.mark.parametrize("state", ["live", "ended"])
def test_one_that_is_begun_again_takes_the_run_from_a_dead_one(run, base, monkeypatch, state):
    """That of an earlier job, if it was killed before it had put a head itself."""
    begun(run, base, owner=OTHER).flush(state)
    clock, waited = [time.monotonic()], []
    set_time(
        monkeypatch,
        monotonic=lambda: clock[0],
        sleep=lambda s: (waited.append(s), clock.__setitem__(0, clock[0] + s)),
    )
    begun(run, base, owner=OWNER, again=True)
    assert (sum(waited) > _uploader.HEARTBEAT_S) is (state == "live")
    assert sum(waited) < 60


# ---- Beside a training without `luff run` ----


@pytest.fixture
def live_run(run, monkeypatch):
    """A run that this process writes, as uploads see it."""
    import struct

    from luff.remote._live import _namespace, boot_id

    monkeypatch.setenv("LUFF_UPLOAD_PAUSE_S", "0")
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    page = bytearray(192)
    boot = boot_id()
    struct.pack_into(
        "<8sIIQQQQQ",
        page,
        0,
        b"LUFFLIVE",
        2,
        0,
        0,
        int(boot[:16], 16),
        int(boot[16:], 16),
        os.getpid(),
        started,
    )
    struct.pack_into("<I", page, 76, _namespace())
    run.append("w0000/live", bytes(page))
    run.append("w0000/m-000001.lfm", b"rows")
    yield run
    if (run.path / "w0000/live").exists():
        let_go(run)
    for pids in (kept(run), uploads_of(run.path)):  # who keeps one begins it again
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


def let_go(run):
    """The training has ended."""
    page = run.path / "w0000/live"
    page.write_bytes(page.read_bytes()[:176] + b"\3" + page.read_bytes()[177:])


def kept(run):
    """Process ids of what keeps uploads of a run."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.endswith(b"_detach.py") for word in words) and os.fsencode(run.path) in words:
            found.append(int(pid))
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_beside_a_training_an_upload_that_is_killed_is_begun_again(luff, live_run, tmp_path, number):
    bucket = tmp_path / "bucket"
    upload_beside(str(live_run.path), f"file://{bucket}")
    before = wait_for(lambda: head_in(bucket)).instance
    (pid,) = uploads_of(live_run.path)
    if number == signal.SIGTERM:  # a scheduler tells all
        wait_for(lambda: kept(live_run))
        os.kill(kept(live_run)[0], number)
    os.kill(pid, number)
    after = wait_for(lambda: (m := head_in(bucket)) and m.instance != before and m)
    assert (after.instance[:16], after.state) == (before[:16], "live")
    assert len(uploads_of(live_run.path)) == 1
    live_run.append("w0000/m-000001.lfm", b"the last")
    let_go(live_run)
    wait_for(lambda: head_in(bucket).state == "ended")
    wait_for(lambda: not kept(live_run))
    assert not uploads_of(live_run.path)
    log = (live_run.path / "sync/log").read_text()
    assert log.count("is begun again") == 1
    files = copy_of(open_store(f"file://{bucket}"), live_run, tmp_path / "copy")[1]
    assert files["w0000/m-000001.lfm"] == b"rowsthe last"


@pytest.fixture
def told_to_end(live_run, tmp_path, monkeypatch):
    """Exit code and head of an upload that is told to end while its training lives.

    `meanwhile` is called with it, and with what lets the training go, before its last flush.
    """
    monkeypatch.setattr(sync.signal, "signal", lambda *_: None)
    monkeypatch.setattr(sync, "_be_modest", lambda: None)
    real, told = Uploader.flush, []

    def upload(meanwhile):
        words = ["--owner", OWNER, "--flush", "0.1", str(live_run.path), f"file://{tmp_path}/bucket"]
        one = sync.Sync(sync._parser().parse_args(words))

        def flush(*given, **named):
            if told == [1]:
                meanwhile(one, lambda: let_go(live_run))
            done = real(*given, **named)
            if not told:
                one._signals.put(None)
                wait_for(one._closed.is_set)
            told.append(1)
            return done

        monkeypatch.setattr(Uploader, "flush", flush)
        return one.run(), head_in(tmp_path / "bucket").state

    return upload


def test_one_that_is_told_to_end_leaves_the_run_to_the_next(told_to_end):
    assert told_to_end(lambda *_: None) == (sync.AGAIN, "live")


def test_one_that_is_told_to_end_just_before_its_run_does_uploads_the_rest(told_to_end):
    """A signal to all of a job: nobody begins it again once the training has ended."""
    assert told_to_end(lambda _, let_go: let_go()) == (sync.OK, "ended")


def test_one_that_is_told_to_end_and_whose_keeper_is_dead_uploads_the_rest(told_to_end):
    assert told_to_end(lambda upload, _: setattr(upload, "_parent", -1)) == (sync.OK, "ended")


def test_beside_a_training_that_ignores_its_children_uploads_are_kept_too(live_run, tmp_path):
    """What a process ignores, its children ignore; then nobody could wait for them."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        words = [
            sys.executable,
            "-I",
            PACKAGE / "_verbs/_detach.py",
            live_run.path,
            f"file://{tmp_path}/bucket",
        ]
        subprocess.Popen(list(map(str, words))).wait()
    finally:
        signal.signal(signal.SIGCHLD, before)
    first = wait_for(lambda: head_in(tmp_path / "bucket")).instance
    (pid,) = uploads_of(live_run.path)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: head_in(tmp_path / "bucket").instance != first)
    let_go(live_run)
    wait_for(lambda: not kept(live_run))
    assert head_in(tmp_path / "bucket").state == "ended"


@pytest.fixture
def kept_with(live_run, tmp_path):
    """Keeps uploads by a program that stands for `luff sync`, until they are over. Returns what the run says of it."""
    shutil.rmtree(live_run.path / "w0000")
    (live_run.path / "sync").mkdir()
    verbs = tmp_path / "verbs"
    verbs.mkdir()
    shutil.copy(PACKAGE / "_verbs/_detach.py", verbs)

    def keep(program):
        (verbs / "_start.py").write_text(program)
        words = [sys.executable, "-I", verbs / "_detach.py", live_run.path, f"file://{tmp_path}/bucket"]
        subprocess.run(list(map(str, words)), check=True)
        wait_for(lambda: not kept(live_run))
        return json.loads((live_run.path / "sync/ends.json").read_text())

    return keep


@pytest.mark.parametrize(
    ("code", "told"),
    [(0, (1, "exit code 1", True)), (4, (1, "exit code 1", True)), (5, (1, "exit code 5", False))],
)
def test_beside_a_training_one_that_is_begun_again_and_ends_for_good_says_so(kept_with, code, told):
    found = kept_with(f"import sys\nsys.exit({code} if '--again' in sys.argv else 1)\n")
    assert (found["ends"], found["last"], found["again"]) == told


def test_what_keeps_an_upload_does_not_hide_signals_from_it(kept_with):
    program = "import os, signal, sys\n'--again' in sys.argv and sys.exit(0)\nos.kill(os.getpid(), signal.SIGTERM)\n"
    assert kept_with(program)["last"] == "signal 15"


def test_beside_a_training_who_can_read_the_run_is_noted_before_its_upload_begins(run, monkeypatch):
    """By hand it goes on, perhaps without the environment of the training: never in the clear."""
    monkeypatch.setenv("LUFF_BUCKET_ENCRYPT_TO", "key:a-recipient")
    monkeypatch.setattr(_upload_key, "parse_recipients", lambda _: [])
    begun = []
    monkeypatch.setattr(
        subprocess,
        "run",
        lambda *_, **__: (
            begun.append((run.path / "sync/encrypt_to").read_text()) or subprocess.CompletedProcess([], 0)
        ),
    )
    upload_beside(str(run.path), "file:///bucket")
    assert begun == ["key:a-recipient"]


def test_beside_a_training_one_that_always_fails_is_given_up(live_run, kept_with, tmp_path):
    told = kept_with("raise RuntimeError('a wrong installation')\n")
    assert (told["ends"], told["last"], told["again"]) == (9, "exit code 1", False)
    log = (live_run.path / "sync/log").read_text().splitlines()
    assert [line for line in log if line.startswith("luff: sync:")] == [
        "luff: sync: ended (exit code 1) and is begun again",
        f"luff: sync: ended 9 times, the last time so: exit code 1; it is not begun again: `luff sync {live_run.path} "
        f"file://{tmp_path}/bucket` goes on",
    ]
