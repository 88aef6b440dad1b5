"""What of a live run travels in its head, and what becomes a part."""

from __future__ import annotations

import random

from bucket_copies import contents, copy_of
from luff.remote import _heads, _uploader
from luff.remote._files import WINDOW
from luff.remote._head import parse_head_untrusted
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
