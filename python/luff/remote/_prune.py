"""Removes what is old from a bucket: values of runs, or whole runs. Cards stay.

A run is old when nothing of it has changed for so long: its heads and its card. Whoever uploads a run puts a head every
30 s, so a live run is never old, and the heads are looked at again just before anything goes. What removes values says
so first, in the head, so a reader never looks for them.
"""

from __future__ import annotations

import json
import secrets
import time
from typing import TYPE_CHECKING, NamedTuple

from luff.remote import _files, _head
from luff.remote._asides import clean_run
from luff.remote._bucket import check_bucket_untrusted
from luff.remote._errors import Absent, Conflict, Refused, Unreachable
from luff.remote._files import CARDS, JUDGED, MAX_CARD, is_run_id
from luff.remote._recipients import MAX_RECIPIENTS, key_prefix
from luff.remote._run_store import reading
from luff.remote._seal import is_sealed, sealed_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from luff.remote._store import Listed, Store

KEEP = ("metadata", "nothing")
MAX_OBJECTS = 1_000_000  # of a run at once; a second pass removes the rest
_MAX_RUNS = 1_000_000
_PRUNING = "pruning/"
_PASSES = 100
_OLD_S = 3600.0  # of a card that was never put
_AT_ONCE = 1000  # objects that go before the heads are looked at again


class Pruned(NamedTuple):
    """What was, or would be, removed of a run."""

    run_id: str
    modified_unix_ns: int  # when something of it changed last, by the bucket's clock
    objects: int
    bytes: int
    problem: str  # why it was left alone, or ""


def old_runs(store: Store, before_unix_ns: int) -> list[tuple[str, int]]:
    """Ids of runs of which nothing has changed since then, and when something did. A request for each 1,000."""
    newest: dict[str, int] = {}

    def note(run_id: str, listed: Listed) -> None:
        if is_run_id(run_id):
            newest[run_id] = max(newest.get(run_id, 0), listed.modified_unix_ns)

    for listed in store.objects("live/", _MAX_RUNS):
        parts = listed.name.split("/")
        if len(parts) == 3 and parts[2] != JUDGED:  # that one is of who judges
            note(parts[1], listed)
    for listed in store.objects(CARDS, _MAX_RUNS):
        note(listed.name, listed)
    return sorted((run_id, at) for run_id, at in newest.items() if at < before_unix_ns)


def prune(store: Store, keep: str, older_ns: int, dry_run: bool) -> Iterator[Pruned]:
    """Removes what is older, a run after the other. Runs of which nothing is left to remove are not told.

    Now is the bucket's, or for a dry run, which writes nothing, this machine's.
    """
    try:
        found = store.get("luff.json", 4096)
    except Absent:
        raise Refused(f"Luff has uploaded nothing there: {store.url}") from None
    check_bucket_untrusted(found[0] if found else b"", store.url)
    before = (time.time_ns() if dry_run else _bucket_time(store)) - older_ns
    if not dry_run:
        store.clean(CARDS, _OLD_S, float("inf"))
    begun = {o.name: o.modified_unix_ns for o in store.objects(_PRUNING, _MAX_RUNS) if is_run_id(o.name)}
    for run_id, modified in sorted((begun | dict(old_runs(store, before))).items()):
        one = _Run(store, run_id, keep, before)
        try:
            told = one.prune(modified, run_id in begun, dry_run)
        except (Conflict, Refused) as error:
            told = Pruned(run_id, modified, 0, 0, str(error))
        if told is not None:
            yield told


def _bucket_time(store: Store) -> int:
    """The time by the bucket's clock, in nanoseconds since 1970: that of an object which is put and removed."""
    name = f"clock-{secrets.token_hex(8)}"
    store.put(_PRUNING + name, b"now")
    try:
        times = [o.modified_unix_ns for o in store.objects(_PRUNING, _MAX_RUNS) if o.name == name]
    finally:
        store.delete_all([_PRUNING + name])
    if not times:
        raise Unreachable(f"the store does not list what was put: {store.url}/{_PRUNING}{name}")
    return times[0]


class _Run:
    """Prunes one run: says so in ``pruning/ID``, fences its heads, removes, and removes ``pruning/ID`` last.

    While that object is there, the next call goes on, however new the heads are.
    """

    def __init__(self, store: Store, run_id: str, keep: str, before_unix_ns: int) -> None:
        self._bucket = store
        self._store = reading(store, run_id)
        self._run_id = run_id
        self._keep = keep
        self._before = before_unix_ns
        self._instance = secrets.token_hex(16)  # an uploader that comes back learns of it
        self._live = _files.live_prefix(run_id)
        self._below = _files.run_prefix(run_id)

    def prune(self, modified: int, begun: bool, dry_run: bool) -> Pruned | None:
        begun = begun and self._goes_on()
        doomed = self._doomed()
        if self._keep == "metadata" and not doomed and not begun:
            return None  # as of most that were pruned before
        heads = self._heads()
        # Listed after they were read: what has changed since then is not put over.
        new = [o for o in self._store.objects(self._live, _MAX_RUNS) if o.modified_unix_ns >= self._before]
        new = [o for o in new if o.name != _files.JUDGED]
        if not all(begun and self._is_fenced(heads.get(self._live + o.name)) for o in new):
            if begun and not dry_run:  # uploaded again, and whole again
                self._store.delete_all([_PRUNING + self._run_id])
            return None
        live = self._store.objects(self._live, _MAX_RUNS) if self._keep == "nothing" else []
        told = Pruned(
            self._run_id, modified, len(doomed) + len(live), sum(o.size for o in (*doomed, *live)), ""
        )
        if dry_run:
            return told if told.objects else None
        clean_run(self._bucket, self._run_id, within_s=float("inf"))  # else its folders stay
        if told.objects:
            self._remove(heads, doomed)
        if told.objects or begun:
            # As it is in the bucket: of an encrypted run it has been closed already.
            _mark_card(self._bucket, self._run_id, "payload" if self._keep == "metadata" else "all")
            if live:
                self._delete([self._live + o.name for o in live])
            if self._keep == "nothing":  # the key of an encrypted run opens its heads, so it goes last
                keys = self._store.objects(key_prefix(self._run_id), 2 * MAX_RECIPIENTS)
                if keys:
                    self._store.delete_all([key_prefix(self._run_id) + o.name for o in keys])
            self._store.delete_all([_PRUNING + self._run_id])
        return told if told.objects else None

    def _remove(self, heads: dict[str, tuple[bytes, str]], doomed: list[Listed]) -> None:
        text = {"keep": self._keep, "instance": self._instance}
        self._store.put(_PRUNING + self._run_id, json.dumps(text).encode())
        for key, head in heads.items():
            if not self._is_fenced(head):
                self._fence(key, *head)
        for _ in range(_PASSES):
            self._delete([o.name for o in doomed])
            doomed = self._doomed()
            if not doomed:
                return
        raise Conflict(f"objects come again and again, somebody uploads it: {self._store.url}/{self._below}")

    def _goes_on(self) -> bool:
        """True if a call that was interrupted had begun. Of the two the one that keeps nothing counts."""
        key = _PRUNING + self._run_id
        try:
            found = self._store.get(key, 1024)
            text = json.loads(found[0]) if found else None
        except Absent:
            return False  # another call has ended just now
        except (ValueError, RecursionError):
            text = None
        keep, instance = (text.get("keep"), text.get("instance")) if isinstance(text, dict) else (None, None)
        if keep not in KEEP or not isinstance(instance, str) or not is_run_id(instance):
            raise Refused(f"the object is damaged; remove it to prune the run anew: {self._store.url}/{key}")
        self._keep, self._instance = "nothing" if self._keep == "nothing" else keep, instance
        return True

    def _heads(self) -> dict[str, tuple[bytes, str]]:
        """Bytes and etags of the heads, and of the last manifests if they stay."""
        keys = [self._live + name for name in self._store.children(self._live) if name != _files.JUDGED]
        if self._keep == "metadata":
            keys += [
                f"{self._below}{name}/end" for name in self._store.children(self._below) if name[:1] == "u"
            ]
        heads: dict[str, tuple[bytes, str]] = {}
        for key in keys[: 2 * _files.MAX_UPLOADER]:
            try:
                found = self._head(key)
            except Absent:
                continue
            if found is not None:
                heads[key] = found
        return heads

    def _head(self, key: str) -> tuple[bytes, str] | None:
        """A head; where all is to go, also one that no key here opens, as it is: the key may be lost."""
        try:
            return self._store.get(key, _head.MAX_HEAD)
        except Refused:
            if self._keep != "nothing":
                raise
            return self._bucket.get(key, sealed_size(_head.MAX_HEAD))

    def _is_fenced(self, head: tuple[bytes, str] | None) -> bool:
        try:
            manifest, _ = _head.parse_head_untrusted(head[0] if head else b"")
        except _head.BadObject:
            return False
        return manifest.pruned and manifest.state == "ended" and manifest.instance == self._instance

    def _fence(self, key: str, data: bytes, etag: str) -> None:
        """Puts a head, if unchanged, that names nothing which goes."""
        try:
            manifest, tails = _head.parse_head_untrusted(data)
        except _head.BadObject as error:
            if self._keep == "metadata":
                raise Refused(f"{error}: {self._store.url}/{key}") from None
            manifest, tails = _head.Manifest(self._run_id), {}
        if manifest.run_id != self._run_id:
            raise Refused(f"the head is of another run: {self._store.url}/{key}")
        stay = self._keep == "metadata"
        manifest.files = {f: entry for f, entry in manifest.files.items() if stay and not f.is_payload}
        manifest.pruned, manifest.behind, manifest.state = True, False, "ended"
        manifest.sequence += 1
        manifest.instance = self._instance
        kept = [tails[file] for file, entry in manifest.files.items() if entry.tail]
        # What cannot be opened cannot be closed either: this head names nothing any more, and goes in a moment.
        store = self._bucket if is_sealed(data) else self._store
        store.put_if(key, _head.pack(manifest, kept), etag)

    def _doomed(self) -> list[Listed]:
        """What is to go, but for heads, with whole keys."""
        found = [
            o._replace(name=self._below + o.name)
            for o in self._store.objects(self._below, MAX_OBJECTS)
            if self._keep == "nothing" or _is_payload(o.name)
        ]
        if self._keep == "nothing":
            for below in (f"requests/{self._run_id}/", _files.commits_prefix(self._run_id)):
                found += [o._replace(name=below + o.name) for o in self._store.objects(below, MAX_OBJECTS)]
        return found

    def _delete(self, keys: list[str]) -> None:
        for at in range(0, len(keys), _AT_ONCE):
            if not all(self._is_fenced(head) for key, head in self._heads().items() if key[:5] == "live/"):
                raise Conflict(f"somebody uploads it again: {self._store.url}/{self._live}")
            self._store.delete_all(keys[at : at + _AT_ONCE])


def _is_payload(name: str) -> bool:
    """Of an object below runs/ID/: FILE/BEGIN-END."""
    parts = name.split("/")
    file = _files.stream_of(*parts[:2]) if len(parts) == 3 else None
    return file is not None and file.is_payload


def _mark_card(store: Store, run_id: str, what: str) -> None:
    """The card says what is gone. One that is damaged, or too large for it, stays as it is."""
    key = _files.card_key(run_id)
    try:
        found = store.get(key, MAX_CARD)
        card = json.loads(found[0]) if found else None
    except (Absent, Refused, ValueError, RecursionError):
        return
    if not isinstance(card, dict):
        return
    card["pruned"] = what
    data = json.dumps(card, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
    if len(data) <= MAX_CARD:
        store.put(key, data)
