"""Sealed segments in a bucket: a few requests open a run, and what nobody reads is not fetched."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import luff as luff_package
import pytest
from luff import errors
from luff.remote import _files, _head, _sealed
from luff.remote._cache import Cache
from luff.remote._disk import boot_id
from luff.remote._errors import Refused, Unreachable
from luff.remote._files import stream_of
from luff.remote._head import BadObject
from luff.remote._run_store import reading
from luff.remote._spool import Spool
from luff.remote._store import open_store
from luff.remote._upload_key import uploading
from luff.remote._uploader import Uploader

RUN = Path(__file__).parents[3] / "testdata" / "format" / "v1" / "run"
RUN_ID = json.loads((RUN / "run.json").read_text())["run_id"]
SEGMENT = stream_of("w0000", "m-000001.lfm")


@pytest.fixture(autouse=True)
def small_ones_count(monkeypatch):
    monkeypatch.setattr(_sealed, "MIN_SEALED", 1)


@pytest.fixture
def golden(tmp_path):
    """A run of four sealed segments."""
    shutil.copytree(RUN, tmp_path / "golden")
    return tmp_path / "golden"


def uploaded(run, store, state="ended"):
    uploader = Uploader(os.fspath(run), store)
    uploader.begin()
    uploader.flush(state)
    while uploader.behind:
        uploader.flush(state)
    if state == "ended":
        uploader.end()
    return uploader


def spool_of(store, folder, run_id=RUN_ID):
    pool = ThreadPoolExecutor(4)
    return Spool(str(folder), f"{store.url}/{run_id}", store, run_id, "/socket", Cache(1 << 30), pool)


def head_of(store, run_id=RUN_ID):
    return _head.parse_head_untrusted(store.get(_files.head_key(run_id, 0), _head.MAX_HEAD)[0])[0]


def segments(run):
    return {stream_of("w0000", p.name): p.read_bytes() for p in sorted((run / "w0000").glob("m-*.lfm"))}


def test_a_run_is_opened_in_three_requests_and_a_range_in_one(golden, store, tmp_path):
    uploaded(golden, store)
    spool = spool_of(store, tmp_path / "copy")
    before = store.requests
    spool.open(whole=False)
    assert store.requests - before == 3  # which uploaders there are, the head, the index
    data = segments(golden)[SEGMENT]
    copy = tmp_path / "copy" / SEGMENT.path
    assert copy.stat().st_size == len(data)
    entry = head_of(store).files[SEGMENT]
    columns = next(r for r in _ranges_without(spool, SEGMENT, entry) if r[0] >= entry.footer)
    before = store.requests
    have = spool.need_rows(SEGMENT, columns[0], columns[1] - columns[0])
    assert store.requests - before == 1
    assert have[0][0] <= columns[0] and columns[1] <= have[0][1]
    assert copy.read_bytes()[columns[0] : columns[1]] == data[columns[0] : columns[1]]
    spool.need_rows(SEGMENT, columns[0], columns[1] - columns[0])
    assert store.requests - before == 1


def _ranges_without(spool, file, entry):
    return spool._rows.of(file, entry.sealed).missing(0, entry.sealed)


def test_whatever_is_asked_for_is_what_the_run_has(golden, store, tmp_path):
    uploaded(golden, store)
    spool = spool_of(store, tmp_path / "copy")
    spool.open(whole=False)
    draw = random.Random(3)
    for file, data in segments(golden).items():
        for _ in range(12):
            begin = draw.randrange(len(data))
            size = draw.randrange(1, 2000)
            for first, last in spool.need_rows(file, begin, size):
                on_disk = (tmp_path / "copy" / file.path).read_bytes()
                assert on_disk[first:last] == data[first:last]
            assert on_disk[begin : begin + size] == data[begin : begin + size]
    for file, data in segments(golden).items():
        spool.need_rows(file, 0, len(data))
        assert (tmp_path / "copy" / file.path).read_bytes() == data
    assert not list((tmp_path / "copy").rglob("*.have"))


def test_who_asks_again_and_again_gets_the_rest(golden, store, tmp_path):
    uploaded(golden, store)
    spool = spool_of(store, tmp_path / "copy")
    spool.open(whole=False)
    entry = head_of(store).files[SEGMENT]
    before = store.requests
    for _ in range(50):
        holes = [r for r in _ranges_without(spool, SEGMENT, entry) or [] if r[1] > entry.footer]
        if not holes:
            break
        spool.need_rows(SEGMENT, max(holes[0][0], entry.footer), 1)
    assert 1 <= store.requests - before <= 5


def test_all_rows_are_fetched_for_who_reads_all_and_stay_so(golden, store, tmp_path):
    uploaded(golden, store)
    spool = spool_of(store, tmp_path / "copy")
    spool.open(whole=False)
    spool.open(whole=True)
    for file, data in segments(golden).items():
        assert (tmp_path / "copy" / file.path).read_bytes() == data
    again = spool_of(store, tmp_path / "copy")
    again.open(whole=False)
    before = store.requests
    for file, data in segments(golden).items():
        assert again.need_rows(file, 0, len(data)) == [(0, len(data))]
    assert store.requests == before
    other = spool_of(store, tmp_path / "whole")
    other.open()
    for file, data in segments(golden).items():
        assert (tmp_path / "whole" / file.path).read_bytes() == data


@pytest.mark.parametrize("orderly", [True, False])
def test_the_next_fetcher_knows_what_is_there(golden, store, tmp_path, orderly):
    uploaded(golden, store)
    spool = spool_of(store, tmp_path / "copy")
    spool.open(whole=False)
    data = segments(golden)[SEGMENT]
    spool.need_rows(SEGMENT, 0, 4097)
    if orderly:
        spool.save()
    again = spool_of(store, tmp_path / "copy")
    again.open(whole=False)
    before = store.requests
    again.need_rows(SEGMENT, 0, 4097)
    assert (store.requests == before) == orderly
    again.need_rows(SEGMENT, 0, len(data))
    assert (tmp_path / "copy" / SEGMENT.path).read_bytes() == data


class Growing:
    """Shows a run as it was when its segments were shorter."""

    def __init__(self, monkeypatch):
        self.most = {}
        whole = Uploader._lengths

        def lengths(uploader, payload):
            found = whole(uploader, payload)
            return {f: min(n, self.most.get(f, n)) for f, n in found.items() if self.most.get(f, n)}

        monkeypatch.setattr(Uploader, "_lengths", lengths)


def test_who_follows_a_run_has_its_frames_and_fetches_its_columns_when_asked(
    golden, store, tmp_path, monkeypatch
):
    growing, data = Growing(monkeypatch), segments(golden)
    second = stream_of("w0000", "m-000002.lfm")
    growing.most = dict.fromkeys(data, 0) | {SEGMENT: 5000}
    uploader = Uploader(str(golden), store)
    uploader.begin()
    uploader.flush()
    spool = spool_of(store, tmp_path / "copy")
    spool.open(whole=False)
    copy = tmp_path / "copy" / SEGMENT.path
    assert copy.read_bytes() == data[SEGMENT][:5000]
    growing.most = growing.most | {SEGMENT: len(data[SEGMENT]), second: 4500}
    uploader.flush()  # its rows; then what makes it quick to open, which the next head tells
    spool.refresh()
    footer = head_of(store).files[SEGMENT].bytes
    assert copy.read_bytes()[:footer] == data[SEGMENT][:footer]
    assert (tmp_path / "copy" / second.path).read_bytes() == data[second][:4500]
    uploader.flush()
    entry = head_of(store).files[SEGMENT]
    assert (entry.footer, entry.sealed) == (footer, len(data[SEGMENT]))
    spool.refresh()
    assert copy.read_bytes()[:footer] == data[SEGMENT][:footer]
    assert copy.read_bytes()[-64:] == data[SEGMENT][-64:]
    spool.need_rows(SEGMENT, footer, len(data[SEGMENT]) - footer)
    assert copy.read_bytes() == data[SEGMENT]


def test_a_fetcher_that_was_killed_while_it_sealed_a_copy(golden, store, tmp_path, monkeypatch):
    growing, data = Growing(monkeypatch), segments(golden)
    growing.most = {SEGMENT: 5000}
    uploader = Uploader(str(golden), store)
    uploader.begin()
    uploader.flush()
    spool_of(store, tmp_path / "copy").open(whole=False)
    growing.most = {}
    for _ in range(2):
        uploader.flush()
    entry = head_of(store).files[SEGMENT]
    copy = tmp_path / "copy" / SEGMENT.path
    for size, listed in (
        (5000, [[0, entry.footer]]),  # before the file got its length
        (entry.sealed, [[0, entry.footer]]),  # before its end was written
        (entry.sealed, "damaged"),
    ):
        copy.write_bytes((data[SEGMENT][: min(size, entry.footer)]).ljust(size, b"\0"))
        Path(f"{copy}.have").write_text(json.dumps({"boot": boot_id(), "ranges": listed}))
        spool = spool_of(store, tmp_path / "copy")
        spool.open(whole=False)
        assert copy.read_bytes()[-64:] == data[SEGMENT][-64:]
        spool.need_rows(SEGMENT, 0, entry.sealed)
        assert copy.read_bytes() == data[SEGMENT]


def test_frames_of_a_sealed_segment_are_put_together_once_another_is_sealed(
    golden, store, tmp_path, monkeypatch
):
    growing, data = Growing(monkeypatch), segments(golden)
    monkeypatch.setattr("luff.remote._uploader.MAX_TAIL", 100)  # many parts
    uploader = Uploader(str(golden), store)
    uploader.begin()
    second = stream_of("w0000", "m-000002.lfm")
    for length in (4200, 5000, len(data[SEGMENT]), len(data[SEGMENT])):
        growing.most = dict.fromkeys(data, 0) | {SEGMENT: length}
        uploader.flush()
    assert len(head_of(store).files[SEGMENT].ends) > 1
    growing.most |= {second: len(data[second])}
    for _ in range(3):
        uploader.flush()
    entry = head_of(store).files[SEGMENT]
    assert entry.ends == [entry.footer]
    uploader.flush("ended")
    parts = store.children(f"runs/{RUN_ID}/{SEGMENT.path}/")
    assert sorted(parts) == sorted([f"0-{entry.footer:x}", "footer"])
    spool = spool_of(store, tmp_path / "copy")
    spool.open()
    assert (tmp_path / "copy" / SEGMENT.path).read_bytes() == data[SEGMENT]
    assert (tmp_path / "copy" / second.path).read_bytes() == data[second]


def test_an_upload_that_goes_on_keeps_what_opens_the_run(golden, store, tmp_path):
    uploaded(golden, store, "live")
    second = uploaded(golden, store)
    names = {entry.index for entry in head_of(store).files.values() if entry.sealed}
    assert len(names) == 1  # put by the first
    assert second.sequence > 1
    spool = spool_of(store, tmp_path / "copy")
    spool.open(whole=False)
    for file, data in segments(golden).items():
        spool.need_rows(file, 0, len(data))
        assert (tmp_path / "copy" / file.path).read_bytes() == data


def test_a_merged_segment_takes_the_place_of_the_other(golden, store, tmp_path):
    uploader = uploaded(golden, store, "live")
    uploader.flush()
    old = golden / SEGMENT.path
    merged = stream_of("w0000", "m-000001-1.lfm")
    old.rename(golden / merged.path)
    for _ in range(3):
        uploader.flush()
    uploader.flush("ended")
    files = head_of(store).files
    assert SEGMENT not in files
    assert files[merged].sealed
    assert store.children(f"runs/{RUN_ID}/{SEGMENT.path}/") == []
    spool = spool_of(store, tmp_path / "copy")
    spool.open(whole=False)
    spool.need_rows(merged, 0, files[merged].sealed)
    assert (tmp_path / "copy" / merged.path).read_bytes() == (golden / merged.path).read_bytes()


def test_a_segment_that_no_reader_knows_travels_whole(golden, store, tmp_path):
    """Its last bytes look like those of a sealed one, and speak of bytes that are not there."""
    path = golden / "w0000" / "m-000001.lfm"
    data = bytearray(path.read_bytes())
    (footer,) = struct.unpack_from("<Q", data, len(data) - 56)
    struct.pack_into("<Q", data, footer + 32 + 56, 1 << 60)  # where its steps lie
    path.write_bytes(data)
    uploaded(golden, store)
    assert not head_of(store).files[SEGMENT].sealed
    spool = spool_of(store, tmp_path / "copy")
    spool.open(whole=False)
    assert (tmp_path / "copy" / SEGMENT.path).read_bytes() == data


def test_what_failed_half_way_is_tried_again(golden, store, tmp_path):
    uploaded(golden, store)
    (name,) = {entry.index for entry in head_of(store).files.values() if entry.sealed}
    key = _files.index_key(RUN_ID, 0, name)
    index = store.get(key, 1 << 20)[0]
    store.delete(key)
    spool = spool_of(store, tmp_path / "copy")
    for _ in range(2):
        with pytest.raises(Unreachable, match="an index of the run is not there"):
            spool.open(whole=False)
    store.put(key, index)
    spool.open(whole=False)
    assert (tmp_path / "copy" / SEGMENT.path).exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda i: i[: len(i) // 2], "the index"),
        (lambda i: zlib.compress(b"\0" * (64 << 20)), "more than"),
        (lambda i: zlib.compress(struct.pack("<I", 1 << 30) + bytes(10)), "cut off"),
        (lambda i: zlib.compress(zlib.decompress(i).replace(RUN_ID.encode(), b"0" * 32)), "another run"),
        (lambda i: zlib.compress(zlib.decompress(i)[:-1]), "cut off"),
        (lambda i: zlib.compress(zlib.decompress(i) + b"x"), "another length"),
    ],
)
def test_an_index_that_luff_does_not_write_is_named(golden, store, tmp_path, change, says):
    uploaded(golden, store)
    (name,) = {entry.index for entry in head_of(store).files.values() if entry.sealed}
    key = _files.index_key(RUN_ID, 0, name)
    store.put(key, change(store.get(key, 1 << 20)[0]))
    with pytest.raises(Refused, match=rf"{says}.*index-{name}"):
        spool_of(store, tmp_path / "copy").open(whole=False)


def _change_pieces(store, change):
    """Another index, whose pieces `change` has made of file, entry, offset and bytes of each."""
    head = head_of(store)
    (name,) = {entry.index for entry in head.files.values() if entry.sealed}
    key = _files.index_key(RUN_ID, 0, name)
    found = _sealed.parse_index_untrusted(store.get(key, 1 << 20)[0], RUN_ID)
    for file, one in found.items():
        pieces = [(at, change(head.files[file], one.end, at, data)) for at, data in one.pieces]
        found[file] = one._replace(pieces=[piece for piece in pieces if piece[1]])
    store.put(key, _sealed.pack_index(RUN_ID, list(found.values())))


@pytest.mark.parametrize(
    "change",
    [
        lambda entry, end, at, data: data[:-64] if at + len(data) == end else data,
        lambda entry, end, at, data: data[:-64] + bytes(64) if at + len(data) == end else data,
        lambda entry, end, at, data: data[:-56] + bytes(56) if at + len(data) == end else data,
        lambda entry, end, at, data: b"" if at == 0 else data,
        lambda entry, end, at, data: data[:100] if at == 0 else data,
    ],
)
def test_an_index_without_both_ends_of_a_file_is_named(golden, store, tmp_path, change):
    uploaded(golden, store)
    _change_pieces(store, change)
    with pytest.raises(Refused, match="both ends of w0000/m-"):
        spool_of(store, tmp_path / "copy").open(whole=False)


@pytest.mark.parametrize("whole", [False, True])
def test_where_an_index_is_wrong_all_is_fetched_from_the_segment(golden, store, tmp_path, whole):
    def flip(entry, end, at, data):
        inside = entry.footer + 40 - at
        if not 0 <= inside < len(data):
            return data
        return data[:inside] + bytes([data[inside] ^ 1]) + data[inside + 1 :]

    uploaded(golden, store)
    _change_pieces(store, flip)
    spool = spool_of(store, tmp_path / "copy")
    spool.open(whole=False)
    at = head_of(store).files[SEGMENT].footer + 40
    assert (tmp_path / "copy" / SEGMENT.path).read_bytes()[at] != segments(golden)[SEGMENT][at]
    if whole:
        spool.open(whole=True)
    for file, data in segments(golden).items():
        if not whole:
            spool.need_rows(file, 0, len(data))
        assert (tmp_path / "copy" / file.path).read_bytes() == data


def test_what_a_copy_had_before_the_machine_began_again_is_fetched_again(
    golden, store, tmp_path, monkeypatch
):
    """A power cut may leave the list of what is there, and zeros in its place."""
    uploaded(golden, store)
    spool_of(store, tmp_path / "copy").open(whole=False)
    copy, data = tmp_path / "copy" / SEGMENT.path, segments(golden)[SEGMENT]
    copy.write_bytes(bytes(len(data)))
    monkeypatch.setattr("luff.remote._rows.boot_id", lambda: "another")
    spool = spool_of(store, tmp_path / "copy")
    spool.open(whole=False)
    assert copy.read_bytes()[-64:] == data[-64:]
    spool.need_rows(SEGMENT, 100, 5000)
    assert copy.read_bytes()[:5100] == data[:5100]


def test_flipped_bits_of_an_index_are_refused_or_still_pieces(golden, tmp_path):
    store = open_store(f"file://{tmp_path}/bucket")
    uploaded(golden, store)
    (name,) = {entry.index for entry in head_of(store).files.values() if entry.sealed}
    plain = zlib.decompress(store.get(_files.index_key(RUN_ID, 0, name), 1 << 20)[0])
    draw = random.Random(5)
    for _ in range(2000):
        damaged = bytearray(plain)
        for _ in range(draw.choice((1, 1, 4))):
            damaged[draw.randrange(min(len(plain), 4000))] ^= 1 << draw.randrange(8)
        try:
            found = _sealed.parse_index_untrusted(zlib.compress(bytes(damaged), 1), RUN_ID)
        except BadObject:
            continue
        for file, one in found.items():
            assert ".." not in file.path
            assert all(at >= 0 and at + len(data) <= one.end for at, data in one.pieces)


def test_sizes_in_a_segment_are_not_believed():
    draw = random.Random(7)
    data = (RUN / "w0000" / "m-000001.lfm").read_bytes()
    (footer,) = struct.unpack_from("<Q", data, len(data) - 56)
    for _ in range(3000):
        damaged = bytearray(data)
        for _ in range(draw.choice((1, 2, 8))):
            where = draw.choice(
                (draw.randrange(footer, footer + 256), draw.randrange(len(data) - 600, len(data)))
            )
            damaged[where] = draw.randrange(256)
        asked = []

        def read(begin, end, damaged=damaged, asked=asked):
            assert 0 <= begin <= end <= len(damaged)
            asked.append(end - begin)
            return bytes(damaged[begin:end])

        found = _sealed.look(read, len(damaged), 1)
        assert sum(asked) < len(damaged)
        if found is not None:
            assert all(0 <= begin < end <= len(damaged) for begin, end in found.pieces)


def test_a_removed_head_still_leads_to_the_run(golden, store, tmp_path):
    uploaded(golden, store)
    store.delete(_files.head_key(RUN_ID, 0))
    spool = spool_of(store, tmp_path / "copy")
    spool.open()
    for name in ("control", "trainings", "rules", "w0000"):
        for path in (golden / name).rglob("*.json*") if (golden / name).exists() else ():
            assert (tmp_path / "copy" / path.relative_to(golden)).read_bytes() == path.read_bytes()
    for file, data in segments(golden).items():
        assert (tmp_path / "copy" / file.path).read_bytes() == data


def test_a_long_run_json_is_an_object_of_its_own(run, store, tmp_path):
    text = json.dumps({"format": "luff-run", "run_id": run.run_id, "command": ["x" * 50_000]})
    (run.path / "run.json").write_text(text)
    run.append("w0000/m-000001.lfm", b"row")
    uploaded(run, store)
    spool = spool_of(store, tmp_path / "copy", run.run_id)
    spool.open(whole=False)
    assert (tmp_path / "copy" / "run.json").read_text() == text


def test_of_two_hosts_the_one_that_made_the_run_tells_of_it(golden, store, tmp_path):
    uploaded(golden, store)
    other = tmp_path / "other"
    shutil.copytree(golden, other)
    (other / "run.json").write_text((golden / "run.json").read_text() + "\n")
    second = Uploader(str(other), store, uploader=1)
    second.begin()
    second.flush()
    head, _ = _head.parse_head_untrusted(store.get(_files.head_key(RUN_ID, 1), _head.MAX_HEAD)[0])
    assert head.run == (golden / "run.json").read_text()


@pytest.mark.parametrize(
    "wrong", [[1], [0, 9, 0], [9, 9, 0], [5000, 40 << 20, 0], [4096, 9000, 1], [4096, 9000, -1]]
)
def test_a_manifest_whose_segment_cannot_be_is_refused(wrong):
    files = [{"f": ["w", 0, "m", 1, 0], "p": [[8000, 1]], "s": wrong}]
    text = {
        "version": 1, "run_id": "0" * 32, "uploader": 0, "instance": "1" * 32, "sequence": 1, "host_unix_ns": 5,
        "state": "live", "interval_ms": 2000, "behind": False, "requests": 1, "puts": 1, "sent": 2, "files": files,
        "indexes": ["0" * 16],
    }  # fmt: skip
    body = zlib.compress(json.dumps(text).encode())
    with pytest.raises(BadObject, match="sealed segment"):
        _head.parse_head_untrusted(body + struct.pack("<II8s", len(body), 0, b"LUFFHEAD"))
    text["files"], text["indexes"] = [], ["../x"]
    body = zlib.compress(json.dumps(text).encode())
    with pytest.raises(BadObject, match="names an index"):
        _head.parse_head_untrusted(body + struct.pack("<II8s", len(body), 0, b"LUFFHEAD"))


# ---- Through the fetcher and the readers ----


def test_a_trial_reads_the_same_rows_and_asks_for_few(golden, base, tmp_path):
    store = open_store(base)
    uploaded(golden, store)
    here, there = luff_package.open_trial(golden), luff_package.open_trial(f"{base}/{RUN_ID}")
    copy = Path(there.path)
    assert list(copy.glob("w0000/m-*.have"))
    assert there.steps() == here.steps()
    compared = 0
    for name in here.tensors():
        mine, theirs = here.tensor(name).summaries(), there.tensor(name).summaries()
        assert list(theirs) == list(mine)
        for column in mine:
            assert [str(v) for v in theirs[column]] == [str(v) for v in mine[column]], (name, column)
            compared += 1
    assert compared


def test_rules_have_all_rows_before_they_judge(luff, with_findings, tmp_path, own_cache):
    base = f"file://{tmp_path}/bucket"
    store = open_store(base)
    uploaded(with_findings, store)
    run_id = json.loads((with_findings / "run.json").read_text())["run_id"]
    luff("show", f"{base}/{run_id}")
    assert list(own_cache.glob("*/*/*/w0000/*.have"))
    here = luff("check", with_findings, "--json", expect=None)
    there = luff("check", f"{base}/{run_id}", "--json", expect=None)
    assert here.stdout
    assert there.stdout == here.stdout
    assert not list(own_cache.glob("*/*/*/w0000/*.have"))
    assert luff("verify", f"{base}/{run_id}").returncode == 0


def test_rows_that_cannot_be_fetched_are_an_error_not_a_shorter_series(golden, tmp_path, monkeypatch):
    base = f"file://{tmp_path}/bucket"
    uploaded(golden, open_store(base))
    trial = luff_package.open_trial(f"{base}/{RUN_ID}")
    name = next(
        n for n in trial.tensors() if luff_package.open_trial(golden).tensor(n).summaries()["l2"].size
    )
    for footer in (tmp_path / "bucket" / "runs" / RUN_ID).glob("w0000/*/footer"):
        footer.write_bytes(footer.read_bytes()[:-100])  # shorter than it was
        footer.write_bytes(b"")
    with pytest.raises((errors.UnavailableError, errors.CorruptionError)):
        trial.tensor(name).summaries()


def test_other_threads_go_on_while_rows_are_fetched(golden, s3, proxy):
    """The proxy runs in threads of this process: a reader that held Python's lock would wait for itself."""
    uploaded(golden, open_store(s3))
    with luff_package.open_trial(f"{s3}/{RUN_ID}") as trial:
        proxy.requests.clear()
        series = [trial.tensor(name).summaries() for name in trial.tensors()]
        assert any("/footer" in path for _, path, _, _ in proxy.requests)
    assert any(one["l2"].size for one in series)


# ---- Encrypted ----


@pytest.fixture
def with_key(request, monkeypatch):
    """Uploads are encrypted, and read with the key."""
    pytest.importorskip("cryptography")
    monkeypatch.setenv("LUFF_BUCKET_KEY", str(request.getfixturevalue("key_file")))


@pytest.mark.usefixtures("with_key")
def test_sealed_segments_of_an_encrypted_run_are_opened_and_read_in_ranges(golden, store, tmp_path):
    uploaded(golden, uploading(store, str(golden), RUN_ID))
    for one in store.objects(f"runs/{RUN_ID}/", 1000):
        assert (
            store.get(f"runs/{RUN_ID}/{one.name}", 1 << 24)[0][0] == 40
        )  # as no object in plain text begins
    spool = spool_of(reading(store, RUN_ID), tmp_path / "copy")
    spool.open(whole=False)
    draw = random.Random(5)
    for file, data in segments(golden).items():
        assert (tmp_path / "copy" / file.path).stat().st_size == len(data)
        for _ in range(8):
            begin = draw.randrange(len(data))
            for first, last in spool.need_rows(file, begin, draw.randrange(1, 2000)):
                assert (tmp_path / "copy" / file.path).read_bytes()[first:last] == data[first:last]
    whole = spool_of(reading(store, RUN_ID), tmp_path / "whole")
    whole.open()
    for file, data in segments(golden).items():
        assert (tmp_path / "whole" / file.path).read_bytes() == data


@pytest.mark.usefixtures("with_key")
def test_a_range_of_an_encrypted_footer_costs_its_segments(run, store):
    own = uploading(store, str(run.path), run.run_id)
    uploaded(run.path, own)
    footer = random.Random(1).randbytes(4 << 20)
    key = _files.footer_key(run.run_id, SEGMENT)
    own.put(key, footer)
    reader = reading(store, run.run_id)
    assert reader.get(_files.head_key(run.run_id, 0), _head.MAX_HEAD) is not None
    for begin in (0, 70_000, 2 << 20, len(footer) - 100):
        before = store.received
        assert reader.get_range(key, begin, begin + 100, len(footer)) == footer[begin : begin + 100]
        assert store.received - before < 3 << 16
    with pytest.raises(Refused):  # a head that says another length: the last segment tells
        reader.get_range(key, len(footer) - 200, len(footer) - 100, len(footer) - 50)


def test_a_flush_does_not_wait_for_all_segments_that_were_sealed(golden, store, tmp_path):
    uploader = Uploader(os.fspath(golden), store, interval_s=0.0)
    uploader.begin()
    sealed = []
    for _ in range(8):
        uploader.flush()
        sealed.append(sum(entry.sealed > 0 for entry in uploader._manifest.files.values()))
    assert sealed[0] == 1
    assert sealed[-1] == len(segments(golden))
    spool = spool_of(store, tmp_path / "copy")
    spool.open()
    for file, data in segments(golden).items():
        assert (tmp_path / "copy" / file.path).read_bytes() == data
