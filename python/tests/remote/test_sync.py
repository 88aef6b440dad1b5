"""Uploading: what is in the bucket is the run, whatever happens to the uploader."""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import azure_server
import gcs_server
import pytest
from bucket_copies import clock_of_uploader, contents, copy_of
from luff.remote import _uploader
from luff.remote._cache import Cache, Gone, Later
from luff.remote._errors import Conflict, Refused, Unreachable
from luff.remote._files import File
from luff.remote._head import parse_head_untrusted
from luff.remote._live import any_writes
from luff.remote._spool import Spool
from luff.remote._store import FolderStore, open_store
from luff.remote._uploader import Fenced, Uploader

START = Path(_uploader.__file__).parents[1] / "_verbs" / "_start.py"


def test_a_finished_run_is_mirrored_byte_for_byte(run, store, tmp_path):
    run.append("w0000/m-000001.lfm", b"rows " * 100_000)
    run.append("w0000/d-000001.lfd", random.Random(0).randbytes(20 << 20))  # windows, and a rest
    run.append("w0001/m-000001.lfm", b"x")
    run.append("h0007/m-000001.lfm", b"samples")
    run.append("rules/luff/findings.jsonl", b'{"rule": "NaN"}\n')
    run.append("control/000001.json", b"{}")
    uploader = Uploader(str(run.path), store)
    uploader.begin()
    assert uploader.flush("ended")
    uploader.end()
    spool, copy = copy_of(store, run, tmp_path / "copy")
    assert copy == run.files()
    assert spool.over


def test_a_run_that_grows_is_seen_to_grow(run, store, tmp_path):
    draw = random.Random(2)
    uploader = Uploader(str(run.path), store)
    uploader.begin()
    spool = None
    for _ in range(12):
        run.append("w0000/d-000001.lfd", draw.randbytes(draw.choice((0, 300, 400_000, 3 << 20))))
        run.append("w0000/m-000001.lfm", draw.randbytes(draw.choice((0, 100, 300_000))))
        run.append("rules/luff/findings.jsonl", b"line\n")
        uploader.flush()
        if spool is None:
            spool, copy = copy_of(store, run, tmp_path / "copy")
        else:
            spool.refresh()
            copy = contents(spool)
        assert copy == run.files()
    assert not spool.over


def test_small_parts_of_a_full_window_become_one(run, tmp_path, monkeypatch):
    store = FolderStore(f"file://{tmp_path}/bucket", str(tmp_path / "bucket"))
    monkeypatch.setattr(_uploader, "_SUPERSEDED_S", 0.0)
    uploader = Uploader(str(run.path), store)
    uploader.begin()
    monkeypatch.setattr(_uploader, "MAX_PAYLOAD_TAIL", 0)
    for _ in range(40):
        run.append("w0000/d-000001.lfd", secrets.token_bytes(300_000))
        uploader.flush()
    parts = sorted((tmp_path / "bucket" / "runs" / run.run_id / "w0000" / "d-000001.lfd").iterdir())
    assert "0-800000" in [part.name for part in parts]
    assert len(parts) < 20  # the 27 small ones of the first window are gone
    _, copy = copy_of(store, run, tmp_path / "copy")
    assert copy == run.files()


def test_the_etag_of_a_put_is_that_of_the_object(store):
    etag = store.put_new("object", b"small")
    etag = store.put_if("object", b"another", etag)
    assert store.get("object", 100, etag) is None


def test_nothing_new_is_not_put(run, store):
    run.append("w0000/m-000001.lfm", b"rows")
    uploader = Uploader(str(run.path), store)
    uploader.begin()
    assert uploader.flush()
    asked = store.requests
    assert not uploader.flush()
    assert store.requests == asked


def test_rows_can_be_flushed_alone(run, tmp_path, monkeypatch):
    """What is done first when time is short: payload may take longer than there is."""
    store = open_store(f"file://{tmp_path}/bucket")
    uploader = Uploader(run, store)
    uploader.begin()
    run.append("w0000/m-000001.lfm", b"row")
    run.append("w0000/d-000001.lfd", secrets.token_bytes(9 << 20))
    put = store.put

    def no_payload(key, data):
        assert "/d-" not in key
        put(key, data)

    with monkeypatch.context() as patch:
        patch.setattr(store, "put", no_payload)
        assert uploader.flush("draining", rows_only=True)
    assert uploader.behind
    files = parse_head_untrusted(store.get(uploader._head_key, 1 << 20)[0])[0].files
    assert [file.path for file, entry in files.items() if entry.bytes] == ["w0000/m-000001.lfm"]
    uploader.flush("ended")
    assert copy_of(store, run, tmp_path / "copy")[1] == run.files()


def keys_put(store, monkeypatch):
    """The keys of what is put, from now on."""
    keys = []

    def noting(then):
        def put(key, data, *etag):
            keys.append((key, len(data)))
            return then(key, data, *etag)

        return put

    for name in ("put", "put_if"):
        monkeypatch.setattr(store, name, noting(getattr(store, name)))
    return keys


def test_new_payload_travels_in_one_head_and_then_as_a_part(run, tmp_path, monkeypatch):
    """Half as many parts as flushes, each byte put at most twice, and each flush shows all."""
    store = open_store(f"file://{tmp_path}/bucket")
    uploader, draw = Uploader(run, store), random.Random(3)
    uploader.begin()
    spool, keys = None, keys_put(store, monkeypatch)
    clock = clock_of_uploader(monkeypatch)
    for _ in range(20):
        clock[0] += 2.0
        run.append("w0000/d-000001.lfd", draw.randbytes(1_000_000))
        run.append("w0000/m-000001.lfm", draw.randbytes(100_000))
        uploader.flush()
        if spool is None:
            spool, copy = copy_of(store, run, tmp_path / "copy")
        else:
            spool.refresh()
            copy = contents(spool)
        assert copy == run.files()
    heads = [size for key, size in keys if key.startswith("live/")]
    payload = [size for key, size in keys if ".lfd/" in key]
    assert len(heads) == 20
    assert len(payload) <= 12  # the first tells how fast the store is
    assert sum(payload) + sum(heads) < 2.1 * 20 * 1_100_000
    assert max(heads) < 2 << 20
    uploader.flush("ended")
    assert copy_of(store, run, tmp_path / "whole")[1] == run.files()


def test_a_slow_network_gets_payload_in_parts(run, tmp_path, monkeypatch):
    """A head must not be held up by payload: rows come with it."""
    store = open_store(f"file://{tmp_path}/bucket")
    uploader = Uploader(run, store)
    uploader.begin()
    keys = keys_put(store, monkeypatch)
    clock = clock_of_uploader(monkeypatch)
    for _ in range(4):
        clock[0] += 2.0
        uploader._bytes_per_s = 0.5e6
        run.append("w0000/d-000001.lfd", secrets.token_bytes(600_000))
        uploader.flush()
    assert len([key for key, _ in keys if ".lfd/" in key]) == 4
    assert max(size for key, size in keys if key.startswith("live/")) < 10_000


@pytest.mark.parametrize("fails", ["put", "put_if"])
def test_what_a_failed_flush_left_is_visible_after_the_next(run, tmp_path, monkeypatch, fails):
    """Also where nothing more is written: it need not wait for a heartbeat."""
    store = open_store(f"file://{tmp_path}/bucket")
    uploader = Uploader(run, store)
    uploader.begin()
    run.append("w0000/m-000001.lfm", b"row")
    run.append("w0000/d-000001.lfd", secrets.token_bytes(1 << 20))  # a part

    def away(*_):
        raise Unreachable("the network is away")

    with monkeypatch.context() as patch:
        patch.setattr(store, fails, away)
        with pytest.raises(Unreachable):
            uploader.flush()
    assert uploader.flush()
    assert not uploader.flush()
    assert copy_of(store, run, tmp_path / "copy")[1] == run.files()


def test_a_text_that_is_written_anew_replaces_the_old_one(run, store, tmp_path):
    run.append("rules/luff/findings.jsonl", b"old line\n" * 50)
    uploader = Uploader(str(run.path), store)
    uploader.begin()
    uploader.flush()
    spool, _ = copy_of(store, run, tmp_path / "copy")
    (run.path / "rules/luff/findings.jsonl").write_bytes(b"new\n")
    uploader.flush()
    spool.refresh()
    assert contents(spool) == run.files()


def test_a_text_that_was_removed_and_came_back_is_another_one(run, store, tmp_path):
    uploader = Uploader(run, store)
    uploader.begin()
    run.append("aside.jsonl", b"one\n")
    uploader.flush()
    spool, _ = copy_of(store, run, tmp_path / "copy")
    (run.path / "aside.jsonl").unlink()
    uploader.flush()
    run.append("aside.jsonl", b"another\n")  # longer
    uploader.flush()
    spool.refresh()
    assert contents(spool) == run.files()


def test_a_merged_segment_replaces_the_one_it_was(run, store, tmp_path):
    run.append("w0000/m-000001.lfm", b"all rows" * 1000)
    uploader = Uploader(str(run.path), store)
    uploader.begin()
    uploader.flush()
    spool, _ = copy_of(store, run, tmp_path / "copy")
    run.append("w0000/m-000001-1.lfm", b"merged rows")
    (run.path / "w0000/m-000001.lfm").unlink()
    uploader.flush()
    spool.refresh()
    assert contents(spool) == run.files()


def test_what_retention_deleted_stays_as_far_as_it_was_uploaded(run, store, tmp_path):
    data = random.Random(4).randbytes(9 << 20)
    run.append("w0000/d-000001.lfd", data)
    uploader = Uploader(str(run.path), store)
    uploader.begin()
    uploader.flush()
    (run.path / "w0000/d-000001.lfd").unlink()
    run.append("w0000/m-000001.lfm", b"retired")
    uploader.flush()
    spool, _ = copy_of(store, run, tmp_path / "copy")
    file = File("w", 0, "d", 1)
    spool.need(file, 0, 8 << 20)
    assert (tmp_path / "copy/w0000/d-000001.lfd").read_bytes()[: 8 << 20] == data[: 8 << 20]
    with pytest.raises(Gone):
        spool.need(file, 9 << 20, 1)
    with pytest.raises(Later):
        spool.need(File("w", 0, "d", 2), 0, 1)


def test_rows_go_first_where_payload_does_not_keep_up(run, store, tmp_path):
    uploader = Uploader(str(run.path), store, interval_s=0.2, max_bytes_per_s=20e6)
    uploader.begin()
    run.append("w0000/d-000001.lfd", bytes(64 << 20))
    run.append("w0000/m-000001.lfm", b"rows")
    uploader.flush()
    assert uploader.behind
    spool, _ = None, None
    pool = ThreadPoolExecutor(2)
    spool = Spool(
        str(tmp_path / "copy"),
        f"{store.url}/{run.run_id}",
        store,
        run.run_id,
        "/socket",
        Cache(1 << 30),
        pool,
    )
    spool.open()
    assert (tmp_path / "copy/w0000/m-000001.lfm").read_bytes() == b"rows"
    assert json.loads((tmp_path / "copy/mirror.json").read_text())["behind"] is True
    with pytest.raises(Later):
        spool.need(File("w", 0, "d", 1), 60 << 20, 100)


def test_the_later_of_two_uploaders_takes_the_run_over(run, base, tmp_path):
    first, second = Uploader(str(run.path), open_store(base)), Uploader(str(run.path), open_store(base))
    first.begin()
    run.append("w0000/m-000001.lfm", b"a" * 1000)
    first.flush()
    second.begin()
    run.append("w0000/m-000001.lfm", b"b" * 1000)
    with pytest.raises(Fenced, match="taken the run over"):
        first.flush()
    second.flush()
    _, copy = copy_of(open_store(base), run, tmp_path / "copy")
    assert copy == run.files()


class Lossy(FolderStore):
    """Conditional puts of a client whose answers get lost: they succeed, and are reported as refused."""

    wrong = 0  # how often a put is refused although nothing was written (a 409)

    def put_new(self, key, data):
        super().put_new(key, data)
        raise Conflict("exists")

    def put_if(self, key, data, etag):
        if self.wrong:
            self.wrong -= 1
            raise Conflict("409")
        super().put_if(key, data, etag)
        raise Conflict("changed")


def test_a_put_that_succeeded_and_is_reported_as_refused_is_believed_after_a_look(run, tmp_path):
    store = Lossy(f"file://{tmp_path}/bucket", str(tmp_path / "bucket"))
    run.append("w0000/m-000001.lfm", b"rows")
    uploader = Uploader(str(run.path), store)
    uploader.begin()
    uploader.flush()
    store.wrong = 2
    run.append("w0000/m-000001.lfm", b"more")
    uploader.flush()
    _, copy = copy_of(store, run, tmp_path / "copy")
    assert copy == run.files()


class Obedient(FolderStore):
    """Takes conditions and does not obey them."""

    def put_new(self, key, data):
        self.put(key, data)
        return "x"


def test_a_store_without_conditional_puts_is_refused_by_name(run, tmp_path):
    store = Obedient(f"file://{tmp_path}/bucket", str(tmp_path / "bucket"))
    with pytest.raises(Refused, match="does not obey them"):
        Uploader(str(run.path), store).begin()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"{}", "no Luff writes here"),
        (b"garbage", "no Luff"),
        (b'{"format": "luff-bucket", "version": 9}', "version 9"),
    ],
)
def test_a_prefix_of_others_or_of_a_later_version_is_left_alone(run, store, text, says):
    store.put("luff.json", text)
    with pytest.raises(Refused, match=says):
        Uploader(str(run.path), store).begin()


def test_a_head_that_was_removed_ends_the_upload(run, store):
    uploader = Uploader(str(run.path), store)
    uploader.begin()
    run.append("w0000/m-000001.lfm", b"rows")
    store.delete(f"live/{run.run_id[0]}/{run.run_id}/u0000")
    with pytest.raises(Refused, match="removed"):
        uploader.flush()


def test_answers_lost_on_the_way_lose_nothing(run, s3, proxy, tmp_path):
    """obstore repeats the put, and reports its own success as a conflict."""
    store = open_store(s3)
    uploader = Uploader(str(run.path), store)
    uploader.begin()
    lost = []

    def lose(method, path):
        if method == "PUT" and "/live/" in path and len(lost) < 3:
            lost.append(path)
            return True
        return False

    proxy.lose = lose
    for i in range(4):
        run.append("w0000/m-000001.lfm", bytes([i]) * 1000)
        try:
            uploader.flush()
        except Unreachable:
            uploader.flush()
    assert len(lost) == 3
    _, copy = copy_of(store, run, tmp_path / "copy")
    assert copy == run.files()


def test_a_store_that_wants_etags_without_quotes_gets_them(run, s3, proxy, tmp_path):
    """As Ceph's gateway does. Others go on to get them as they were told."""
    proxy.refuse = lambda headers: headers.get("If-Match", "").startswith('"')
    store = open_store(s3)
    uploader = Uploader(str(run.path), store)
    uploader.begin()
    for i in range(3):
        run.append("w0000/m-000001.lfm", bytes([i]) * 1000)
        uploader.flush()
    assert copy_of(store, run, tmp_path / "copy")[1] == run.files()
    # What has changed is still refused, and a second uploader is still noticed.
    etag = store.put_new("object", b"one")
    store.put("object", b"two")
    with pytest.raises(Conflict):
        store.put_if("object", b"three", etag)
    Uploader(str(run.path), open_store(s3)).begin()
    run.append("w0000/m-000001.lfm", b"more")
    with pytest.raises(Fenced):
        uploader.flush()


def test_no_secret_is_written_anywhere(run, base, tmp_path):
    uploader = Uploader(str(run.path), open_store(base))
    uploader.begin()
    run.append("w0000/m-000001.lfm", b"rows")
    uploader.flush("ended")
    copy_of(open_store(base), run, tmp_path / "copy")
    written = [f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()]
    store = open_store(base)
    for key in ("luff.json", f"live/{run.run_id[0]}/{run.run_id}/u0000", f"runs/{run.run_id}/run.json"):
        written.append(store.get(key, 1 << 20)[0])
    for secret in ("canary-secret", gcs_server.OWNER, azure_server.KEY):
        assert all(secret.encode() not in data for data in written)


# ---- The command ----


def sync(*words, **options):
    return subprocess.run(
        [sys.executable, "-I", START, "sync", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,
    )


def test_the_command_uploads_and_says_where(run, base, tmp_path):
    run.append("w0000/m-000001.lfm", b"rows")
    done = sync(run.path, base)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, f"{base}/{run.run_id}", "")
    head, _ = parse_head_untrusted(
        open_store(base).get(f"live/{run.run_id[0]}/{run.run_id}/u0000", 1 << 20)[0]
    )
    assert head.state == "ended"
    assert all(entry.tail == 0 for file, entry in head.files.items() if file.is_payload)


def test_the_run_says_what_its_upload_has_cost(run, s3, proxy):
    """As the bucket counts. Another upload goes on counting where the last head was, before the last few puts."""
    run.append("w0000/m-000001.lfm", b"rows")
    for left_out in (0, 4):
        assert sync(run.path, s3).returncode == 0
        cost = json.loads((run.path / "sync" / "u0000.json").read_text())
        assert cost["url"] == f"{s3}/{run.run_id}"
        puts = [size for method, _, size, _ in proxy.requests if method == "PUT"]
        assert len(puts) - left_out <= cost["puts"] <= len(puts)
        assert len(proxy.requests) - left_out <= cost["requests"] <= len(proxy.requests)
        assert cost["sent"] <= sum(puts)
    assert cost["sent"] > 0


@pytest.mark.parametrize(
    ("url", "code", "says"),
    [
        ("ftp://x/y", 2, "expected one of file://"),
        ("s3://", 2, "expected s3://BUCKET"),
        ("file://relative/x", 2, "absolute path"),
        ("file:///a/../b", 2, "no . and .."),
        ("s3://a\x1b[31m", 2, "control characters"),
        ("s3://user:word@bucket/x", 2, "credentials come from the environment"),
    ],
)
def test_a_wrong_url_is_explained(run, url, code, says):
    done = sync(run.path, url)
    assert done.returncode == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_no_run_is_explained(tmp_path):
    done = sync(tmp_path, f"file://{tmp_path}/bucket")
    assert done.returncode == 5
    assert "there is no run here" in done.stderr


def test_no_such_bucket_is_said_once_and_for_good(run, s3):
    done = sync(run.path, "s3://luff-nowhere-1/x")
    assert done.returncode == 5
    assert done.stderr.count("no such bucket") == 1


def test_a_bucket_that_does_not_answer_is_given_up_in_time(run, s3, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # nobody listens there
    begun = time.monotonic()
    done = sync("--drain", 2, run.path, s3)
    assert done.returncode == 6
    assert "goes on" in done.stderr
    assert time.monotonic() - begun < 100  # bounded: obstore's own attempts, and ours


def test_an_uploader_whose_job_has_gone_ends(run, tmp_path):
    """The supervisor holds the other end of its input; nobody else has to end it."""
    ends = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-I", START, "sync", "--until-closed", run.path, f"file://{tmp_path}/bucket"],
        stdin=ends[0],
    ) as child:
        os.close(ends[0])
        run.append("w0000/m-000001.lfm", b"rows")
        os.close(ends[1])
        assert child.wait(60) == 0
    _, copy = copy_of(open_store(f"file://{tmp_path}/bucket"), run, tmp_path / "copy")
    assert copy == run.files()


SIGNALLED = """
import os, signal, sys, threading
from luff._verbs import sync

class Interrupted(threading.Event):
    def wait(self, timeout=None):
        with self._cond:  # a signal may come while the lock of the event is held
            os.kill(os.getpid(), signal.Signals[sys.argv[1]])
        return super().wait(timeout)

arguments = sync._parser().parse_args(["--until-closed", *sys.argv[2:]])
upload = sync.Sync(arguments)
upload._closed = Interrupted()
code = upload.run()
assert upload._hasty
os._exit(code)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_at_a_bad_moment_ends_the_upload_with_all_of_it(run, tmp_path, name):
    run.append("w0000/m-000001.lfm", b"rows")
    base = f"file://{tmp_path}/bucket"
    ends = os.pipe()  # one stays open: the job goes on
    try:
        done = subprocess.run(
            [sys.executable, "-c", SIGNALLED, name, run.path, base],
            stdin=ends[0],
            timeout=60,
            check=False,
            env={**os.environ, "PYTHONPATH": str(START.parents[2])},
        )
    finally:
        for end in ends:
            os.close(end)
    assert done.returncode == 0
    assert copy_of(open_store(base), run, tmp_path / "copy")[1] == run.files()


def kill_again_and_again(run, base, tmp_path, kills):
    """Grows a run while its uploader is killed at random moments; the last one ends, and all is there."""
    draw = random.Random(kills)
    url = f"file://{tmp_path}/bucket" if base is None else base
    for _ in range(kills):
        child_ends = os.pipe()
        child = subprocess.Popen(
            [sys.executable, "-I", START, "sync", "--until-closed", "--flush", "0.1", run.path, url],
            stdin=child_ends[0],
        )
        os.close(child_ends[0])
        end = time.monotonic() + draw.uniform(0.15, 0.9)
        while time.monotonic() < end:
            run.append("w0000/d-000001.lfd", draw.randbytes(draw.choice((1000, 200_000))))
            run.append("w0000/m-000001.lfm", draw.randbytes(5000))
            time.sleep(0.02)
        child.send_signal(signal.SIGKILL)
        child.wait()
        os.close(child_ends[1])
    assert sync("--flush", "0.1", run.path, url).returncode == 0
    _, copy = copy_of(open_store(url), run, tmp_path / "copy")
    assert copy == run.files()


def test_twenty_kills_lose_nothing(run, tmp_path):
    kill_again_and_again(run, None, tmp_path, 20)


@pytest.mark.thorough
@pytest.mark.parametrize("base", ["file", "s3"], indirect=True)
def test_two_hundred_kills_lose_nothing(run, base, tmp_path):
    kill_again_and_again(run, base, tmp_path, 200)


@pytest.mark.parametrize(("place", "state", "quiet_s", "expected"), [
    ("here", 1, 0, False),  # its process is gone
    ("another boot", 1, 0, True),
    ("another namespace", 1, 0, True),
    ("another namespace", 1, 600, False),
    ("another namespace", 3, 0, False),
    ("an empty page", 1, 0, True),
])  # fmt: skip
def test_a_writer_that_cannot_be_seen_writes_while_its_files_change(
    tmp_path, place, state, quiet_s, expected
):
    """Else an upload from a container beside the job would call a live run ended, and its worker lost."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    namespace = os.stat("/proc/self/ns/pid").st_ino
    page = bytearray(192)
    identity = (int(boot[:16], 16), int(boot[16:], 16) ^ (place == "another boot"), 1 << 30, 1)
    struct.pack_into("<8sIIQQQQQ", page, 0, b"LUFFLIVE", 2, 0, 0, *identity)
    struct.pack_into("<I", page, 76, namespace ^ (place == "another namespace"))
    page[176] = state
    live = tmp_path / "w0000" / "live"
    live.parent.mkdir()
    live.write_bytes(b"" if place == "an empty page" else page)
    os.utime(live, (time.time() - quiet_s,) * 2)
    assert any_writes(str(tmp_path)) is expected


def test_a_pipe_in_a_folder_of_others_is_refused(tmp_path):
    os.mkfifo(tmp_path / "luff.json")
    store = open_store(f"file://{tmp_path}")
    for ask_for in (lambda: store.get("luff.json", 10), lambda: store.get_range("luff.json", 0, 1)):
        with pytest.raises(Refused, match="is no file"):
            ask_for()
