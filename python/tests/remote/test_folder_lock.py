"""Conditional puts into a folder: who is stopped in one keeps nobody from theirs, and overwrites nothing afterwards."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from luff.remote import _folder_lock
from luff.remote._errors import Conflict, Refused, Unreachable
from luff.remote._store import open_store

# Stops itself before or after the call that is named, inside the first put. Says how that ended.
STOPPED = """
import fcntl, os, signal, sys
from luff.remote._errors import Conflict
from luff.remote._store import open_store

base, key, etag, when, module, name = sys.argv[1:]
store = open_store(base)
place = sys.modules[module]
real, stopped = getattr(place, name), []

def instead(*arguments, **named):
    if when == "before" and not stopped:
        stopped.append(os.kill(os.getpid(), signal.SIGSTOP))
    found = real(*arguments, **named)
    if when == "after" and not stopped:
        stopped.append(os.kill(os.getpid(), signal.SIGSTOP))
    return found

setattr(place, name, instead)
try:
    (store.put_if(key, b"of the stopped one", etag) if etag else store.put_new(key, b"of the stopped one"))
    print("put")
except Conflict:
    print("conflict")
"""


def state_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_for(what):
    end = time.monotonic() + 120
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def base(tmp_path, monkeypatch):
    monkeypatch.setattr(_folder_lock, "PATIENCE_S", 0.2)
    return f"file://{tmp_path}/bucket"


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize(
    ("when", "module", "name", "was_put"),
    [
        ("after", "fcntl", "flock", False),
        ("before", "os", "pwrite", False),
        ("after", "os", "pwrite", False),
        ("before", "os", "replace", False),
        ("after", "os", "replace", True),
    ],
)
def test_a_process_that_is_stopped_in_a_put_holds_up_nobody(base, tmp_path, when, module, name, was_put, new):
    store = open_store(base)
    etag = "" if new else store.put_new("live/a/u0000", b"before")
    words = [sys.executable, "-c", STOPPED, base, "live/a/u0000", etag, when, module, name]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: state_of(process.pid) == "T")
        if was_put:
            with pytest.raises(Conflict):
                (
                    store.put_new("live/a/u0000", b"ours")
                    if new
                    else store.put_if("live/a/u0000", b"ours", etag)
                )
            etag = store.get("live/a/u0000", 99)[1]
            ours = store.put_if("live/a/u0000", b"ours", etag)
        elif new:
            ours = store.put_new("live/a/u0000", b"ours")
        else:
            ours = store.put_if("live/a/u0000", b"ours", etag)
        for number in range(20):  # and everybody else goes on, at once
            open_store(base).put_new(f"live/b/{number}", b"another")
        os.kill(process.pid, signal.SIGCONT)
        assert process.communicate(timeout=120)[0] == ("put\n" if was_put else "conflict\n")
    finally:
        process.kill()
        process.communicate()
    assert store.get("live/a/u0000", 99) == (b"ours", ours)
    store.put_if("live/a/u0000", b"next", ours)
    locks = [n for n in os.listdir(tmp_path / "bucket") if n.startswith(".luff-lock")]
    assert len(locks) == 1
    assert not list((tmp_path / "bucket").rglob("*~"))


# Adds one, again and again; a line for each number that it has put.
COUNTS = """
import random, sys
from luff.remote import _folder_lock
from luff.remote._errors import Conflict, Unreachable
from luff.remote._store import open_store

_folder_lock.PATIENCE_S = float(sys.argv[3])  # so short that locks are taken from those that are alive, too
_folder_lock._PAUSE_S = (0.0001, 0.0005)
store = open_store(sys.argv[1])
done = 0
while done < int(sys.argv[2]):
    data, etag = store.get("counter", 99)
    try:
        store.put_if("counter", b"%d" % (int(data) + 1), etag)
    except (Conflict, Unreachable):
        continue
    print(int(data) + 1, flush=True)
    done += 1
"""


@pytest.mark.parametrize("patience_s", [0.0, 0.002])
def test_no_put_is_lost_or_done_twice_however_often_locks_are_taken(base, tmp_path, patience_s):
    store = open_store(base)
    store.put_new("counter", b"0")
    words = [sys.executable, "-c", COUNTS, base, "60", str(patience_s)]
    told = [(tmp_path / f"told{i}").open("w+") for i in range(4)]
    processes = [subprocess.Popen(words, stdout=out) for out in told]
    draw = random.Random(1)
    try:
        while running := [p for p in processes if p.poll() is None]:
            one = draw.choice(running)
            os.kill(one.pid, signal.SIGSTOP)
            time.sleep(draw.uniform(0, 0.01))
            os.kill(one.pid, signal.SIGCONT)
            time.sleep(draw.uniform(0, 0.01))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    numbers = []
    for out in told:
        out.seek(0)
        numbers += [int(line) for line in out]
        out.close()
    assert [p.returncode for p in processes] == [0] * 4
    assert sorted(numbers) == list(range(1, 241))
    assert store.get("counter", 99)[0] == b"240"


def test_threads_wait_for_each_other(base):
    """Each of them opens the lock anew, so that it is no other's."""
    from concurrent.futures import ThreadPoolExecutor

    store = open_store(base)
    store.put_new("counter", b"0")

    def add(_):
        while True:
            data, etag = store.get("counter", 99)
            try:
                store.put_if("counter", b"%d" % (int(data) + 1), etag)
            except Conflict:
                continue
            return int(data) + 1

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(add, range(60))) == list(range(1, 61))


def test_what_a_stranger_wrote_into_the_lock_removes_nothing(base, tmp_path):
    store = open_store(base)
    store.put("runs/a", b"an object")
    outside = tmp_path / f"thesis.{'0' * 16}~"
    outside.write_text("years")
    for number, said in enumerate(
        [
            b"runs/a",
            f"../{outside.name}".encode(),
            str(outside).encode(),
            b"\xff\0",
            b"x" * 100_000,
            b"",
            b"runs/a/x.0123456789abcdef~",
            b"x" * 300 + b".0123456789abcdef~",
        ]
    ):
        older = tmp_path / "bucket" / (f".luff-lock-{number}" if number else ".luff-lock")
        older.write_bytes(said + b"\n")
        (tmp_path / "bucket" / f".luff-lock-{number + 1}").touch()
        store.put_new(f"runs/new{number}", b"new")
        assert not older.exists()
    for make in (os.mkfifo, lambda path: os.symlink(outside, path)):  # older locks that are none
        number += 1
        older = tmp_path / f"bucket/.luff-lock-{number}"
        older.unlink(missing_ok=True)
        make(older)
        (tmp_path / f"bucket/.luff-lock-{number + 1}").touch()
        store.put_new(f"runs/new{number}", b"new")
        assert not os.path.lexists(older)
    assert store.get("runs/a", 99)[0] == b"an object"
    assert outside.read_text() == "years"


def test_who_was_stopped_for_longer_than_it_waits_tries_once_more(base, monkeypatch):
    store = open_store(base)
    store.put_new("runs/a", b"an object")
    clock, real = [0.0], _folder_lock._is_newest
    monkeypatch.setattr(_folder_lock.time, "monotonic", lambda: clock[0])

    def stopped(*arguments):
        if clock[0] == 0.0:
            clock[0] = 1000.0
            return False  # another one has made a newer lock meanwhile
        return real(*arguments)

    monkeypatch.setattr(_folder_lock, "_is_newest", stopped)
    store.put_new("runs/b", b"new")


def test_a_lock_that_is_no_file_is_refused(base, tmp_path):
    store = open_store(base)
    store.put("runs/a", b"an object")
    os.mkfifo(tmp_path / "bucket/.luff-lock")
    with pytest.raises(Refused, match="the lock of the bucket is no file"):
        store.put_new("runs/b", b"new")
    os.unlink(tmp_path / "bucket/.luff-lock")
    os.symlink("/etc/passwd", tmp_path / "bucket/.luff-lock")
    with pytest.raises((Refused, Unreachable)):
        store.put_new("runs/b", b"new")
