"""Stores that keep silent, throttle or refuse without a reason, heads that somebody put back, runs that shrink while
they are uploaded: each is said, bounded, and loses nothing.
"""

from __future__ import annotations

import collections
import json
import os
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from bucket_copies import contents, copy_of
from conftest import Run
from luff.remote import _asides, _store
from luff.remote._cache import Cache, Gone
from luff.remote._errors import Conflict, Refused, Unreachable
from luff.remote._files import File, head_key
from luff.remote._put_once import put_once, put_unless_there
from luff.remote._run_store import reading
from luff.remote._spool import GONE_S, Spool
from luff.remote._store import FolderStore, open_store
from luff.remote._upload_key import uploading
from luff.remote._uploader import Uploader

# `luff sync` with a client that waits for an answer for a second, and not for half a minute.
IMPATIENT = """
import os, sys
from luff.remote import _store
_store._REQUEST_S, _store._RETRY_S = 1, 2
from luff._verbs import sync
code = sync.main(sys.argv[1:])
sys.stderr.flush()
os._exit(code)
"""


def start_sync(*words):
    return subprocess.Popen(
        [sys.executable, "-c", IMPATIENT, *map(str, words)],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def is_of_head(method, path):
    return method == "PUT" and "/live/" in path


# ---- Silence ----


def test_a_store_that_keeps_silent_holds_up_a_flush_for_so_long_and_loses_nothing(
    run, s3, proxy, tmp_path, monkeypatch
):
    """What it heard, it does later, perhaps after the put that was made in its place."""
    monkeypatch.setattr(_store, "_REQUEST_S", 1)
    monkeypatch.setattr(_store, "_RETRY_S", 2)
    uploader = Uploader(str(run.path), open_store(s3))
    uploader.begin()
    run.append("w0000/m-000001.lfm", b"rows")
    uploader.flush()
    proxy.silent = is_of_head
    run.append("w0000/m-000001.lfm", b" more")
    for _ in range(2):
        with pytest.raises(Unreachable):
            uploader.flush()
    proxy.silent = None
    proxy.speak.set()
    for i in range(3):
        run.append("w0000/m-000001.lfm", bytes([i]) * 100)
        uploader.flush()
    uploader.flush("ended")
    assert copy_of(open_store(s3), run, tmp_path / "copy")[1] == run.files()


def test_a_silent_store_beside_a_job_is_said_once_and_the_upload_goes_on(run, s3, proxy, tmp_path):
    run.append("w0000/m-000001.lfm", b"rows")
    asked = threading.Event()

    def silent(method, path):
        if is_of_head(method, path):
            asked.set()
        return is_of_head(method, path)

    proxy.silent = silent
    upload = start_sync("--until-closed", "--flush", 0.2, run.path, s3)
    try:
        assert asked.wait(120)
        run.append("w0000/m-000001.lfm", b" more")
        assert "the run goes on, and is uploaded when the bucket answers" in upload.stderr.readline()
        proxy.silent = None
        proxy.speak.set()
        assert "the bucket answers again" in upload.stderr.readline()
        said = upload.communicate("", timeout=120)[1]
        assert upload.returncode == 0
        assert "the run goes on" not in said
    finally:
        upload.kill()
        upload.communicate()
    assert copy_of(open_store(s3), run, tmp_path / "copy")[1] == run.files()


def test_of_a_store_that_is_silent_for_good_the_upload_takes_its_leave(run, s3, proxy):
    run.append("w0000/m-000001.lfm", b"rows")
    proxy.silent = lambda *_: True
    upload = start_sync("--until-closed", "--drain", 2, run.path, s3)
    try:
        said = upload.communicate("", timeout=120)[1]
        assert upload.returncode == 6
        assert f"`luff sync {run.path} {s3}` goes on" in said
    finally:
        upload.kill()
        upload.communicate()


@pytest.mark.thorough  # half a minute for each answer that does not come
def test_a_silent_store_does_not_touch_the_training(luff, trained, s3, proxy, monkeypatch):
    monkeypatch.setenv("LUFF_RULE_IDLE_S", "5")
    proxy.silent = lambda *_: True
    run, done = trained("--rules", "none", "--sync", s3, steps=200, pause=0.01, rate=0.1)
    _, alone = trained("--rules", "none", steps=200, rate=0.1, name="alone")
    assert done.stdout == alone.stdout
    assert len(done.stdout.splitlines()) == 200
    assert f"luff sync {run} {s3}" in done.stderr


# ---- Refusals that say nothing of what is there ----


class Busy:
    """Answers of a store that throttles and has much to do: to each request first 503, to each put then 409 once."""

    def __init__(self):
        self.times = collections.Counter()
        self.lock = threading.Lock()

    def __call__(self, method, path):
        with self.lock:
            self.times[method, path] += 1
            times = self.times[method, path]
        if times == 1:
            return 503, "SlowDown"
        return (409, "ConditionalRequestConflict") if method == "PUT" and times == 2 else None


@pytest.mark.parametrize("encrypted", [False, True])
def test_throttling_and_refusals_that_wrote_nothing_lose_nothing(
    run, s3, proxy, tmp_path, monkeypatch, request, encrypted
):
    if encrypted:
        pytest.importorskip("cryptography")
        monkeypatch.setenv("LUFF_BUCKET_KEY", str(request.getfixturevalue("key_file")))
    run.append("w0000/m-000001.lfm", b"rows " * 1000)
    run.append("w0000/d-000001.lfd", random.Random(0).randbytes(9 << 20))
    run.append("w0001/m-000001.lfm", b"x")
    proxy.instead = Busy()
    upload = start_sync("--drain", 100, run.path, s3)
    try:
        said = upload.communicate("", timeout=180)[1]
        assert upload.returncode == 0, said
    finally:
        upload.kill()
        upload.communicate()
    answers = {path for (method, path), n in proxy.instead.times.items() if method == "PUT" and n > 2}
    for name in ("luff.json", "run.json", "/live/", ".lfd/") + (("/keys/",) if encrypted else ()):
        assert any(name in path for path in answers), name
    proxy.instead = None
    store = reading(open_store(s3), run.run_id) if encrypted else open_store(s3)
    assert copy_of(store, run, tmp_path / "copy")[1] == run.files()
    assert open_store(s3).get(f"runs/{run.run_id}/run.json", 1 << 20)[0]


def test_a_store_that_replaces_no_object_says_where_to_look(s3, proxy):
    """It may be passing, so the upload tries again; it may be for good, so it is not called busy."""
    store = open_store(s3)
    proxy.instead = lambda method, _: (409, "BlobImmutableDueToPolicy") if method == "PUT" else None
    with pytest.raises(Unreachable, match="see whether the bucket locks or retains objects"):
        store.put("cards/a", b"")


class Refusing(FolderStore):
    """Refuses the first puts of new objects, and writes nothing."""

    def __init__(self, folder, times):
        super().__init__(f"file://{folder}", str(folder))
        self.left = times

    def put_new(self, key, data):
        if self.left:
            self.left -= 1
            raise Conflict("409")
        return super().put_new(key, data)


def test_one_object_is_put_once_and_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr("luff.remote._put_once._PAUSE_S", 0.0)
    store = Refusing(tmp_path, 3)
    assert put_once(store, "a", b"ours", 99) is None
    assert put_once(store, "a", b"another", 99) == b"ours"
    assert put_unless_there(store, "a", b"another") is None
    assert store.get("a", 99)[0] == b"ours"
    store.left = 1000
    for put in (lambda: put_once(store, "b", b"", 99), lambda: put_unless_there(store, "b", b"")):
        with pytest.raises(Unreachable, match="again and again, and has none"):
            put()
    (tmp_path / "odd").mkdir()  # somebody's
    put_unless_there(store, "odd", b"")
    with pytest.raises(Refused):
        put_once(store, "odd", b"", 99)


# ---- An older head ----


def test_a_head_that_somebody_put_back_is_refused_and_replaced(run, store, tmp_path):
    key = head_key(run.run_id, 0)
    uploader = Uploader(str(run.path), store)
    uploader.begin()
    run.append("w0000/m-000001.lfm", b"rows")
    uploader.flush()
    old, _ = store.get(key, 1 << 22)
    spool, _ = copy_of(store, run, tmp_path / "copy")
    run.append("w0000/m-000001.lfm", b" and more")
    uploader.flush()
    assert spool.refresh()
    shown = run.files()
    store.put(key, old)
    for _ in range(2):
        with pytest.raises(Refused, match="older than the last one, somebody put it back"):
            spool.refresh()
    assert contents(spool) == shown  # what was there stays
    assert "older than the last one" in json.loads((tmp_path / "copy/mirror.json").read_text())["problem"]
    run.append("w0000/m-000001.lfm", b", to the end")
    uploader.flush()  # the upload goes on, over it
    assert spool.refresh()
    assert contents(spool) == run.files()
    assert json.loads((tmp_path / "copy/mirror.json").read_text())["problem"] == ""


class Away(FolderStore):
    """A folder that is away now and then."""

    away = False

    def get(self, key, most, unless=""):
        if self.away:
            raise Unreachable("no network")
        return super().get(key, most, unless)


def test_a_bucket_that_was_away_for_long_ends_no_worker_and_its_problem_is_told_no_more(run, tmp_path):
    """For who judges: the upload had the same bucket, and may need a minute to notice."""
    store = Away(f"file://{tmp_path}/bucket", str(tmp_path / "bucket"))
    uploader = Uploader(str(run.path), store)
    uploader.begin()
    run.append("w0000/m-000001.lfm", b"rows")
    uploader.flush()

    def told():
        mirror = json.loads((tmp_path / "copy/mirror.json").read_text())
        return mirror["ended"], mirror["problem"]

    def pass_long():
        spool._problem_at -= 2 * GONE_S
        for host in spool.heads.hosts.values():
            host.changed_at -= 2 * GONE_S

    with ThreadPoolExecutor(2) as pool:
        where = str(tmp_path / "copy"), f"{store.url}/{run.run_id}"
        spool = Spool(*where, store, run.run_id, "/socket", Cache(1 << 30), pool, judged_here=True)
        spool.open()
        store.away = True
        with pytest.raises(Unreachable):
            spool.refresh()
        assert told() == (False, "no network")
        pass_long()
        store.away = False
        for _ in range(2):
            spool.refresh()
            assert told() == (False, "")
        pass_long()  # now its machine is gone
        store.away = True  # and a request that fails now and then keeps it no longer
        with pytest.raises(Unreachable):
            spool.refresh()
        store.away = False
        spool.refresh()
        assert told() == (True, "")


# ---- Retention that is faster than the upload ----


class Shrinking:
    """A run whose payload is written and retired. Knows all bytes that there ever were."""

    def __init__(self, run, seed):
        self.run, self.draw = run, random.Random(seed)
        self.written = collections.defaultdict(bytes)
        self.files = 0

    def write(self, size):
        self.files += 1
        name = f"w0000/d-{self.files:06d}.lfd"
        data = self.draw.randbytes(size)
        self.written[name] += data
        self.run.append(name, data)
        self.run.append("w0000/m-000001.lfm", b"rows of %06d\n" % self.files)

    def retire(self):
        """Removes the oldest file that is there. Metadata never goes."""
        for path in sorted((self.run.path / "w0000").glob("d-*")):
            path.unlink(missing_ok=True)
            return

    def check(self, store, folder, pieces=1 << 20):
        """What the bucket has is what was written, as far as it goes; returns how many bytes of values it has."""
        with ThreadPoolExecutor(2) as pool:
            url = f"{store.url}/{self.run.run_id}"
            spool = Spool(str(folder), url, store, self.run.run_id, "/socket", Cache(1 << 30), pool)
            spool.open()
            assert spool.over
            rows = (self.run.path / "w0000/m-000001.lfm").read_bytes()
            assert (folder / "w0000/m-000001.lfm").read_bytes() == rows
            there = 0
            for name, data in self.written.items():
                file = File("w", 0, "d", int(name[8:14]))
                for begin in range(0, len(data), pieces):
                    end = min(begin + pieces, len(data))
                    try:
                        spool.need(file, begin, end - begin)
                    except Gone:
                        continue
                    assert (folder / name).read_bytes()[begin:end] == data[begin:end], name
                    there += end - begin
            return there


def end(uploader):
    for _ in range(20):
        uploader.flush("ended")
        if not uploader.behind:
            uploader.end()
            return
    raise AssertionError("the upload does not end")


@pytest.mark.parametrize("keep_local", [None, 0])
def test_payload_that_goes_just_before_it_is_read_costs_itself_alone(tmp_path, keep_local):
    """Before each of the upload's reads, one after the other, the oldest file goes."""
    at = 0
    while True:
        folder = tmp_path / f"at-{at}"
        folder.mkdir()
        shrinking = Shrinking(Run(folder / "run"), at)
        store = open_store(f"file://{folder}/bucket")
        uploader = Uploader(str(folder / "run"), store, interval_s=0.2, keep_local=keep_local)
        reads, real = [0], uploader._read

        def read(file, begin, end, shrinking=shrinking, reads=reads, real=real, at=at):
            reads[0] += 1
            if reads[0] == at + 1:
                shrinking.retire()
            return real(file, begin, end)

        uploader._read = read
        uploader.begin()
        for size in (9 << 20, 300_000, 2_000_000):
            shrinking.write(size)
            uploader.flush()
            uploader.flush()
        end(uploader)
        uploader.close()
        there, written = shrinking.check(store, folder / "copy"), sum(map(len, shrinking.written.values()))
        if reads[0] <= at:
            assert there == written
            break
        assert there >= written - (9 << 20)
        at += 1
    assert at > 6


def test_retention_in_a_race_with_the_upload_gives_no_wrong_value(tmp_path):
    shrinking = Shrinking(Run(tmp_path / "run"), 1)
    store = open_store(f"file://{tmp_path}/bucket")
    uploader = Uploader(str(tmp_path / "run"), store, interval_s=0.05)
    uploader.begin()
    over = threading.Event()

    def write_and_retire():
        draw = random.Random(2)
        for _ in range(150):
            shrinking.write(draw.choice((1_000, 100_000, 1_500_000)))
            if shrinking.files > 3:
                shrinking.retire()
            time.sleep(0.005)
        over.set()

    writer = threading.Thread(target=write_and_retire)
    writer.start()
    try:
        while not over.is_set():
            uploader.flush()
    finally:
        writer.join()
    end(uploader)
    uploader.close()
    assert shrinking.check(store, tmp_path / "copy") > 0


# ---- What a put leaves whose process dies in it ----

DIES = """
import os, signal, sys
from luff.remote._store import open_store

os.replace = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
store = open_store(sys.argv[1])
(store.put if sys.argv[3] == "put" else store.put_new)(sys.argv[2], b"half of it")
"""


def die_in(base, key, how="put"):
    done = subprocess.run([sys.executable, "-c", DIES, base, key, how], check=False)
    assert done.returncode < 0


def asides(folder):
    return sorted(str(path.relative_to(folder)).split(".")[0] for path in folder.rglob("*~"))


def make_older(folder, seconds):
    for path in folder.rglob("*~"):
        os.utime(path, (time.time() - seconds,) * 2)


def test_what_a_killed_upload_left_in_a_folder_goes_with_the_next_one(run, tmp_path):
    base, bucket = f"file://{tmp_path}/bucket", tmp_path / "bucket"
    run.append("w0000/m-000001.lfm", b"rows")
    keys = [
        f"runs/{run.run_id}/w0000/d-000001.lfd/0-800000",
        head_key(run.run_id, 0),
        f"keys/{run.run_id}/check",
    ]
    for key, how in zip(keys, ("put", "put_new", "put_new"), strict=True):
        die_in(base, key, how)
    die_in(base, f"runs/{'0' * 32}/w0000/d-000001.lfd/0-800000")
    others = tmp_path / "bucket" / "runs" / run.run_id / "notes~"  # nobody's put
    others.write_text("of a person")
    assert len(asides(bucket)) == 5
    Uploader(str(run.path), open_store(base)).begin()
    assert len(asides(bucket)) == 5  # another host may be writing them just now
    again = Uploader(str(run.path), open_store(base), owner="0" * 16, again=True)
    again._leave_to_another = lambda _: None
    again.begin()  # begun again, since that one is dead
    assert asides(bucket) == [f"runs/{'0' * 32}/w0000/d-000001", f"runs/{run.run_id}/notes~"]
    die_in(base, keys[0])
    make_older(bucket, 60)
    third = Uploader(str(run.path), open_store(base))
    third.begin()
    assert asides(bucket) == [f"runs/{'0' * 32}/w0000/d-000001", f"runs/{run.run_id}/notes~"]
    die_in(base, keys[0])
    make_older(bucket, 60)
    third.flush("ended")
    third.end()
    assert asides(bucket) == [f"runs/{'0' * 32}/w0000/d-000001", f"runs/{run.run_id}/notes~"]
    others.unlink()
    assert copy_of(open_store(base), run, tmp_path / "copy")[1] == run.files()


def test_a_put_whose_file_was_taken_for_a_dead_one_s_begins_again(run, tmp_path, monkeypatch):
    base = f"file://{tmp_path}/bucket"
    store, other = open_store(base), open_store(base)
    real, times = store._publish, []

    def publish(folder, aside, name):
        if len(times) < 2:
            other.clean(f"runs/{run.run_id}/", 0.0, 60)
        times.append(aside)
        real(folder, aside, name)

    monkeypatch.setattr(store, "_publish", publish)
    store.put(f"runs/{run.run_id}/a", b"put")
    assert len(times) == 3
    times.clear()
    etag = store.put_new(f"runs/{run.run_id}/b", b"new")
    assert len(times) == 3
    assert store.get(f"runs/{run.run_id}/a", 99)[0] == b"put"
    assert store.get(f"runs/{run.run_id}/b", 99) == (b"new", etag)
    assert asides(tmp_path / "bucket") == []


def test_cleaning_follows_no_link_and_takes_what_puts_have_written_alone(run, tmp_path):
    store = open_store(f"file://{tmp_path}/bucket")
    below = tmp_path / "bucket" / "runs" / run.run_id
    (below / "w0000").mkdir(parents=True)
    home = tmp_path / "home"
    home.mkdir()
    name = f"x.{'0' * 16}~"
    (home / name).write_text("years")
    (below / "link").symlink_to(home)
    (below / f"to.{'1' * 16}~").symlink_to(home / name)
    (below / f"folder.{'2' * 16}~").mkdir()
    os.mkfifo(below / f"pipe.{'3' * 16}~")
    for odd in ("x~", "x.0123~", f"{'0' * 16}~", f"x.{'0' * 16}"):
        (below / odd).write_text("no put")
    (below / "w0000" / name).write_text("half")
    before = set(os.listdir(below))
    store.clean(f"runs/{run.run_id}/", 0.0, 60)
    assert set(os.listdir(below)) == before
    assert os.listdir(below / "w0000") == []
    assert (home / name).read_text() == "years"
    store.clean("runs/nobody/", 0.0, 60)
    (tmp_path / "bucket" / "live").symlink_to(home)
    store.clean("live/", 0.0, 60)
    assert (home / name).read_text() == "years"


def test_the_store_of_one_run_cleans_too(run, tmp_path):
    base = f"file://{tmp_path}/bucket"
    store = uploading(open_store(base), str(run.path), run.run_id)
    die_in(base, f"runs/{run.run_id}/w0000/m-000001.lfm/0-10")
    store.clean(f"runs/{run.run_id}/", 0.0, 60)
    assert asides(tmp_path / "bucket") == []


def test_an_end_waits_for_no_look_at_all_folders_of_a_large_run(run, tmp_path, monkeypatch):
    """On a file system where each takes long. Small places come first, and who prunes has the time."""
    base, bucket = f"file://{tmp_path}/bucket", tmp_path / "bucket"
    for i in range(200):
        folder = bucket / "runs" / run.run_id / "w0000" / f"d-{i:06d}.lfd"
        folder.mkdir(parents=True)
        (folder / f"0-10.{'0' * 16}~").write_text("half")
    die_in(base, f"keys/{run.run_id}/check")
    make_older(bucket, 60)
    real = _asides._remove_below

    def slow(*of):
        time.sleep(0.05)
        real(*of)

    monkeypatch.setattr(_asides, "_remove_below", slow)
    run.append("w0000/m-000001.lfm", b"rows")
    uploader = Uploader(str(run.path), open_store(base))
    uploader.begin()
    uploader.flush("ended")
    uploader.end()
    uploader.close()
    left = asides(bucket)
    assert 0 < len(left) < 200
    assert not any(name.startswith("keys/") for name in left)
    monkeypatch.setattr(_asides, "_remove_below", real)
    _asides.clean_run(open_store(base), run.run_id, within_s=float("inf"))
    assert asides(bucket) == []
