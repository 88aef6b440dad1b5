"""Copies of runs: what is removed comes back, they share their room, and no run holds up another."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import luff
import pytest
from bucket_copies import contents, copy_of
from luff import errors
from luff.remote import _mirror_note, _spool
from luff.remote._cache import Cache
from luff.remote._client import ask, connect, fetcher_root, open_run
from luff.remote._errors import Unreachable
from luff.remote._fetcher import Fetcher
from luff.remote._files import stream_of
from luff.remote._spool import Spool
from luff.remote._store import open_store
from luff.remote._uploader import Uploader


def copy_without_room(run, tmp_path):
    """Uploads 1 MiB of payload and copies it. Returns store, copy, its file, and the payload; no block may stay."""
    store = open_store(f"file://{tmp_path}/bucket")
    payload = secrets.token_bytes(1 << 20)
    run.append("w0000/d-000001.lfd", payload)
    uploader = Uploader(run, store)
    uploader.begin()
    uploader.flush("ended")
    spool, _ = copy_of(store, run, tmp_path / "copy")
    file = stream_of("w0000", "d-000001.lfd")
    spool._cache._most = 0
    return store, spool, file, payload


def test_a_block_that_is_asked_for_while_it_is_dropped_stays(run, tmp_path, monkeypatch):
    _, spool, file, payload = copy_without_room(run, tmp_path)
    cache = spool._cache
    cache.use(spool, file, 0, len(payload), now=0.0)  # long ago
    forget = spool.forget

    def ask_first(*block):
        cache._most = 1 << 30
        spool.need(file, 0, len(payload))
        return forget(*block)

    monkeypatch.setattr(spool, "forget", ask_first)
    cache.evict()
    assert Path(spool.folder, file.path).read_bytes() == payload


def test_a_run_whose_bucket_hangs_holds_up_no_other_that_needs_room(run, tmp_path, monkeypatch):
    store, spool, file, payload = copy_without_room(run, tmp_path)
    cache = spool._cache
    asks, answers = threading.Event(), threading.Event()

    def hang(*_):
        asks.set()
        assert answers.wait(60)
        raise Unreachable("the network is away")

    def refresh():
        with pytest.raises(Unreachable):
            spool.refresh()

    with monkeypatch.context() as patch:
        patch.setattr(store, "get", hang)
        look = threading.Thread(target=refresh)
        look.start()
        assert asks.wait(60)
        cache.use(spool, file, 0, len(payload), now=0.0)  # long ago
        evict = threading.Thread(target=cache.evict)
        evict.start()
        evict.join(30)
        held_up = evict.is_alive()
        answers.set()
        look.join()
        evict.join()
    assert not held_up
    assert cache.holds(spool, file, 0)  # it is counted until it is dropped
    assert Path(spool.folder, file.path).read_bytes() == payload
    cache.use(spool, file, 0, len(payload), now=0.0)
    cache.evict()
    assert not cache.holds(spool, file, 0)
    assert Path(spool.folder, file.path).read_bytes() == bytes(len(payload))


def test_of_a_copy_that_rules_judge_only_what_changed_is_written(run, store, tmp_path, monkeypatch):
    run.append("w0000/m-000001.lfm", b"rows")
    run.append("w0000/d-000001.lfd", b"values")
    uploader = Uploader(run, store)
    uploader.begin()
    uploader.flush()
    spool = Spool(
        str(tmp_path / "copy"), f"{store.url}/{run.run_id}", store, run.run_id, "/socket",
        Cache(1 << 20), ThreadPoolExecutor(2), judged_here=True,
    )  # fmt: skip
    spool.open()
    mirror, rows = tmp_path / "copy/mirror.json", tmp_path / "copy/w0000/m-000001.lfm"

    def flushed(state="live"):
        run.append("w0000/m-000001.lfm", b", more")
        uploader.flush(state)
        before = mirror.stat().st_ino
        assert spool.refresh()
        assert rows.read_bytes() == (run.path / "w0000/m-000001.lfm").read_bytes()
        return mirror.stat().st_ino != before

    monkeypatch.setattr(_mirror_note, "_TELL_NS", 1 << 60)
    assert not spool.refresh()
    assert not flushed()  # but for times and counts it says the same
    monkeypatch.setattr(_mirror_note, "_TELL_NS", 1)
    assert flushed()
    monkeypatch.setattr(_mirror_note, "_TELL_NS", 1 << 60)
    run.append("w0001/m-000001.lfm", b"of another worker")
    assert flushed()
    spool._note._times = [
        spool.heads.hosts[0].manifest.host_unix_ns + (1 << 61)
    ]  # of a clock that was set back since
    assert flushed()
    rows.unlink()
    monkeypatch.setattr(_spool, "_CHECK_S", 0.0)
    assert not flushed()  # what somebody removed comes back
    assert flushed("ended")
    assert json.loads(mirror.read_text())["ended"]


def test_a_copy_that_cannot_be_written_is_explained(run, tmp_path):
    base = f"file://{tmp_path}/bucket"
    uploader = Uploader(run, open_store(base))
    uploader.begin()
    uploader.flush("ended")
    folder = Path(fetcher_root()) / hashlib.sha256(base.encode()).hexdigest()[:16]
    folder.write_text("in the way")
    with pytest.raises(Unreachable, match=r"cannot be written \(.*LUFF_CACHE"):
        open_run(f"{base}/{run.run_id}")


def test_a_fetcher_that_ends_while_it_is_asked_is_started_anew(run, tmp_path, monkeypatch):
    base = f"file://{tmp_path}/bucket"
    uploader = Uploader(run, open_store(base))
    uploader.begin()
    uploader.flush("ended")
    dying = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    monkeypatch.chdir(fetcher_root())  # a socket's own path is short
    dying.bind("socket")
    dying.listen()

    def end():
        dying.accept()[0].close()
        dying.close()

    ends = threading.Thread(target=end)
    ends.start()
    assert Path(open_run(f"{base}/{run.run_id}"), "run.json").exists()
    ends.join()


def test_a_fetcher_that_cannot_be_started_is_explained(tmp_path, monkeypatch):
    """As where the disk is full, or there are no more descriptors."""
    url = f"file://{tmp_path}/bucket/{secrets.token_hex(16)}"
    start = Path(fetcher_root(), "start")
    start.mkdir()
    with pytest.raises(Unreachable, match=r"cannot be written \(Is a directory\).*LUFF_CACHE"):
        open_run(url)
    start.rmdir()

    def no_process(*_):
        raise OSError(errno.ENFILE, "Too many open files in system")

    monkeypatch.setattr(subprocess.Popen, "_execute_child", no_process)
    with pytest.raises(errors.UnavailableError, match=r"\(Too many open files in system\)"):
        luff.open_trial(url)


@pytest.mark.parametrize("killed", [False, True])
def test_copies_of_several_fetchers_share_the_room(run, tmp_path, monkeypatch, own_cache, killed):
    monkeypatch.setenv("LUFF_CACHE_BYTES", str(1 << 20))
    base, size = f"file://{tmp_path}/bucket", 2 << 20
    for number in range(3):
        run = type(run)(tmp_path / f"run{number}")
        run.append("w0000/m-000001.lfm", b"row")
        run.append("w0000/d-000001.lfd", secrets.token_bytes(size))
        uploader = Uploader(run, open_store(base))
        uploader.begin()
        uploader.flush("ended")
        path = open_run(f"{base}/{run.run_id}")
        wanted = {"op": "payload", "path": path, "worker": 0, "file": 1, "from": 0, "bytes": size}
        with connect(fetcher_root()) as connection:
            ask(connection, wanted)
            if killed:
                peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                os.kill(struct.unpack("3i", peer)[0], signal.SIGKILL)
                assert connection.recv(1) == b""
        while not killed and list(own_cache.glob("*/socket")):
            time.sleep(0.02)  # until the fetcher has ended
    payload = list(own_cache.glob("*/*/*/w0000/d-*"))
    assert len(payload) == 3
    assert sum(file.stat().st_blocks * 512 for file in payload) <= size + (1 << 20)
    if killed:
        Path(fetcher_root(), "socket").unlink()


def test_a_copy_that_was_removed_while_it_is_served_is_made_again(run, store, tmp_path):
    run.append("w0000/m-000001.lfm", b"row")
    run.append("w0000/d-000001.lfd", b"values")
    uploader = Uploader(run, store)
    uploader.begin()
    uploader.flush("ended")
    spool, copy = copy_of(store, run, tmp_path / "copy")
    shutil.rmtree(spool.folder)
    spool.open()
    assert Path(spool.folder, "mirror.json").exists()
    assert contents(spool) == copy == run.files()
    shutil.rmtree(spool.folder)
    run.append("w0000/m-000001.lfm", b"another row")
    uploader.flush("ended")
    spool.refresh()  # who follows it sees that first
    assert Path(spool.folder, "mirror.json").exists()
    assert contents(spool) == run.files()
    spool.open()
    assert contents(spool) == run.files()


def test_a_file_that_was_removed_from_a_copy_comes_back_whole(run, store, tmp_path):
    run.append("w0000/m-000001.lfm", b"row")
    run.append("w0000/m-000002.lfm", b"row of another segment")
    uploader = Uploader(run, store)
    uploader.begin()
    uploader.flush()
    spool, copy = copy_of(store, run, tmp_path / "copy")
    assert copy == run.files()
    for segment in Path(spool.folder, "w0000").iterdir():
        segment.unlink()
    run.append("w0000/m-000001.lfm", b"another row")  # the other one has no news
    uploader.flush()
    spool.refresh()
    assert contents(spool) == run.files()


def test_a_bucket_that_hangs_holds_up_no_look_at_another(tmp_path):
    hangs, seen = threading.Event(), threading.Event()
    looks = []

    class Slow:
        over = False

        def refresh(self):
            looks.append("slow")
            hangs.wait(60)

    class Fast(Slow):
        def refresh(self):
            seen.set()

    fetcher = Fetcher(str(tmp_path), cache_bytes=0, idle_s=1)
    fetcher._followed = {Slow(): 1, Fast(): 1}
    fetcher._look()
    assert seen.wait(30)
    seen.clear()
    while not seen.is_set():
        fetcher._look()
        seen.wait(0.01)
    hangs.set()
    fetcher._lookers.shutdown()
    assert looks == ["slow"]
