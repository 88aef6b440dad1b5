"""What goes wrong between a job and its bucket: each is said with its cause and what to do, and changes no value."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import luff as package
import pytest
from bucket_copies import copy_of
from luff.remote import _commits, _disk, _spool
from luff.remote._cache import Cache
from luff.remote._commits import Ledger
from luff.remote._errors import Refused, Unreachable
from luff.remote._spool import Spool
from luff.remote._store import FolderStore, open_store
from luff.remote._uploader import Uploader

START = Path(package.__file__).parent / "_verbs" / "_start.py"


def wait_for(what, seconds=120):
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


@pytest.mark.parametrize(
    ("status", "code", "says", "kind"),
    [
        (301, "PermanentRedirect", "another region; set AWS_REGION", Refused),
        (400, "AuthorizationHeaderMalformed", "another region; set AWS_REGION", Refused),
        (400, "ExpiredToken", "credentials have expired; renew them", Unreachable),
        (403, "RequestTimeTooSkewed", "clock of this machine is more than 15 minutes off", Unreachable),
        (403, "AccessDenied", "no right to do this", Refused),
        (403, "InvalidAccessKeyId", "no right|not known to the store", Refused),
        (404, "NoSuchBucket", "there is no such bucket", Refused),
        (400, "KMS.NotFoundException", "the key .* does not exist; mend sse_kms_key_id", Refused),
        (400, "KMS.DisabledException", "the key .* is disabled", Refused),
    ],
)
def test_what_a_store_refuses_is_said_with_the_remedy(s3, proxy, status, code, says, kind):
    proxy.instead = lambda *_: (status, code)
    for ask in (
        lambda store: store.put("a", b"x"),
        lambda store: store.put_new("a", b"x"),
        lambda store: store.get("a", 10),
        lambda store: store.objects("a/", 10),
    ):
        with pytest.raises(kind, match=says) as refused:
            ask(open_store(s3))
        assert "canary-secret" not in str(refused.value)


@pytest.mark.parametrize("code", ["RequestTimeTooSkewed", "ExpiredToken"])
def test_what_somebody_has_to_mend_is_said_at_once(luff, run, s3, proxy, code):
    """By each verb, also those that wait for a bucket that is away. A job's upload goes on to try."""
    proxy.instead = lambda *_: (403, code)
    says = "clock of this machine" if code == "RequestTimeTooSkewed" else "credentials have expired"
    asked = []

    def ask():
        asked.append(open_store(s3).get("luff.json", 99))

    with pytest.raises(Unreachable, match=says):
        _spool.with_retries(lambda: asked.append(1) or ask(), 60)
    assert asked == [1]
    for words in (["runs", s3], ["show", f"{s3}/{run.run_id}"], ["watch", s3]):
        assert says in luff(*words, expect=None).stderr  # within the time that a command may take
    run.append("w0000/m-000001.lfm", b"rows")
    words = [sys.executable, "-I", START, "sync", "--until-closed", run.path, s3]
    upload = subprocess.Popen(list(map(str, words)), stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert says in upload.stderr.readline()
        proxy.instead = None  # mended
        assert "the bucket answers again" in upload.stderr.readline()
        upload.stdin.close()
        assert upload.wait(200) == 0
        # Not by `communicate`, which does not see the lines that came together with the one above.
        assert upload.stderr.read().count("luff: sync: this run is") == 1
    finally:
        upload.kill()
        upload.wait()
        upload.stderr.close()


@pytest.mark.thorough
def test_credentials_that_expire_while_the_job_trains_are_said_once_and_the_next_upload_goes_on(
    luff, trained, s3, proxy, tmp_path, monkeypatch
):
    monkeypatch.setenv("LUFF_RULE_IDLE_S", "5")  # and the upload is not waited for longer, either
    expired = [0]

    def instead(method, path):
        if method == "PUT" and "/live/" in path:
            expired[0] += 1
        return (400, "ExpiredToken") if expired[0] > 1 else None  # after the first head

    proxy.instead = instead
    run, done = trained("--rules", "none", "--sync", s3, steps=300, pause=0.05, rate=0.1)
    assert len(done.stdout.splitlines()) == 300
    alone = subprocess.run(
        [sys.executable, tmp_path / "train.py", "300", "0", "0.1"], capture_output=True, text=True, check=True
    )
    assert done.stdout == alone.stdout
    assert done.stderr.count("the credentials have expired; renew them") == 1
    assert f"luff sync {run} {s3}" in done.stderr
    proxy.instead = None  # they were renewed
    url = luff("sync", run, s3).stdout.strip()
    assert luff("verify", url).returncode == 0
    with package.open_trial(url) as there, package.open_trial(run) as here:
        assert there.steps() == here.steps()


def test_an_uploader_that_was_stopped_past_a_takeover_writes_nothing_more(run, tmp_path):
    base = f"file://{tmp_path}/bucket"
    run.append("w0000/m-000001.lfm", b"rows")
    words = [sys.executable, "-I", START, "sync", "--flush", "0.1", "--until-closed", run.path, base]
    first = subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        head = tmp_path / "bucket/live" / run.run_id[0] / run.run_id / "u0000"
        wait_for(head.exists)
        os.kill(first.pid, signal.SIGSTOP)  # perhaps in a put
        wait_for(lambda: Path(f"/proc/{first.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        second = Uploader(str(run.path), open_store(base))
        second.begin()
        run.append("w0000/m-000001.lfm", b" of the next one")
        second.flush()
        theirs = head.read_bytes()
        os.kill(first.pid, signal.SIGCONT)
        assert first.wait(120) == 4
        assert "another uploader has taken the run over" in first.stderr.read()
        assert head.read_bytes() == theirs
    finally:
        first.kill()
        first.wait()
        first.stdin.close()
        first.stderr.close()
    _, copy = copy_of(open_store(base), run, tmp_path / "copy")
    assert copy == run.files()


def test_a_judge_that_was_stopped_while_it_committed_does_not_act(tmp_path, monkeypatch):
    """Who sees its commit may have taken it over meanwhile."""
    clock = [0.0]

    class Stopped(FolderStore):
        def put_new(self, key, data):
            clock[0] += _commits.TAKE_OVER_S  # SIGSTOP, and SIGCONT a minute later
            return super().put_new(key, data)

    monkeypatch.setattr(_commits.time, "monotonic", lambda: clock[0])
    store = Stopped(f"file://{tmp_path}/bucket", str(tmp_path / "bucket"))
    ledger = Ledger(store, "0" * 32, "a" * 32)
    ledger.load()
    said = []
    ledger.commit([json.dumps({"id": "f", "event": "new"})], 1, {}, lambda commit, ours: said.append(ours))
    assert said == [False]
    other = Ledger(store, "0" * 32, "b" * 32)
    other.load()
    clock[0] += _commits.TAKE_OVER_S
    assert [commit.number for commit in other.take_over()] == [1]


def test_a_copy_on_a_full_disk_says_so_and_is_whole_once_there_is_room(run, tmp_path, monkeypatch):
    base = f"file://{tmp_path}/bucket"
    run.append("w0000/m-000001.lfm", bytes(range(256)) * 40)
    uploader = Uploader(str(run.path), open_store(base))
    uploader.begin()
    uploader.flush()
    real, room = _disk.write_at, [5000]

    def write_at(fd, data, offset):
        if room[0] < len(data):
            real(fd, data[: room[0]], offset)
            raise OSError(errno.ENOSPC, "No space left on device")
        real(fd, data, offset)

    monkeypatch.setattr(_spool, "write_at", write_at)
    with ThreadPoolExecutor(2) as pool:
        url, store = f"{base}/{run.run_id}", open_store(base)
        spool = Spool(str(tmp_path / "copy"), url, store, run.run_id, "/socket", Cache(1 << 30), pool)
        with pytest.raises(Unreachable, match=r"No space left.*LUFF_CACHE"):
            spool.open()
        room[0] = 1 << 30
        run.append("w0000/m-000001.lfm", b"more")
        uploader.flush()
        spool.refresh()
    copy = tmp_path / "copy/w0000/m-000001.lfm"
    assert copy.read_bytes() == (run.path / "w0000/m-000001.lfm").read_bytes()


@pytest.mark.thorough
def test_a_copy_that_is_removed_under_a_reader_that_follows_gives_no_wrong_value(
    luff, trained, tmp_path, own_cache
):
    """The fetcher makes it again; what the reader says at last is what the run has."""
    base, result = f"file://{tmp_path}/bucket", {}
    thread = threading.Thread(
        target=lambda: result.update(done=trained("--rules", "none", "--sync", base, steps=150, pause=0.05))
    )
    thread.start()
    checking = None
    try:
        wait_for(lambda: list((tmp_path / "bucket").glob("live/*/*/u0000")))
        (head,) = (tmp_path / "bucket").glob("live/*/*/u0000")
        url = f"{base}/{head.parent.name}"
        words = [luff.executable, "check", url, "--follow", "--json"]
        checking = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

        def begun():
            assert checking.poll() is None, checking.communicate()
            return list(own_cache.glob(f"*/*/{head.parent.name}/w0000"))

        copies = wait_for(begun)
        copies[0].parent.rename(tmp_path / "aside")  # at once, also while it is written
        out, err = checking.communicate(timeout=300)
    finally:
        if checking is not None and checking.poll() is None:
            checking.kill()
            checking.communicate()
        thread.join()
    assert "done" in result
    local = luff("check", result["done"][0], "--json", expect=None).stdout
    assert local
    assert out in ("", local), err  # the same, or an error that says why
    assert out == local or "removed" in err or "not there" in err or "gone" in err, err
    assert luff("check", url, "--json", expect=None).stdout == local
