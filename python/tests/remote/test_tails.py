"""What of a live run travels in its head, and what becomes a part."""

from __future__ import annotations

import random

from bucket_copies import contents, copy_of
from luff.remote import _uploader
from luff.remote._head import parse_head_untrusted
from luff.remote._uploader import Uploader


def test_a_long_tail_becomes_a_part_that_who_follows_need_not_fetch(run, store, tmp_path, monkeypatch):
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
