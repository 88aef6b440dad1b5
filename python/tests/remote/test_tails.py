"""What of a live run travels in its head, and what becomes a part."""

from __future__ import annotations

import random
import threading

import pytest
from bucket_copies import clock_of_uploader, contents, copy_of
from luff.remote import _heads, _uploader, _windows
from luff.remote._files import WINDOW, File
from luff.remote._head import parse_head_untrusted
from luff.remote._store import FolderStore
from luff.remote._uploader import Uploader


def test_a_long_tail_becomes_a_part_that_who_follows_need_not_fetch(run, store, tmp_path, monkeypatch):
    # However long the machine stands still: no heartbeat, and hosts are listed once.
    monkeypatch.setattr(_uploader, "HEARTBEAT_S", 1e9)
    monkeypatch.setattr(_heads, "_LOOK_FOR_HOSTS_S", 1e9)
    draw, name = random.Random(3), "w0000/m-000001.lfm"
    uploader = Uploader(str(run.path), store)
    uploader.begin()
    run.append(name, draw.randbytes(70_000))
    uploader.flush()
    spool, _ = copy_of(store, run, tmp_path / "copy")
    (entry,) = spool.heads.hosts[0].manifest.files.values()
    run.append(name, b"more")
    uploader.flush()  # it is young
    spool.refresh()
    monkeypatch.setattr(_uploader, "SETTLE_S", 0.0)
    assert not uploader.flush()  # nothing is new, so nothing is put
    run.append(name, b" and more")
    uploader.flush()
    before = store.requests
    spool.refresh()
    assert store.requests == before + 1  # the head
    (entry,) = spool.heads.hosts[0].manifest.files.values()
    assert (entry.ends, entry.tail) == ([70_004], 9)
    assert contents(spool) == run.files()
    run.append(name, draw.randbytes(20_000))
    uploader.flush()
    run.append(name, b"the tail is short")
    uploader.flush()
    (entry,) = parse_head_untrusted(store.get(uploader._head_key, 1 << 22)[0])[0].files.values()
    assert entry.ends == [70_004]
    assert copy_of(store, run, tmp_path / "later")[1] == run.files()
    uploader.flush("ended")
    uploader.end()
    spool.refresh()
    assert contents(spool) == run.files()


def test_a_window_that_is_full_has_taken_its_tail_in(run, store, tmp_path, monkeypatch):
    monkeypatch.setattr(_uploader, "SETTLE_S", 0.0)
    draw, name = random.Random(4), "w0000/m-000001.lfm"
    uploader = Uploader(str(run.path), store)
    uploader.begin()
    run.append(name, draw.randbytes(70_000))
    uploader.flush()
    run.append(name, draw.randbytes(WINDOW + 1_000))
    uploader.flush()
    (entry,) = uploader._manifest.files.values()
    assert (entry.ends, entry.tail) == ([WINDOW], 71_000)  # nobody has the new window's tail yet
    run.append(name, b"more")
    uploader.flush()
    assert (entry.ends, entry.tail) == ([WINDOW, WINDOW + 71_000], 4)
    assert copy_of(store, run, tmp_path / "copy")[1] == run.files()


def test_a_full_window_of_settled_tails_is_not_put_again(run, store, monkeypatch):
    monkeypatch.setattr(_uploader, "SETTLE_S", 0.0)
    draw, name = random.Random(5), "w0000/m-000001.lfm"
    uploader = Uploader(str(run.path), store)
    uploader.begin()
    for _ in range(WINDOW // _uploader.MIN_SETTLED_TAIL):
        run.append(name, draw.randbytes(_uploader.MIN_SETTLED_TAIL))
        uploader.flush()
    (entry,) = uploader._manifest.files.values()
    assert entry.in_parts == WINDOW and len(entry.ends) > 100
    assert not uploader._superseded


def test_many_parts_that_no_head_names_hold_up_no_head(run, store):
    uploader = Uploader(str(run.path), store, interval_s=0.0)
    uploader.begin()
    uploader._superseded = [(float("-inf"), f"parts/{i}") for i in range(20)]
    run.append("w0000/m-000001.lfm", b"rows")
    uploader.flush()
    assert len(uploader._superseded) in (11, 12)  # by the clock's ticks
    run.append("w0000/m-000001.lfm", b"rows")
    uploader.flush("ended")
    assert not uploader._superseded


class Counted(FolderStore):
    """Counts bytes of payload that are put, in parts and in heads."""

    payload = parts = 0
    lock = threading.Lock()  # whole windows are put by several threads

    def put(self, key, data):
        if ".lfd/" in key:
            with self.lock:
                self.payload, self.parts = self.payload + len(data), self.parts + 1
        super().put(key, data)

    def put_if(self, key, data, etag):
        if key.startswith("live/"):
            _, tails = parse_head_untrusted(data)
            self.payload += sum(len(tail) for file, tail in tails.items() if file.is_payload)
        return super().put_if(key, data, etag)


@pytest.fixture
def clock(monkeypatch):
    return clock_of_uploader(monkeypatch)


@pytest.mark.parametrize(
    ("rate", "lump_s", "most"),
    [
        (0.15e6, 0.1, 2.1),
        (0.3e6, 0.1, 2.1),
        (0.5e6, 0.1, 2.1),
        (0.53e6, 0.1, 1.1),
        (0.6e6, 0.1, 1.1),
        (0.6e6, 1.3, 1.1),
        (1e6, 0.7, 1.1),
        (3e6, 0.1, 1.1),
        (9e6, 0.1, 1.1),
    ],
)
def test_bytes_put_for_a_byte_of_payload(run, tmp_path, clock, rate, lump_s, most):
    """At rates above 0.5 MiB/s no byte travels twice, however the steps fall; below, parts are fewer than flushes."""
    store, draw = Counted(f"file://{tmp_path}/bucket", str(tmp_path / "bucket")), random.Random(6)
    uploader, written, flushes, lump = Uploader(str(run.path), store), 0, 0, bytes(round(rate * lump_s))
    uploader.begin()
    end = 30e6 / rate if rate > 1e6 else 60.0
    next_lump, next_flush = 0.0, 1.0
    while next_flush < end:
        while next_lump < next_flush:
            run.append("w0000/d-000001.lfd", lump)
            run.append("w0000/m-000001.lfm", draw.randbytes(round(50e3 * lump_s)))
            written, next_lump = written + len(lump), next_lump + lump_s
        clock[0] = next_flush
        uploader.flush()
        flushes, next_flush = flushes + 1, next_flush + 2.0 * draw.uniform(0.9, 1.1)
    assert store.payload < most * written
    if rate <= 0.5e6:
        assert store.parts < 0.7 * flushes
    uploader.close()


def test_a_long_run_has_few_parts_in_its_head(run, store, tmp_path, monkeypatch):
    """Readers refuse a head that has too many, so beyond a number full windows are put together, the oldest first."""
    monkeypatch.setattr(_windows, "MOST_PARTS", 12)
    monkeypatch.setattr(_uploader, "MAX_PAYLOAD_TAIL", 0)
    draw, spool, most, merged = random.Random(7), None, 0, []
    uploader = Uploader(str(run.path), store)
    uploader.begin()
    for i in range(24):
        run.append(f"w0000/d-00000{1 + i // 12}.lfd", draw.randbytes(2 << 20))
        run.append("w0000/m-000001.lfm", b"row")
        uploader.flush()
        if spool is None:
            spool, _ = copy_of(store, run, tmp_path / "copy")
        spool.refresh()
        most = max(most, sum(len(e.ends) for f, e in uploader._manifest.files.items() if f.is_payload))
        merged.append(len(uploader._manifest.files[File("w", 0, "d", 1)].ends))
    assert most <= 13
    assert merged[11] == 12 and merged[-1] == 3  # three windows
    assert contents(spool) == run.files()
    uploader.flush("ended")
    uploader.end()
    assert copy_of(store, run, tmp_path / "later")[1] == run.files()


def test_windows_that_are_not_here_any_more_are_left_as_they_are(run, store, monkeypatch):
    monkeypatch.setattr(_windows, "MOST_PARTS", 2)
    monkeypatch.setattr(_uploader, "MAX_PAYLOAD_TAIL", 0)
    uploader = Uploader(str(run.path), store)
    uploader.begin()
    for _ in range(4):
        run.append("w0000/d-000001.lfd", bytes(1 << 20))
        uploader.flush()
    (run.path / "w0000/d-000001.lfd").unlink()
    for _ in range(5):
        run.append("w0000/d-000002.lfd", bytes(2 << 20))
        uploader.flush()
    ends = [entry.ends for entry in uploader._manifest.files.values()]
    assert ends == [[n << 20 for n in range(1, 5)], [WINDOW, WINDOW + (2 << 20)]]
