"""The bytes of a bucket: golden files, everything that is not what it should be."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from luff.remote import _head
from luff.remote._cache import Cache
from luff.remote._checkpoint import checkpoint_key, get_checkpoint
from luff.remote._commits import Commit, Findings, Ledger, commit_key, pack_commit, read_commit
from luff.remote._files import File, parse_file_untrusted, stream_of
from luff.remote._head import BadObject, Entry, Manifest, pack, parse_head_untrusted
from luff.remote._judged_card import judged_card_key
from luff.remote._spool import Spool
from luff.remote._store import FolderStore

TESTDATA = Path(__file__).parents[3] / "testdata"
GOLDEN = TESTDATA / "bucket" / "v1"
RUN = TESTDATA / "format" / "v1" / "run"
STATES = ("live", "ended", "sealed", "judged")


def golden_head(state):
    (head,) = (GOLDEN / state).glob("live/*/*/u0000")
    return head.read_bytes()


def judged_bucket(tmp_path):
    """A copy of the golden bucket whose run was judged; what its twin says."""
    shutil.copytree(GOLDEN / "judged", tmp_path / "bucket")
    store = FolderStore(f"file://{tmp_path}/bucket", str(tmp_path / "bucket"))
    return store, json.loads((GOLDEN / "judged.expected.json").read_text())


def packed(manifest, tail=b""):
    """A head of any manifest."""
    body, tail = zlib.compress(json.dumps(manifest).encode()), zlib.compress(tail) if tail else b""
    return tail + body + struct.pack("<II8s", len(body), len(tail), b"LUFFHEAD")


def plain(**changes):
    manifest = {
        "version": 1, "run_id": "0" * 32, "uploader": 0, "instance": "1" * 32, "sequence": 1, "host_unix_ns": 5,
        "state": "live", "interval_ms": 2000, "behind": False, "requests": 1, "puts": 1, "sent": 2, "files": [],
    }  # fmt: skip
    return manifest | changes


@pytest.mark.parametrize("state", STATES)
def test_the_golden_bucket_is_what_its_twin_says(state):
    manifest, tails = parse_head_untrusted(golden_head(state))
    found = asdict(manifest) | {"files": []}
    for file, entry in manifest.files.items():
        digest = hashlib.sha256(tails[file]).hexdigest() if file in tails else ""
        found["files"].append({"path": file.path, **asdict(entry), "tail_sha256": digest})
    twin = json.loads((GOLDEN / f"{state}.expected.json").read_text())
    assert found == (twin["head"] if state == "judged" else twin)


def test_what_was_committed_is_what_the_twin_says(tmp_path):
    store, twin = judged_bucket(tmp_path)
    run_id = twin["run_id"]
    for number, told in enumerate(twin["commits"], 1):
        wanted = Commit(
            number, told["instance"], tuple(told["lines"]), told["steps"], dict(told["heads"]), told["rules"]
        )
        assert read_commit(store, run_id, number) == wanted
        data = (tmp_path / "bucket" / commit_key(run_id, number)).read_bytes()
        assert pack_commit(run_id, wanted) == data  # also what this Luff writes
    assert read_commit(store, run_id, len(twin["commits"]) + 1) is None
    assert get_checkpoint(store, run_id) == (twin["checkpoint"], twin["findings"])
    packed = (tmp_path / "bucket" / checkpoint_key(run_id)).read_bytes()
    assert json.loads(zlib.decompress(packed)) == twin["checkpoint_object"]
    assert json.loads((tmp_path / "bucket" / judged_card_key(run_id)).read_text()) == twin["judged_card"]
    folder = tmp_path / "bucket"
    assert sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()) == twin["objects"]


def test_who_judges_and_who_reads_take_up_the_golden_commits(tmp_path):
    store, twin = judged_bucket(tmp_path)
    lines = [line for commit in twin["commits"] for line in commit["lines"]]
    ledger = Ledger(store, twin["run_id"], twin["taken"], "0123456789abcdef")
    ledger.load()
    assert (ledger.loaded, ledger.number, ledger.open) == (True, 3, {})  # all was acted on
    assert ledger.lines == lines
    assert all(map(ledger.knows, lines))
    assert ledger.last.heads == {0: twin["head"]["sequence"]}  # and the run is judged to its end
    assert not ledger.ended_by_others
    other = Ledger(store, twin["run_id"], "c" * 32, "f" * 16)
    other.load()
    assert other.ended_by_others
    ledger.commit(lines, 8, {0: twin["head"]["sequence"]}, lambda *_: pytest.fail("something was new"))
    Findings(store, twin["run_id"]).look(str(tmp_path / "rules" / "findings.jsonl"), ended=True)
    assert (tmp_path / "rules" / "findings.jsonl").read_text() == "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize("state", STATES)
def test_a_copy_of_the_golden_bucket_is_the_run(state, tmp_path):
    shutil.copytree(GOLDEN / state, tmp_path / "bucket")
    store = FolderStore(f"file://{tmp_path}/bucket", str(tmp_path / "bucket"))
    run_id = json.loads((RUN / "run.json").read_text())["run_id"]
    with ThreadPoolExecutor(2) as pool:
        spool = Spool(
            str(tmp_path / "copy"), f"{store.url}/{run_id}", store, run_id, "/socket", Cache(1 << 30), pool
        )
        spool.open()
        for file in RUN.rglob("*.lf[md]"):
            copy = tmp_path / "copy" / file.relative_to(RUN)
            assert copy.stat().st_size == file.stat().st_size
            if file.suffix == ".lfd":
                spool.need(stream_of(file.parent.name, file.name), 0, file.stat().st_size)
            assert copy.read_bytes() == file.read_bytes()


def test_a_head_that_is_cut_off_anywhere_is_refused():
    head = golden_head("live")
    for length in range(len(head)):
        with pytest.raises(BadObject):
            parse_head_untrusted(head[:length])


def test_a_head_with_flipped_bits_is_refused_or_still_a_head():
    head, draw = golden_head("ended"), random.Random(1)
    for _ in range(3000):
        damaged = bytearray(head)
        for _ in range(draw.choice((1, 1, 3))):
            damaged[draw.randrange(len(head))] ^= 1 << draw.randrange(8)
        try:
            manifest, _ = parse_head_untrusted(bytes(damaged))
        except BadObject:
            continue
        assert all(".." not in file.path for file in manifest.files)


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda x: st.lists(x, max_size=6)
    )
)
def test_names_are_made_of_numbers_and_known_words(name):
    try:
        file = parse_file_untrusted(name)
    except ValueError:
        return
    assert ".." not in file.path and not file.path.startswith("/") and "\n" not in file.path


@pytest.mark.parametrize(
    "name",
    [
        ["w", 0, "m", 0, 0], ["w", -1, "m", 1, 0], ["w", 0, "x", 1, 0], ["w", 0, "d", 1, 1], ["w", True, "m", 1, 0],
        ["w", 0, "m", 1 << 24, 0], ["../..", 1], ["control", 1_000_000], ["control", "../x"], ["findings", 1], [],
        ["w", 0.0, "m", 1, 0], "findings", {"w": 1}, ["w", 1 << 32, "m", 1, 0],
    ],
)  # fmt: skip
def test_a_wrong_name_is_refused(name):
    with pytest.raises(ValueError, match="no file of a run"):
        parse_file_untrusted(name)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"version": 0},
            "version 0 of the bucket format, which no released Luff has written; upload the run again",
        ),
        (
            {"version": 2},
            "version 2 of the bucket format, this Luff reads 1; a later Luff has written it: install",
        ),
        ({"version": "1"}, "does not tell its version"),
        ({"version": True}, "does not tell its version"),
        ({"puts": None}, "puts"),
        ({"files": [{"f": ["../x", 1]}]}, "no file of a run"),
        ({"files": [{"f": ["notes", [1]]}]}, "no file of a run"),
        ({"files": [{"f": ["notes", 1], "t": 5}]}, "5 bytes of tail"),
        ({"files": [{"f": ["notes", 1], "p": [[9 << 20, 1]]}]}, "parts"),
        ({"run_id": "../../etc"}, "run_id"),
        ({"instance": "x"}, "instance"),
        ({"state": "dead"}, "state"),
        ({"sequence": -1}, "sequence"),
        ({"sequence": True}, "sequence"),
        ({"host_unix_ns": 1 << 70}, "host_unix_ns"),
        ({"files": {}}, "list"),
        ({"files": [1]}, "entry"),
        ({"files": [{"f": ["w", 0, "m", 1, 0], "t": 5}]}, "5 bytes of tail"),
        ({"files": [{"f": ["w", 0, "m", 1, 0]}, {"f": ["w", 0, "m", 1, 0]}]}, "twice"),
        ({"files": [{"f": ["w", 0, "m", 1, 0], "p": [[0, 1]]}]}, "parts"),
        ({"files": [{"f": ["w", 0, "m", 1, 0], "p": [[1, 1 << 40]]}]}, "parts"),
        ({"files": [{"f": ["w", 0, "m", 1, 0], "p": [[(8 << 20) - 1, 1], [2, 1]]}]}, "two windows"),
        ({"files": [{"f": ["w", 0, "m", 1, 0], "p": [[9 << 20, 1]]}]}, "parts"),
        ({"files": [{"f": ["w", 0, "m", 1, 0], "r": -1}]}, "wrong number"),
    ],
)
def test_a_manifest_that_luff_does_not_write_is_refused(changes, says):
    with pytest.raises(BadObject, match=says):
        parse_head_untrusted(packed(plain(**changes)))


def test_the_plain_manifest_is_good():
    assert parse_head_untrusted(packed(plain()))[0].run_id == "0" * 32


def test_what_a_later_luff_may_add_is_passed_over():
    """Members, and kinds of files, also in the middle of the tail; the rest is read as it is."""
    files = [
        {"f": ["findings"], "t": 3, "colour": "blue"},
        {"f": ["notes", 7, "de"], "t": 4, "p": [[10, 2]], "s": [1, 2, 3]},
        {"f": ["w", 0, "m", 1, 0], "t": 2},
    ]
    manifest, tails = parse_head_untrusted(packed(plain(files=files, later={"a": 1}), b"abcNOTEde"))
    assert [file.path for file in manifest.files] == ["rules/luff/findings.jsonl", "w0000/m-000001.lfm"]
    assert list(tails.values()) == [b"abc", b"de"]


def test_bombs_are_given_up_at_the_limit():
    bomb = zlib.compress(b"\0" * (64 << 20), 9)
    head = bomb + struct.pack("<II8s", len(bomb), 0, b"LUFFHEAD")
    with pytest.raises(BadObject, match="more than"):
        parse_head_untrusted(head)
    body = zlib.compress(json.dumps(plain()).encode())
    with pytest.raises(BadObject, match="more than"):
        parse_head_untrusted(bomb + body + struct.pack("<II8s", len(body), len(bomb), b"LUFFHEAD"))
    deep = zlib.compress(b"[" * 1_000_000)
    with pytest.raises(BadObject):
        parse_head_untrusted(deep + struct.pack("<II8s", len(deep), 0, b"LUFFHEAD"))


sizes = st.lists(st.integers(1, 3 << 20), max_size=30)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.tuples(st.sampled_from("wh"), st.integers(0, 99), st.sampled_from("md"), st.integers(1, 99)),
        sizes,
        max_size=8,
    )
)
def test_what_is_packed_is_read_again(files):
    manifest = Manifest("a" * 32, instance="b" * 32, sequence=7, host_unix_ns=9, behind=True)
    tails = []
    for i, (name, parts) in enumerate(files.items()):
        entry = Entry(tail=i % 3, lost=i % 2 == 0)
        for size in parts:
            begin = entry.in_parts
            entry.ends.append(min(begin + size, (begin // _head.WINDOW + 1) * _head.WINDOW))
        manifest.files[File(*name)] = entry
        if entry.tail:
            tails.append(bytes([i]) * entry.tail)
    again, found = parse_head_untrusted(pack(manifest, tails))
    assert again == manifest
    assert list(found.values()) == tails
