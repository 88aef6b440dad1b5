"""Commits of who judges a run in its bucket: each finding once, whoever dies when, however many judges there are."""

from __future__ import annotations

import json
import random
import secrets

import pytest
from luff.remote import _commits
from luff.remote._commits import Commit, Findings, Ledger, pack_commit, parse_commit_untrusted
from luff.remote._errors import BucketError, Conflict, Refused, Unreachable
from luff.remote._files import commits_prefix
from luff.remote._head import BadObject
from luff.remote._store import open_store

RUN = "0123456789abcdef" * 2
LINES = [json.dumps({"id": f"f{i}", "event": "new", "what": "größer \u2028"}) for i in range(12)]


class Died(BaseException):
    """The process is killed."""


class Dying:
    """A store that lets its user die at a request: before it is carried out, or after."""

    def __init__(self, store, at, after):
        self._store, self._left, self._after = store, at, after
        self.url = store.url

    def __getattr__(self, name):
        of = getattr(self._store, name)

        def call(*words):
            self._left -= 1
            if self._left == 0 and not self._after:
                raise Died
            result = of(*words)
            if self._left == 0:
                raise Died
            return result

        return call


class Watch:
    """Judges one run as luff watch does: says what its own commits have, once."""

    def __init__(self, store, said, instance):
        self.said, self.known = said, set()
        self.ledger = Ledger(store, RUN, instance)
        self.ledger.load()
        self.known |= set(self.ledger.lines)
        for number, (_, ours, commit) in sorted(self.ledger.open.items()):
            if ours:
                self._act(number, commit)

    def find(self, lines):
        numbers = []

        def came(commit, ours):
            if ours:
                numbers.append(commit)
            self.known |= set(commit.lines)

        self.ledger.commit(lines, 1, {}, came)
        for commit in numbers:
            self._act(commit.number, commit)

    def _act(self, number, commit):
        self.said.append((number, commit.lines))  # with one id for each, so that twice is once
        self.ledger.done(number)


def every_commit(store):
    ledger = Ledger(store, RUN, "0" * 32)
    ledger.load()
    assert ledger.number == len([n for n in store.children(commits_prefix(RUN)) if len(n) == 6])
    found = [_commits.read_commit(store, RUN, n + 1) for n in range(ledger.number)]
    return [line for commit in found for line in commit.lines]


def test_each_line_is_committed_once_and_a_reader_gets_them_in_order(store, tmp_path):
    said = []
    watch = Watch(store, said, "a" * 32)
    watch.find(LINES[:3])
    watch.find(LINES[1:5])
    watch.find(LINES[:5])  # nothing is new: no request
    assert every_commit(store) == LINES[:5]
    assert [n for n, _ in said] == [1, 2]
    copy = tmp_path / "rules" / "findings.jsonl"
    findings = Findings(store, RUN)
    findings.look(str(copy), False)
    assert copy.read_text().split("\n") == [*LINES[:5], ""]
    watch.find(LINES)
    findings._next = 0.0
    findings.look(str(copy), False)
    assert copy.read_text().split("\n") == [*LINES, ""]


def test_killed_at_each_request_before_or_after_it(tmp_path):
    """Every line is committed once, and every commit is acted on: once, unless the kill came between act and note."""
    reached = 0
    for at in range(1, 12):
        for after in (False, True):
            store = open_store(f"file://{tmp_path}/{at}-{after}")
            said = []
            try:
                watch = Watch(Dying(store, at, after), said, "a" * 32)
                for upto in (4, 8, 12):
                    watch.find(LINES[:upto])
            except Died:
                reached = at
            watch = Watch(store, said, "a" * 32)  # the same state: it goes on
            for upto in (4, 8, 12):
                watch.find(LINES[:upto])
            assert every_commit(store) == LINES
            told = dict(said)
            assert [line for number in sorted(told) for line in told[number]] == LINES
            assert len(said) - len(told) <= 1
            assert Ledger(store, RUN, "b" * 32).take_over() == []
    assert reached == 8  # a list, a mark, three times a commit and its end: each was cut


def test_of_two_judges_one_says_each_line(store):
    said = {"a": [], "b": []}
    watches = {name: Watch(store, said[name], name * 32) for name in said}
    draw = random.Random(3)
    upto = {"a": 0, "b": 0}
    while min(upto.values()) < len(LINES):
        name = draw.choice("ab")
        upto[name] = min(len(LINES), upto[name] + draw.randint(0, 3))
        watches[name].find(LINES[: upto[name]])
    assert every_commit(store) == LINES
    spoken = sorted(line for one in said.values() for _, lines in one for line in lines)
    assert spoken == sorted(LINES)


def test_a_commit_that_nobody_acts_on_is_taken_over_by_one(store, monkeypatch):
    dead = Ledger(store, RUN, "a" * 32)
    dead.load()
    dead.commit(LINES[:2], 1, {}, lambda *_: None)  # and dies
    others = [Ledger(store, RUN, digit * 32) for digit in "bc"]
    for other in others:
        other.load()
        assert other.take_over() == []  # it may be about to
    monkeypatch.setattr(_commits, "TAKE_OVER_S", 0.0)
    won = [[commit.number for commit in other.take_over()] for other in others]
    assert won == [[1], []]  # the other sees that one has
    again = Ledger(store, RUN, "b" * 32)  # the winner was killed
    again.load()
    assert again.open[1][1]
    assert not Ledger(store, RUN, "a" * 32).open
    back = Ledger(store, RUN, "a" * 32)
    back.load()
    assert not back.open[1][1]  # it is not the dead one's any more
    again.done(1)
    assert others[1].take_over() == []
    assert others[1].open == {}


def test_what_two_judges_word_differently_stands_once(store, tmp_path):
    lines = [
        json.dumps({"id": "f1", "event": event, "severity": "warn", "what": what})
        for what in ("1.25", "about 1.2")
        for event in ("new", "update", "healed")
    ]
    said = []
    Watch(store, said, "a" * 32).find(lines[:3])
    Watch(store, said, "b" * 32).find(lines[3:])
    assert every_commit(store) == [*lines[:3], lines[4]]
    watch = Watch(store, said, "c" * 32)
    assert all(watch.ledger.knows(line) for line in lines)


def test_a_look_reads_some_commits_and_the_next_one_goes_on(store, tmp_path, monkeypatch):
    for line in LINES:
        Watch(store, [], "a" * 32).find([line])
    monkeypatch.setattr(_commits, "_MOST_AT_ONCE", 5)
    copy = tmp_path / "rules" / "findings.jsonl"
    findings, ledger = Findings(store, RUN), Ledger(store, RUN, "a" * 32)
    for upto in (5, 10, 12):
        assert not ledger.loaded
        findings.look(str(copy), False)
        ledger.load()
        assert copy.read_text().split("\n") == [*LINES[:upto], ""]
        assert ledger.lines == LINES[:upto]
    assert ledger.loaded
    monkeypatch.setattr(_commits, "MAX_NUMBER", 11)
    for look in (Ledger(store, RUN, "b" * 32).load, lambda: Watch(store, [], "b" * 32)):
        with pytest.raises(Refused, match="more than 11 commits"):
            look()


def test_half_a_line_on_a_full_disk_is_written_anew(store, tmp_path, monkeypatch):
    Watch(store, [], "a" * 32).find(LINES[:2])
    Watch(store, [], "a" * 32).find(LINES[:4])
    copy = tmp_path / "rules" / "findings.jsonl"
    findings, real, left = Findings(store, RUN), Findings._append, [2]

    def append(self, path, lines):
        left[0] -= 1
        if left[0] == 0:
            real(self, path, ["half"])
            raise OSError(28, "No space left on device")
        real(self, path, lines)

    monkeypatch.setattr(Findings, "_append", append)
    with pytest.raises(OSError, match="No space"):
        findings.look(str(copy), False)
    findings.look(str(copy), False)
    assert copy.read_text().split("\n") == [*LINES[:4], ""]


class Lossy:
    """A store whose answers are lost now and then, or which throttles; what a client then reports."""

    def __init__(self, store, draw):
        self._store, self._draw = store, draw
        self.url = store.url

    def __getattr__(self, name):
        of = getattr(self._store, name)

        def call(*words):
            chance = self._draw.random()
            if chance < 0.15:
                raise Unreachable("503 SlowDown")
            if chance < 0.25 and name == "put_new":
                raise Conflict("409, and nothing was written")
            result = of(*words)
            if chance < 0.4 and name == "put_new":
                raise Conflict("its own put, repeated by the client")
            if chance < 0.45:
                raise Unreachable("the answer was lost")
            return result

        return call


def test_answers_that_are_lost_and_a_store_that_throttles(store):
    draw = random.Random(7)
    said = {"a": [], "b": []}
    for _ in range(400):
        name = draw.choice("ab")
        try:
            Watch(Lossy(store, draw), said[name], name * 32).find(LINES[: draw.randint(1, len(LINES))])
        except BucketError:
            continue
    Watch(store, said["a"], "a" * 32).find(LINES)
    Watch(store, said["b"], "b" * 32)
    assert sorted(every_commit(store)) == sorted(LINES)
    numbers = {name: {n for n, _ in one} for name, one in said.items()}
    assert not numbers["a"] & numbers["b"]  # nobody acts on the other's
    spoken = {n: lines for one in said.values() for n, lines in one}
    assert sorted(line for lines in spoken.values() for line in lines) == sorted(LINES)


def test_what_a_commit_must_not_be():
    told = Commit(3, "a" * 32, (LINES[0],), 7, {0: 5, 3: 9}, "0123456789abcdef")
    good = pack_commit(RUN, told)
    assert parse_commit_untrusted(good, RUN, 3) == told
    earlier = pack_commit(RUN, told._replace(rules=""))  # of a Luff that did not say by which rules
    assert b"rules" not in earlier
    assert parse_commit_untrusted(earlier, RUN, 3).rules == ""
    text = json.loads(good)
    for change in (
        {"version": 0}, {"version": 2}, {"run_id": "f" * 32}, {"number": 4}, {"instance": "x"}, {"steps": -1},
        {"steps": True},
        {"lines": ['{"what": "' + "é" * 600_000 + '"}']},
        {"lines": ["no finding"]}, {"lines": ['{"a": 1}\n{"b": 2}']}, {"lines": [3]}, {"lines": {}},
        {"heads": [[0]]}, {"heads": [[0, -1]]}, {"heads": [[10_000, 1]]}, {"heads": 3}, {"format": "else"},
        {"rules": "x"}, {"rules": 7}, {"rules": None}, {"rules": "0123456789abcde\n"},
    ):  # fmt: skip
        with pytest.raises(BadObject):
            parse_commit_untrusted(json.dumps(text | change).encode(), RUN, 3)
    draw = random.Random(1)
    for _ in range(300):
        data = bytearray(good)
        for _ in range(draw.randint(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        try:
            parse_commit_untrusted(bytes(data[: draw.randint(0, len(data))]), RUN, 3)
        except BadObject:
            pass
    with pytest.raises(BadObject):
        parse_commit_untrusted(b"[" * 100_000, RUN, 3)


def test_a_commit_that_is_too_large_or_missing_is_named(store):
    store.put_new(_commits.commit_key(RUN, 2), pack_commit(RUN, Commit(2, "a" * 32, (), 0, {})))
    with pytest.raises(Refused, match=r"a commit is missing: .*000001"):
        Ledger(store, RUN, "b" * 32).load()
    store.put_new(_commits.commit_key(RUN, 1), b" " * (_commits.MAX_COMMIT + 1))
    with pytest.raises(Refused, match="000001"):
        Ledger(store, RUN, "b" * 32).load()


def test_many_findings_take_several_commits(store, monkeypatch):
    monkeypatch.setattr(_commits, "MAX_COMMIT", 200 << 10)
    long = [json.dumps({"id": secrets.token_hex(8), "what": "x" * 30_000}) for _ in range(9)]
    said = []
    Watch(store, said, "a" * 32).find(long)
    assert [line for _, lines in said for line in lines] == long
    assert len(said) > 2
