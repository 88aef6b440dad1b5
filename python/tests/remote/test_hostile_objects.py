"""Objects of a bucket in which anything was replaced: an error that says so, or a value within its limits.

Their parsers are in Python, where a wrong value is an exception and not a bad pointer, so a property over many seeds
takes the place of a fuzzer of bytes; it changes members of the JSON, too, which random bytes seldom reach. A seed that
fails is in the name of the assertion.
"""

from __future__ import annotations

import copy
import json
import random
import struct
import zlib
from pathlib import Path

import pytest
from luff.remote import _bucket, _checkpoint, _commits, _files, _head, _sealed
from luff.remote._commits import parse_commit_untrusted
from luff.remote._errors import BucketError
from luff.remote._head import BadObject, parse_head_untrusted
from luff.remote._judged_card import with_judged

GOLDEN = Path(__file__).parents[3] / "testdata" / "bucket" / "v1"
RUN_ID = "01080f161d242b323940474e555c636a"
SOME = range(1500)
MANY = range(1500, 60_000)
VALUES = (
    None, True, False, -1, 0, 1, 2, 1 << 31, 1 << 40, 1 << 62, 1 << 64, 1 << 200, 0.0, -0.5, 1e308, float("nan"),
    float("inf"), "", "x", "0" * 32, "../../etc/passwd", "a\nb", "\0", "\ud800", "é" * 300, "x" * 70_000, [], [[]],
    [0], {}, {"f": 1}, [[1, 1]], [[1 << 50, 1 << 50]], [None] * 20,
)  # fmt: skip


def places(value, at=()):
    """Paths of all that is in a value of JSON, itself too."""
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*at, key))


def changed(value, draw):
    """The value with some of what is in it replaced, removed, repeated, or put into another place."""
    value = copy.deepcopy(value)
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.choice(list(places(value)))
        if not at:
            continue
        parent = value
        for key in at[:-1]:
            parent = parent[key]
        how = draw.randrange(6)
        if how == 0 and isinstance(parent, dict):
            del parent[at[-1]]
        elif how == 1 and isinstance(parent, list):
            parent.insert(at[-1], copy.deepcopy(parent[at[-1]]))
        elif how == 2:
            from_ = draw.choice(list(places(value)))
            other = value
            for key in from_:
                other = other[key]
            parent[at[-1]] = copy.deepcopy(other)
        elif how == 3 and isinstance(parent[at[-1]], int):
            parent[at[-1]] = int(parent[at[-1]]) + draw.choice((-1, 1, 255, 1 << 20))
        else:
            parent[at[-1]] = copy.deepcopy(draw.choice(VALUES))
    return value


def spoiled(data, draw):
    """Bytes with some of them replaced, cut out, repeated or cut off."""
    data = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(data)) if data else 0
        how = draw.randrange(5)
        if how == 0:
            del data[at:]
        elif how == 1:
            del data[at : at + draw.randint(1, 20)]
        elif how == 2:
            data[at:at] = data[at : at + draw.randint(1, 20)]
        elif data:
            data[at] = draw.randrange(256) if how == 3 else data[at] ^ (1 << draw.randrange(8))
    return bytes(data)


class One:
    """A store of one object."""

    url = "s3://bucket/team"

    def __init__(self, data):
        self._data = data

    def get(self, _key, most):
        assert len(self._data) <= most
        return self._data, "etag"


class Head:
    """A head: tail, manifest, and their sizes."""

    def __init__(self, state):
        (path,) = (GOLDEN / state).glob("live/*/*/u0000")
        self.good = path.read_bytes()
        body, tail, _ = struct.unpack("<II8s", self.good[-16:])
        self._tail = self.good[:tail]
        self.json = json.loads(zlib.decompress(self.good[tail : tail + body]))

    def pack(self, value):
        body = zlib.compress(json.dumps(value).encode(errors="surrogatepass"), 1)
        return self._tail + body + struct.pack("<II8s", len(body), len(self._tail), b"LUFFHEAD")

    def check(self, data):
        manifest, tails = parse_head_untrusted(data)
        assert _files.is_run_id(manifest.run_id)
        for file, entry in manifest.files.items():
            assert ".." not in file.path
            assert not file.path.startswith("/")
            assert "\n" not in file.path
            assert entry.bytes <= _files.MAX_BYTES
            assert entry.ends == sorted(set(entry.ends))
            assert len(tails.get(file, b"")) == entry.tail


class Commit:
    """A commit of who judges the run."""

    good = (GOLDEN / f"judged/rules/luff/{RUN_ID}/000001").read_bytes()
    json = json.loads(good)

    def pack(self, value):
        return json.dumps(value).encode()

    def check(self, data):
        commit = parse_commit_untrusted(data, RUN_ID, 1)
        assert len(commit.lines) <= _commits.MAX_LINES
        for line in commit.lines:
            assert line.startswith("{")
            assert "\n" not in line
            _commits._hash(line)
        assert all(0 <= uploader <= _files.MAX_UPLOADER for uploader in commit.heads)
        assert commit.rules == "" or len(commit.rules) == 16


class Checkpoint:
    """Where who judges the run goes on."""

    good = (GOLDEN / f"judged/rules/luff/{RUN_ID}/checkpoint").read_bytes()
    json = json.loads(zlib.decompress(good))

    def pack(self, value):
        return zlib.compress(json.dumps(value).encode(), 1)

    def check(self, data):
        checkpoint, findings = _checkpoint.get_checkpoint(One(data), RUN_ID)
        assert isinstance(checkpoint, str)
        assert isinstance(findings, str)


class JudgedCard:
    """What lists of runs say of who judges the run."""

    good = (GOLDEN / f"judged/cards/{RUN_ID}.judged").read_bytes()
    json = json.loads(good)

    def pack(self, value):
        return json.dumps(value).encode()

    def check(self, data):
        card = json.dumps({"card": 1, "run_id": RUN_ID, "verdict": "ok", "findings": {"count": 0}}).encode()
        whole = json.loads(with_judged(card, data, RUN_ID))
        assert (whole["card"], whole["run_id"]) == (1, RUN_ID)
        assert whole["verdict"] in ("ok", "findings")


class Bucket:
    """What says that a prefix is Luff's."""

    good = (GOLDEN / "live/luff.json").read_bytes()
    json = json.loads(good)

    def pack(self, value):
        return json.dumps(value).encode()

    def check(self, data):
        _bucket.check_bucket_untrusted(data, "s3://bucket/team")


class Index:
    """What opens sealed segments."""

    def __init__(self):
        (path,) = (GOLDEN / "sealed").glob("runs/*/u0000/index-*")
        self.good = path.read_bytes()
        whole = zlib.decompress(self.good)
        (size,) = struct.unpack_from("<I", whole)
        self.json, self._pieces = json.loads(whole[4 : 4 + size]), whole[4 + size :]

    def pack(self, value):
        header = json.dumps(value).encode()
        return zlib.compress(struct.pack("<I", len(header)) + header + self._pieces, 1)

    def check(self, data):
        for file, one in _sealed.parse_index_untrusted(data, RUN_ID).items():
            assert ".." not in file.path
            begins = [begin for begin, _ in one.pieces]
            assert begins == sorted(begins)
            assert all(begin + len(piece) <= one.end for begin, piece in one.pieces)


KINDS = {
    "head-live": lambda: Head("live"),
    "head-sealed": lambda: Head("sealed"),
    "commit": Commit,
    "checkpoint": Checkpoint,
    "judged-card": JudgedCard,
    "bucket": Bucket,
    "index": Index,
}


@pytest.mark.parametrize(
    "seeds", [SOME, pytest.param(MANY, marks=pytest.mark.thorough)], ids=["some", "many"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_refused_or_within_its_limits(kind, seeds):
    one = KINDS[kind]()
    one.check(one.good)
    one.check(one.pack(one.json))
    for seed in seeds:
        draw = random.Random(seed)
        data = spoiled(one.good, draw) if seed % 3 == 0 else one.pack(changed(one.json, draw))
        try:
            one.check(data)
        except (BadObject, BucketError):
            continue
        except Exception as error:
            raise AssertionError(f"{kind}, seed {seed}: {type(error).__name__}: {error}") from error


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("commit", "judged-card", "bucket")])
def test_a_stream_that_unpacks_to_too_much_is_given_up(kind):
    one = KINDS[kind]()
    bomb = zlib.compress(b"[" * (1 << 27), 9)
    assert len(bomb) < _head.MAX_HEAD
    for data in (bomb, bomb + struct.pack("<II8s", len(bomb), 0, b"LUFFHEAD")):
        try:
            one.check(data)
        except (BadObject, BucketError):
            continue
        assert kind == "checkpoint"  # one that cannot be read is none
