"""Commits of who judges a run in its bucket: ``rules/luff/ID/NNNNNN``, numbered from 1, put if absent.

The first put of a number counts, so of any number of judges one has said a finding, and no lock, lease or clock is
needed. Findings depend on the run alone: what two of them find is the same. docs/spec/bucket-format.md, section 14.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from typing import TYPE_CHECKING, NamedTuple

from luff.remote import _files
from luff.remote._errors import Absent, Conflict, Refused, Unreachable
from luff.remote._head import BadObject
from luff.remote._put_once import put_unless_there

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from luff.remote._store import Store

FORMAT = "luff-commit"
MAX_COMMIT = 4 << 20
MAX_NUMBER = 10_000
MAX_LINES = 10_000
MAX_LINE = 3 << 20  # bytes of one as ASCII JSON: who judges is told of it in a line of 4 MiB
MAX_FINDINGS = 64 << 20  # bytes of all lines of a run, each with what it costs in memory
_LINE_COSTS = 200
_MOST_AT_ONCE = 200  # commits that are read in one look
# A commit whose actions nobody has carried out for so long is taken over. It is time that this process has seen pass.
TAKE_OVER_S = 60.0
_LOOK_S = 5.0  # readers, for the next commit of a live run
_LOOK_ENDED_S = 30.0
_ATTEMPTS = 100
_INSTANCE = re.compile(r"[0-9a-f]{32}")
_RULES = re.compile(r"([0-9a-f]{16})?")
_NAME = re.compile(r"([0-9]{6})(\.done|\.taken-([1-9][0-9]{0,2}))?")


class Commit(NamedTuple):
    number: int
    instance: str  # of who has put it
    lines: tuple[str, ...]  # of findings, as rules/luff/findings.jsonl has them, without line feeds
    steps: int  # that were judged then
    heads: dict[int, int]  # sequences of the heads, if the run was judged to its end; else empty
    rules: str = ""  # tells by which rules and parameters, if it was; "": not known


def commit_key(run_id: str, number: int) -> str:
    return f"{_files.commits_prefix(run_id)}{number:06d}"


def pack_commit(run_id: str, commit: Commit) -> bytes:
    return json.dumps(
        {
            "format": FORMAT,
            "version": _files.VERSION,
            "run_id": run_id,
            "number": commit.number,
            "instance": commit.instance,
            "steps": commit.steps,
            "heads": [[uploader, sequence] for uploader, sequence in sorted(commit.heads.items())],
            "lines": list(commit.lines),
            **({"rules": commit.rules} if commit.rules else {}),
        }
    ).encode()


def parse_commit_untrusted(data: bytes, run_id: str, number: int) -> Commit:
    """Parses a commit. BadObject if it is none, or of another run, number or version."""
    try:
        text = json.loads(data)
    except (ValueError, RecursionError):
        text = None
    if not isinstance(text, dict) or text.get("format") != FORMAT:
        raise BadObject("the object is no commit of Luff")
    if not _files.is_version(text.get("version")):
        raise BadObject(_files.other_version(text.get("version")))
    if text.get("run_id") != run_id or text.get("number") != number:
        raise BadObject("the commit is of another run, or has another number")
    instance, steps, lines = text.get("instance"), text.get("steps"), text.get("lines")
    if not isinstance(instance, str) or _INSTANCE.fullmatch(instance) is None:
        raise BadObject("the commit has no instance of 32 hexadecimal digits")
    if type(steps) is not int or not 0 <= steps < 1 << 62:
        raise BadObject("the commit has no number of steps")
    if not isinstance(lines, list) or len(lines) > MAX_LINES:
        raise BadObject(f"the commit has no list of at most {MAX_LINES} lines")
    for line in lines:
        if not isinstance(line, str) or not line.startswith("{") or "\n" in line or "\r" in line:
            raise BadObject("a line of the commit is no finding")
        if _is_long(line):
            raise BadObject(f"a line of the commit has more than {MAX_LINE >> 20} MiB")
    rules = text.get("rules", "")
    if not isinstance(rules, str) or _RULES.fullmatch(rules) is None:
        raise BadObject("the commit does not tell its rules by 16 hexadecimal digits")
    return Commit(number, instance, tuple(lines), steps, _heads_untrusted(text.get("heads")), rules)


def _heads_untrusted(heads: object) -> dict[int, int]:
    found: dict[int, int] = {}
    if not isinstance(heads, list) or len(heads) > _files.MAX_UPLOADER:
        raise BadObject("the commit has no list of heads")
    for pair in heads:
        good = (
            isinstance(pair, list)
            and len(pair) == 2
            and all(type(n) is int and 0 <= n < 1 << 62 for n in pair)
        )
        if not good or pair[0] > _files.MAX_UPLOADER:
            raise BadObject("the commit names a head that is none")
        found[pair[0]] = pair[1]
    return found


def read_commit(store: Store, run_id: str, number: int) -> Commit | None:
    """None if there is none of that number. Raises a BucketError."""
    key = commit_key(run_id, number)
    try:
        found = store.get(key, MAX_COMMIT)
    except Absent:
        return None
    try:
        return parse_commit_untrusted(found[0] if found else b"", run_id, number)
    except BadObject as error:
        raise Refused(f"{error}: {store.url}/{key}") from None


def _is_long(line: str) -> bool:
    return len(line) > MAX_LINE // 12 and len(json.dumps(line)) > MAX_LINE


def _hash(line: str) -> bytes:
    """What tells a line from others. A finding begins and heals once, whatever texts two judges have for it."""
    try:
        text = json.loads(line)
        if text["event"] in ("new", "healed"):
            line = json.dumps([text["id"], text["event"], text["severity"]])
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    return hashlib.blake2b(line.encode(errors="surrogatepass"), digest_size=16).digest()


def _first_of_each(lines: Iterable[str]) -> Iterable[str]:
    found: dict[bytes, str] = {}
    for line in lines:
        found.setdefault(_hash(line), line)
    return found.values()


def _size(lines: Iterable[str]) -> int:
    return sum(len(line.encode(errors="surrogatepass")) + _LINE_COSTS for line in lines)


class Ledger:
    """The commits of one run, as who judges it sees them. **Not thread-safe.** Methods raise BucketError.

    `instance`: whose commits are ours, also after this process was killed and started again. `rules`: 16 hexadecimal
    digits that tell our rules and parameters from others; "": nobody is told.
    """

    def __init__(self, store: Store, run_id: str, instance: str, rules: str = "") -> None:
        self._store, self._run_id, self._instance, self._rules = store, run_id, instance, rules
        self._known: set[bytes] = set()
        self._bytes = 0
        self._taken: dict[int, int] = {}  # how often a commit was taken over, as far as is known
        self._marked = False
        self.last: Commit | None = None
        self.loaded = False
        self.lines: list[str] = []  # of all commits, for who begins a copy; whoever has used them clears them
        #: Commits of which nobody is known to have carried out what they ask for: when that was seen, and whether ours.
        self.open: dict[int, tuple[float, bool, Commit]] = {}

    @property
    def number(self) -> int:
        """Of the last commit; 0: there is none."""
        return self.last.number if self.last is not None else 0

    @property
    def ended_by_others(self) -> bool:
        """True if other rules, or with other parameters, have judged the run to its end."""
        last = self.last
        return (
            last is not None and bool(last.heads and last.rules and self._rules) and last.rules != self._rules
        )

    def knows(self, line: str) -> bool:
        return _hash(line) in self._known

    def by_open(self, lines: Iterable[str]) -> dict[int, list[str]]:
        """Lines by the commit that has them and on which nobody is known to have acted; under 0 the others."""
        numbers = {
            _hash(line): number for number, (_, _, commit) in self.open.items() for line in commit.lines
        }
        found: dict[int, list[str]] = {}
        for line in lines:
            found.setdefault(numbers.get(_hash(line), 0), []).append(line)
        return found

    def load(self) -> None:
        """Reads all commits: some for each call, until `loaded`."""
        numbers, done, taken = self._list()
        highest = max(numbers, default=0)
        if highest > MAX_NUMBER:
            raise self._too_many()
        upto = min(highest, self.number + _MOST_AT_ONCE)
        for number in range(self.number + 1, upto + 1):
            commit = read_commit(self._store, self._run_id, number)
            if commit is None:
                raise Refused(f"a commit is missing: {self._store.url}/{commit_key(self._run_id, number)}")
            self.lines += [line for line in commit.lines if not self.knows(line)]
            self._take(commit)
            if commit.lines and number not in done:
                whose = self._taker(number, taken[number]) if number in taken else commit.instance
                self.open[number] = time.monotonic(), whose == self._instance, commit
        self._taken = taken
        self._marked = bool(numbers)
        self.loaded = upto == highest

    def _too_many(self) -> Refused:
        return Refused(
            f"the run has more than {MAX_NUMBER} commits: {self._store.url}/{_files.commits_prefix(self._run_id)}"
        )

    def _taker(self, number: int, times: int) -> str:
        """Who has taken a commit over, the last time."""
        try:
            found = self._store.get(self._taken_key(number, times), 256)
        except (Absent, Refused):
            return ""
        return found[0].decode(errors="replace") if found else ""

    def _taken_key(self, number: int, times: int) -> str:
        return f"{commit_key(self._run_id, number)}.taken-{times}"

    def _list(self) -> tuple[set[int], set[int], dict[int, int]]:
        """Numbers of commits, those that are done, and how often one was taken over."""
        numbers: set[int] = set()
        done: set[int] = set()
        taken: dict[int, int] = {}
        for name in self._store.children(_files.commits_prefix(self._run_id)):
            match = _NAME.fullmatch(name)
            if match is None:
                continue
            number = int(match[1])
            if match[2] is None:
                numbers.add(number)
            elif match[3] is None:
                done.add(number)
            else:
                taken[number] = max(taken.get(number, 0), int(match[3]))
        return numbers, done, taken

    def _take(self, commit: Commit) -> None:
        self._bytes += _size(commit.lines)
        if self._bytes > MAX_FINDINGS:
            raise Refused(f"the run has more than {MAX_FINDINGS >> 20} MiB of findings: {self._store.url}")
        self.last = commit
        self._known.update(map(_hash, commit.lines))

    def commit(
        self, lines: Iterable[str], steps: int, heads: dict[int, int], came: Callable[[Commit, bool], object]
    ) -> None:
        """Puts what is not there yet. `heads`: the run is judged to its end.

        Calls `came` for each commit that is new, whoever has put it, with whether it is ours to act on. When it raises,
        whether the last put has succeeded is not known: the next call finds out.
        """
        wanted = list(_first_of_each(line for line in lines if not _is_long(line)))
        for _ in range(_ATTEMPTS):
            new = [line for line in wanted if not self.knows(line)]
            ends = bool(heads) and (self.last is None or self.last.heads != heads)
            if not new and not ends:
                return
            if self.number >= MAX_NUMBER:
                raise self._too_many()
            chunk = _fitting(new)
            ends = ends and len(chunk) == len(new)
            ending = (heads, self._rules) if ends else ({}, "")
            commit = Commit(self.number + 1, self._instance, tuple(chunk), steps, *ending)
            self._mark()
            before = time.monotonic()
            found = self._put(commit)
            if found is None:
                continue
            # Who was stopped for long may have been taken for dead.
            ours = found.instance == self._instance and time.monotonic() - before < TAKE_OVER_S / 2
            self._take(found)
            if found.lines:
                self.open[found.number] = time.monotonic(), ours, found
            came(found, ours)
        raise Unreachable(
            f"others commit again and again: {self._store.url}/{_files.commits_prefix(self._run_id)}"
        )

    def _put(self, commit: Commit) -> Commit | None:
        """Returns the commit that has the number. None: nobody's has, after all."""
        try:
            self._store.put_new(commit_key(self._run_id, commit.number), pack_commit(self._run_id, commit))
        except Conflict:
            # A client repeats a put whose answer was lost, and reports that the object is there; a 409 wrote nothing.
            return read_commit(self._store, self._run_id, commit.number)
        return commit

    def _mark(self) -> None:
        """Before the first commit: readers, who look at the heads, see that there are some."""
        if self._marked:
            return
        put_unless_there(self._store, _files.judged_key(self._run_id), b"{}")
        self._marked = True

    def done(self, number: int) -> None:
        """What a commit asks for was carried out."""
        put_unless_there(self._store, f"{commit_key(self._run_id, number)}.done", b"{}")
        self.open.pop(number, None)

    def take_over(self) -> list[Commit]:
        """Commits of others who have not acted on them for long, and which are ours from now on."""
        now = time.monotonic()
        late = [n for n, (seen, ours, _) in self.open.items() if not ours and now - seen >= TAKE_OVER_S]
        if not late:
            return []
        _, done, taken = self._list()
        won: list[Commit] = []
        for number in late:
            commit = self.open[number][2]
            if number in done:
                del self.open[number]
                continue
            self.open[number] = now, False, commit
            times = taken.get(number, 0)
            if times > self._taken.get(number, 0):  # another one has, and has as long to act
                self._taken[number] = times
                continue
            try:
                self._store.put_new(self._taken_key(number, times + 1), self._instance.encode())
            except Conflict:  # another one has, or our own put was repeated: we wait once more
                continue
            self.open[number] = now, True, commit
            won.append(commit)
        return won


def _fitting(lines: list[str]) -> list[str]:
    """The first lines that fit into one commit; at least one."""
    size = 0
    fit: list[str] = []
    for line in lines[:MAX_LINES]:
        size += 2 * len(line.encode(errors="surrogatepass")) + 8  # in JSON, quotes are escaped
        if fit and size > MAX_COMMIT - (64 << 10):
            break
        fit.append(line)
    return fit


class Findings:
    """The findings of a run that is judged in its bucket, for the copy of who reads it. **Not thread-safe.**"""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store, self._run_id = store, run_id
        self._number = 0
        self._bytes = 0
        self._known: set[bytes] = set()
        self._next = float("-inf")

    def look(self, path: str, ended: bool) -> None:
        """Appends what is new to the file; writes it anew at first. Raises BucketError; OSError."""
        now = time.monotonic()
        if now < self._next:
            return
        for _ in range(_MOST_AT_ONCE):  # the rest comes with the next look: the copy is held meanwhile
            commit = read_commit(self._store, self._run_id, self._number + 1)
            if commit is None:
                break
            new = [line for line in _first_of_each(commit.lines) if _hash(line) not in self._known]
            size = _size(new) + _LINE_COSTS
            if self._number >= MAX_NUMBER or self._bytes + size > MAX_FINDINGS:
                raise Refused(
                    f"the run has more than {MAX_FINDINGS >> 20} MiB of findings, or more than {MAX_NUMBER} "
                    f"commits: {self._store.url}"
                )
            try:
                self._append(path, new)
            except OSError:  # perhaps half of it stands there: all is written anew
                self._number, self._bytes, self._known = 0, 0, set()
                raise
            self._bytes += size
            self._known.update(map(_hash, new))
            self._number = commit.number
        else:
            return
        self._next = now + (_LOOK_ENDED_S if ended else _LOOK_S)

    def _append(self, path: str, lines: list[str]) -> None:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        flags |= os.O_APPEND if self._number else os.O_TRUNC
        with open(os.open(path, flags, 0o600), "wb") as file:
            file.write("".join(f"{line}\n" for line in lines).encode(errors="replace"))
