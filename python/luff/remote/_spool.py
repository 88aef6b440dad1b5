"""A run of a bucket as a run directory: payload, and columns of sealed segments, as far as somebody asked for them.

Everything from a bucket is untrusted: sizes are checked before anything is allocated or written, and files are named by
numbers alone.
"""

from __future__ import annotations

import bisect
import ctypes
import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from luff.remote import _files, _head, _sealed
from luff.remote._cache import Cache, Gone, Later
from luff.remote._commits import Findings
from luff.remote._disk import boot_id, write_at, write_whole
from luff.remote._errors import Absent, BucketError, NotUntilMended, Refused, Replaced, Unreachable, of_disk
from luff.remote._files import File
from luff.remote._head import BadObject, Entry
from luff.remote._heads import Heads, Host
from luff.remote._mirror_note import MirrorNote
from luff.remote._rows import Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor

    from luff.remote._store import Store

BLOCK = 1 << 20
MAX_ASKED = 64 << 20
_PRUNED = "pruned from the bucket"
_READ_AHEAD = 8  # blocks, for who reads one after the other
_AT_ONCE = 8  # parts of metadata in memory
_MOST_INDEXES = 4  # in memory
GONE_S = 900.0  # and its workers have ended, for who judges
_CHECK_S = 30.0  # between two looks for files that somebody removed, in a copy that rules judge
_PUNCH_HOLE, _KEEP_SIZE = 2, 1


class Spool:
    """One run. Thread-safe: one call at a time. Methods raise BucketError."""

    def __init__(
        self,
        folder: str,
        url: str,
        store: Store,
        run_id: str,
        socket: str,
        cache: Cache,
        pool: Executor,
        judged_here: bool = False,
    ) -> None:
        """`judged_here`: findings and actions are those of who judges the copy, and not taken from the bucket."""
        self.folder = folder
        self.url = url  # of the run
        self._store = store
        self._run_id = run_id
        self._cache = cache
        self._pool = pool
        self._lock = threading.RLock()
        self.heads = Heads(store, url, run_id)
        self._files: dict[File, tuple[int, Entry]] = {}  # uploader, and what it has
        self._lengths: dict[File, int] = {}  # of metadata on disk
        self._rows = Rows(folder)
        self._whole = False
        # All rows are fetched as they come, also by the next fetcher.
        self._marker = os.path.join(folder, "whole")
        self._begun = False
        self._untaken = False  # the heads say more than was taken in
        self._rewrites: dict[File, int] = {}
        self._have: dict[File, dict[int, int]] = {}  # payload: bytes on disk by block
        self._last: dict[File, int] = {}  # block that was asked for last
        self._problem, self._problem_at = "", 0.0  # monotonic: since when there is one
        self._note = MirrorNote(folder, url, socket, keeps_time=not judged_here)
        self._in: dict[File, tuple[int, Entry]] = {}  # what is on disk as it is in the bucket
        self._checked_at = 0.0  # monotonic: when that was looked after on disk
        self._taken_in = False
        self._judged_here = judged_here
        self._findings: Findings | None = None  # of who judges the run in the bucket
        self._judged_problem = ""

    # ---- Following the bucket ----

    @property
    def store(self) -> Store:
        """The bucket as the run sees it."""
        return self._store

    @property
    def over(self) -> bool:
        """True once all uploaders have ended."""
        return self.heads.over

    def know_heads(self, uploaders: list[int]) -> None:
        """Takes these for the uploaders of the run, from who has just listed their heads."""
        with self._lock:
            self.heads.know(uploaders)

    def look_at_heads(self) -> None:
        """Reads the heads, and makes no copy."""
        with self._lock:
            self._read_heads()

    def _read_heads(self) -> None:
        try:
            self.heads.read()
        finally:
            self._untaken = self.heads.take_news() or self._untaken
        if self.heads.judged and self._findings is None and not self._judged_here:
            self._findings = Findings(self._store, self._run_id)

    @property
    def begun(self) -> bool:
        """True once the directory was made."""
        return self._begun

    def open(self, whole: bool = True) -> None:
        """Makes the directory, or brings it up to date. Raises where the run cannot be shown.

        `whole`: all rows are on disk from now on, for readers that look at all of them. Without it they are fetched
        when they are asked for, unless the copy is whole already.
        """
        with self._lock:
            if whole and not self._whole:
                self._whole = self._untaken = True
                self._in = {}
            self._update()
            if self._whole and not os.path.exists(self._marker):
                write_whole(self._marker, b"")

    def refresh(self) -> bool:
        """Takes in what is new; True if the copy has changed. A failure is told to the readers, who keep what there
        is.
        """
        with self._lock:
            try:
                return self._update()
            except BucketError as error:
                if not self._problem:
                    self._problem_at = time.monotonic()
                self._problem = str(error)
                if self.begun:  # else the directory was removed, and is not there yet again
                    self._tell()
                raise

    def _forget_all(self) -> None:
        """The directory was removed: the copy is made again."""
        self._files, self._lengths, self._rewrites = {}, {}, {}
        self._have, self._last, self._in = {}, {}, {}
        self._note.forget()
        self._rows, self._begun = Rows(self.folder), False
        self.heads = Heads(self._store, self.url, self._run_id)
        self._findings = None

    def _begin(self) -> None:
        """Makes the directory."""
        in_heads = (host.manifest.run for _, host in sorted(self.heads.hosts.items()))
        text = next(filter(None, in_heads), "").encode(errors="replace") or self.heads.get_run_json()
        try:
            good = json.loads(text).get("run_id") == self._run_id
        except (ValueError, AttributeError, RecursionError):
            good = False
        if not good:
            raise Refused(f"run.json is of another run, or damaged: {self.url}")
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        self.take_in()
        self._whole = self._whole or os.path.exists(self._marker)
        write_whole(os.path.join(self.folder, "run.json"), text)
        self._begun = True

    def _update(self) -> bool:
        """Returns whether the copy has changed."""
        if self.begun and not os.path.exists(os.path.join(self.folder, "run.json")):
            self._forget_all()
        self._read_heads()
        if not self.begun:
            self._begin()
            self._untaken = True
        changed = self._untaken
        if self._untaken:
            self._take_in()
            self._untaken = False
        self._take_findings()
        if self._problem:  # as long as it stood, nobody could see a sign of life; before that, one could
            self._problem, now = "", time.monotonic()
            for host in self.heads.hosts.values():
                host.changed_at = min(now, host.changed_at + now - self._problem_at)
        return self._tell() or changed

    def _take_findings(self) -> None:
        """What others have found, of a run that is judged in the bucket and not on its host.

        Whoever may judge runs must not be able to keep others from reading them.
        """
        if self._findings is None or self.heads.judged_on_host:
            return
        try:
            self._findings.look(os.path.join(self.folder, File("findings").path), self.over)
            self._judged_problem = ""
        except BucketError as error:
            self._judged_problem = f"the findings are not all here: {error}"
        except OSError as error:
            raise of_disk(error, self.folder) from None

    def _take_in(self) -> None:
        files: dict[File, tuple[int, Entry]] = {}
        for uploader, host in sorted(self.heads.hosts.items()):
            for file, entry in host.manifest.files.items():
                if not (self._judged_here and file.kind in ("findings", "actions")):
                    files.setdefault(file, (uploader, entry))
        self._files = files
        known, self._in = self._in, {}
        now = time.monotonic()
        if not self._judged_here or now - self._checked_at > _CHECK_S:
            known, self._checked_at = {}, now
        news = [(file, *of) for file, of in files.items() if known.get(file) != of]
        # Payload first, so that a row that is seen has its file.
        for file, _, entry in news:
            if file.is_payload:
                self._stretch(file, entry.bytes)
        indexes: dict[str, dict[File, _sealed.Indexed]] = {}
        for file, uploader, entry in news:
            if file.is_payload or self._is_whole(file, entry):
                continue
            if entry.sealed and not self._whole and file.kind == "w":
                self._seal(file, entry, self._indexed(uploader, file, entry, indexes))
            else:
                self._append(file, uploader, entry)
        for file in [
            f for f in self._lengths if f not in files and f.is_stream
        ]:  # a merged one has replaced it
            del self._lengths[file]
            self._rows.forget(file)
            try:
                os.unlink(os.path.join(self.folder, file.path))
            except OSError:
                pass
        self._in = files if self._judged_here else {}

    def _is_whole(self, file: File, entry: Entry) -> bool:
        """True for metadata of which all is on disk."""
        if self._lengths.get(file) != entry.bytes or self._rewrites[file] != entry.rewrites:
            return False
        if self._whole and self._rows.has_holes(file):
            return False
        try:
            return os.lstat(os.path.join(self.folder, file.path)).st_size >= entry.bytes
        except OSError:  # somebody removed it
            return False

    # ---- Sealed segments ----

    def _indexed(
        self, uploader: int, file: File, entry: Entry, known: dict[str, dict[File, _sealed.Indexed]]
    ) -> _sealed.Indexed:
        """What opens a sealed segment."""
        key = _files.index_key(self._run_id, uploader, entry.index)
        if key not in known:
            try:
                found = self._store.get(key, _sealed.MAX_PACKED_INDEX)
            except Absent:  # a longer one has replaced it since we read the head
                raise Unreachable(f"an index of the run is not there: {self._store.url}/{key}") from None
            try:
                index = _sealed.parse_index_untrusted(found[0] if found else b"", self._run_id)
            except BadObject as error:
                raise Refused(f"{error}: {self._store.url}/{key}") from None
            if len(known) >= _MOST_INDEXES:
                del known[next(iter(known))]
            known[key] = index
        one = known[key].get(file)
        if one is None or one.end != entry.sealed:
            raise Refused(f"the index does not have {file.path}: {self._store.url}/{key}")
        if not _sealed.opens(one, entry.footer):
            raise Refused(f"the index does not have both ends of {file.path}: {self._store.url}/{key}")
        return one

    def _seal(self, file: File, entry: Entry, index: _sealed.Indexed) -> None:
        """Makes a segment with holes. Of one that is followed, the rest of its frames comes first."""
        try:
            try:
                have = os.lstat(os.path.join(self.folder, file.path)).st_size
            except FileNotFoundError:
                have = 0
            if have == 0:
                self._rows.make(file, entry.sealed, index.pieces)
            elif have != entry.sealed or self._rows.of(file, entry.sealed) is not None:
                fd = self._open(file)
                try:
                    if have != entry.sealed:
                        self._lengths[file] = min(self._lengths.get(file, have), have)
                        self._append_parts(fd, file, entry, entry.footer)
                        have = entry.footer
                    self._rows.seal(fd, file, have, entry.sealed, index.pieces)
                finally:
                    os.close(fd)
        except OSError as error:
            raise of_disk(error, self.folder) from None
        self._lengths[file], self._rewrites[file] = entry.sealed, entry.rewrites

    def need_rows(self, file: File, begin: int, size: int) -> list[tuple[int, int]]:
        """Makes sure that these bytes of metadata are on disk. Returns which are, these first. Raises as `need`."""
        with self._lock:
            entry = self._segment(file)
            ranges = self._rows.of(file, entry.sealed) if entry.sealed else None
            if ranges is None:
                return [(0, entry.bytes)]
            end = min(begin + size, entry.sealed)
            if begin == 0 and end == entry.sealed:  # also of who has found something wrong
                self._rows.distrust(file)
            if ranges.missing(begin, end):
                try:
                    self._fill(file, *self._rows.wanted(file, begin, end, entry.footer, entry.sealed))
                except (Absent, Replaced):  # put together with others since we read the head
                    self.refresh()
                    entry = self._segment(file)
                    self._fill(file, *self._rows.wanted(file, begin, end, entry.footer, entry.sealed))
            if self._rows.of(file, entry.sealed) is None:
                return [(0, entry.sealed)]
            return self._rows.told(file, begin)

    def _segment(self, file: File) -> Entry:
        """A metadata segment that somebody has seen in the copy."""
        _, entry = self._files.get(file, (0, None))
        if entry is None:
            raise Gone(_PRUNED if self.heads.pruned else "merged with others meanwhile; refresh the trial")
        return entry

    def _fill(self, file: File, begin: int, end: int) -> None:
        """Fetches what of these bytes of a segment with holes is not there."""
        _, entry = self._files[file]
        ranges = self._rows.of(file, entry.sealed)
        if ranges is None:
            return
        missing = ranges.missing(begin, end)
        columns = [r for r in missing if r[1] > entry.footer]
        frames = [r for r in missing if r[0] < entry.footer]
        try:
            fd = self._open(file)
            try:
                if columns:
                    at, last = max(columns[0][0], entry.footer), columns[-1][1]
                    key = _files.footer_key(self._run_id, file)
                    size = entry.sealed - entry.footer
                    data = self._store.get_range(key, at - entry.footer, last - entry.footer, size)
                    write_at(fd, data, at)
                    ranges.add(at, last)
                parts = zip([0, *entry.ends[:-1]], entry.ends, strict=True)
                wanted = [p for p in parts if any(begin < p[1] and end > p[0] for begin, end in frames)]
                for part, data in self._parts(file, entry, wanted):
                    write_at(fd, data[: entry.sealed - part], part)
                    ranges.add(part, part + len(data))
            finally:
                os.close(fd)
        except OSError as error:
            raise of_disk(error, self.folder) from None
        if not ranges.missing(0, entry.sealed):
            self._rows.forget(file)

    def _parts(self, file: File, entry: Entry, parts: list[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
        """Begin and content of parts of metadata, some at once."""
        for at in range(0, len(parts), _AT_ONCE):
            batch = parts[at : at + _AT_ONCE]
            contents = self._pool.map(lambda p: self._part(file, entry, *p), batch)
            yield from zip((begin for begin, _ in batch), contents, strict=True)

    # ---- Files that grow ----

    def _open(self, file: File) -> int:
        path = os.path.join(self.folder, file.path)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(path, flags, 0o600)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        return os.open(path, flags, 0o600)

    def _stretch(self, file: File, length: int) -> None:
        try:
            fd = self._open(file)
            try:
                if os.fstat(fd).st_size < length:
                    os.ftruncate(fd, length)
            finally:
                os.close(fd)
        except OSError as error:
            raise of_disk(error, self.folder) from None

    def _append(self, file: File, uploader: int, entry: Entry) -> None:
        try:
            fd = self._open(file)
            try:
                self._append_to(fd, file, uploader, entry)
            finally:
                os.close(fd)
        except OSError as error:
            raise of_disk(error, self.folder) from None

    def _append_to(self, fd: int, file: File, uploader: int, entry: Entry) -> None:
        if not entry.sealed and self._rows.was_sparse(
            file
        ):  # the run was uploaded anew, and is not sealed yet
            self._rows.forget(file)
            os.ftruncate(fd, 0)
            self._lengths.pop(file, None)
        ranges = self._rows.of(file, entry.sealed) if entry.sealed else None
        if ranges is not None:  # all of it is wanted now
            self._rows.distrust(file)
            self._fill(file, 0, entry.sealed)
            self._lengths[file], self._rewrites[file] = entry.sealed, entry.rewrites
            return
        if file not in self._lengths:
            # Streams only grow, so what an earlier fetcher left is their beginning; a text may be another one.
            self._lengths[file] = os.fstat(fd).st_size if file.is_stream else 0
            self._rewrites[file] = entry.rewrites
            if not file.is_stream:
                os.ftruncate(fd, 0)
        if entry.rewrites != self._rewrites[file]:
            os.ftruncate(fd, 0)
            self._lengths[file], self._rewrites[file] = 0, entry.rewrites
        have = self._append_parts(fd, file, entry, entry.bytes)
        rest = self.heads.hosts[uploader].tails.get(file, b"")
        if entry.sealed and have < entry.bytes:
            key = _files.footer_key(self._run_id, file)
            size = entry.sealed - entry.footer
            rest = self._store.get_range(key, have - entry.footer, size, size)
            write_at(fd, rest, have)
            self._lengths[file] = entry.sealed
        elif rest and have < entry.bytes:
            write_at(fd, rest[have - entry.in_parts :], have)
            self._lengths[file] = entry.bytes

    def _append_parts(self, fd: int, file: File, entry: Entry, upto: int) -> int:
        """Appends what parts have below `upto`. Returns how many bytes are there now."""
        have = min(self._lengths[file], os.fstat(fd).st_size)  # less where somebody removed the file
        first = bisect.bisect_right(entry.ends, have)
        parts = [(entry.ends[i - 1] if i else 0, entry.ends[i]) for i in range(first, len(entry.ends))]
        for begin, data in self._parts(file, entry, [part for part in parts if part[0] < upto]):
            write_at(fd, data[have - begin :], have)
            have = self._lengths[file] = begin + len(data)
        return have

    def _part(self, file: File, entry: Entry, begin: int, end: int) -> bytes:
        """A part of metadata, unpacked."""
        key = _files.part_key(self._run_id, file, entry.rewrites, begin, end)
        try:
            found = self._store.get(key, end - begin + (end - begin >> 8) + 1024)
        except Absent:
            # Put together with others since we read the head.
            raise Replaced(f"a part of the run is not there: {self._store.url}/{key}") from None
        try:
            data = _head.unpack_bounded(found[0] if found else b"", end - begin, "the object")
        except BadObject as error:
            raise Refused(f"{error}: {self._store.url}/{key}") from None
        if len(data) != end - begin:
            raise Refused(f"found {len(data)} bytes, expected {end - begin}: {self._store.url}/{key}")
        return data

    def _is_gone(self, host: Host) -> bool:
        """For who judges, a worker whose host is gone has ended: its findings are not kept back for ever."""
        if not self._judged_here or self._problem:  # a bucket that does not answer tells nothing
            return False
        return time.monotonic() - host.changed_at > GONE_S

    def _tell(self) -> bool:
        """Writes mirror.json, which readers look at. Returns whether it says something new."""
        hosts = self.heads.hosts
        gone = {uploader: self._is_gone(host) for uploader, host in hosts.items()}
        return self._note.tell(hosts, self._files, gone, self._problem or self._judged_problem)

    # ---- Payload on demand ----

    def need(self, file: File, begin: int, size: int) -> None:
        """Makes sure that these bytes of payload are on disk. Raises Later, Gone or another BucketError."""
        if size > MAX_ASKED:
            raise Refused(f"found {size} bytes asked for at once, expected at most {MAX_ASKED}")
        with self._lock:
            end = begin + size
            _, entry = self._files.get(file, (0, None))
            if entry is None or end > entry.bytes:
                self._not_there(entry)
            assert entry is not None
            first, last = begin // BLOCK, max(begin, end - 1) // BLOCK
            have = self._have.setdefault(file, {})
            missing = [b for b in range(first, last + 1) if have.get(b, 0) < min(end - b * BLOCK, BLOCK)]
            if missing:
                if self._last.get(file, -2) in (first - 1, first):
                    missing += range(last + 1, min(last + 1 + _READ_AHEAD, (entry.bytes - 1) // BLOCK + 1))
                try:
                    self._fetch(file, missing)
                except Absent:  # put together with others since we read the head, or pruned
                    self.refresh()
                    _, entry = self._files.get(file, (0, None))
                    if entry is None or end > entry.bytes:
                        self._not_there(entry)
                    self._fetch(file, missing)
            self._last[file] = last
            for block in range(first, last + 1):
                self._cache.use(self, file, block, have[block])
        self._cache.evict()

    def _not_there(self, entry: Entry | None) -> None:
        if self.heads.pruned:
            raise Gone(_PRUNED)
        if (entry is not None and entry.lost) or self.over:
            raise Gone("deleted on the training host before it was uploaded")
        raise Later("not uploaded yet")

    def _fetch(self, file: File, blocks: list[int]) -> None:
        """Gets blocks, each run of them with one request for each part."""
        uploader, entry = self._files[file]
        tail = self.heads.hosts[uploader].tails.get(file, b"")
        ranges: list[tuple[int, int]] = []
        for block in blocks:
            begin, end = block * BLOCK, min((block + 1) * BLOCK, entry.bytes)
            if ranges and ranges[-1][1] == begin:
                ranges[-1] = (ranges[-1][0], end)
            else:
                ranges.append((begin, end))
        pieces: list[tuple[int, int, int, int]] = []  # of a part: its begin and end; what is wanted of it
        fd = self._open(file)
        try:
            for begin, end in ranges:
                i = bisect.bisect_right(entry.ends, begin)
                while i < len(entry.ends) and (entry.ends[i - 1] if i else 0) < end:
                    part = entry.ends[i - 1] if i else 0
                    pieces.append((part, entry.ends[i], max(begin, part), min(end, entry.ends[i])))
                    i += 1
                if end > entry.in_parts and tail:
                    at = max(begin, entry.in_parts)
                    write_at(fd, tail[at - entry.in_parts : end - entry.in_parts], at)

            def get(piece: tuple[int, int, int, int]) -> tuple[int, bytes]:
                part, part_end, begin, end = piece
                key = _files.part_key(self._run_id, file, entry.rewrites, part, part_end)
                return begin, self._store.get_range(key, begin - part, end - part)

            for at, data in self._pool.map(get, pieces):
                write_at(fd, data, at)
        except OSError as error:
            raise of_disk(error, self.folder) from None
        finally:
            os.close(fd)
        have = self._have.setdefault(file, {})
        for block in blocks:
            have[block] = min(BLOCK, entry.bytes - block * BLOCK)
            self._cache.use(self, file, block, have[block])

    def forget(self, file: File, block: int) -> bool:
        """Gives the room of a block back, unless somebody has asked for it meanwhile.

        False: it is not known, since the run is being looked at. That may take as long as its bucket takes to answer.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if not self._cache.holds(self, file, block):
                self._have.get(file, {}).pop(block, None)
                self._punch(file, block * BLOCK, BLOCK)
        finally:
            self._lock.release()
        return True

    def _punch(self, file: File, begin: int, size: int) -> None:
        try:
            fd = self._open(file)
        except OSError:
            return
        try:
            _libc().fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, ctypes.c_int64(begin), ctypes.c_int64(size))
        finally:
            os.close(fd)

    def save(self) -> None:
        """Writes down which payload is here, for the next fetcher."""
        with self._lock:
            try:
                self._rows.save()
            except OSError:
                pass
            have = [[file.as_json(), sorted(blocks.items())] for file, blocks in self._have.items() if blocks]
            if not have:
                return
            try:
                write_whole(
                    os.path.join(self.folder, "have.json"),
                    json.dumps({"boot": boot_id(), "blocks": have}).encode(),
                )
            except OSError:
                pass

    def take_in(self) -> None:
        """Learns which payload an earlier fetcher left. One that was killed left no list: its payload is dropped."""
        with self._lock:
            if self._taken_in:
                return
            self._taken_in = True
            self._load_have()
            for folder in os.listdir(self.folder):
                path = os.path.join(self.folder, folder)
                names = os.listdir(path) if folder[:1] == "w" and os.path.isdir(path) else []
                for file in (_files.stream_of(folder, name) for name in names):
                    if file is not None and file.is_payload and file not in self._have:
                        self._punch(file, 0, _files.MAX_BYTES)

    def _load_have(self) -> None:
        """What an earlier fetcher left. The list is removed at once: while we live, memory knows better."""
        path = os.path.join(self.folder, "have.json")
        try:
            with open(path, "rb") as file:
                have: Any = json.loads(file.read())
            os.unlink(path)
            if have["boot"] != boot_id():  # it may have reached the disk before what it lists
                return
            for name, blocks in have["blocks"]:
                known = self._have.setdefault(_files.parse_file_untrusted(name), {})
                for block, size in blocks:
                    known[int(block)] = int(size)
                    self._cache.use(self, _files.parse_file_untrusted(name), int(block), int(size), 0.0)
        except (OSError, ValueError, TypeError, KeyError):
            self._have = {}


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def with_retries(what: Callable[[], None], seconds: float) -> None:
    """Calls until it succeeds, fails for good or until something is mended, for at most so long."""
    end, pause = time.monotonic() + seconds, 0.5
    while True:
        try:
            return what()
        except Unreachable as error:
            if isinstance(error, NotUntilMended) or time.monotonic() + pause > end:
                raise
            time.sleep(pause)
            pause = min(pause * 2, 8.0)
