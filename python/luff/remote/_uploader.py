"""Mirrors a run directory into a bucket, a step at a time. Knows nothing but the run and the head in the bucket.

Order of a flush: lengths of metadata, then lengths of payload; payload goes up, then metadata, then the head. So
whatever a visible row refers to is there, unless payload is more than a flush can carry: then rows go first, and the
manifest says so (`behind`).
"""

from __future__ import annotations

import os
import secrets
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from luff.remote import _files, _head, _sealed
from luff.remote._asides import QUIET_S, clean_run
from luff.remote._bucket import check_bucket
from luff.remote._errors import Absent, Conflict, Refused, Unreachable
from luff.remote._files import WINDOW, File
from luff.remote._head import BadObject, Entry, Manifest
from luff.remote._index import Indexes
from luff.remote._limiter import Limiter
from luff.remote._pace import Pace
from luff.remote._put_once import put_once
from luff.remote._run_folder import MAX_RUN_JSON, lengths_of, open_regular, read_run_json
from luff.remote._upload_notes import write_note
from luff.remote._windows import parts_of_window, windows_to_join

if TYPE_CHECKING:
    from luff.remote._store import Store

MAX_TAIL = 256 << 10  # bytes of all tails together; beyond it the longest become parts
# Payload that is new may travel in one head, beside these, and becomes a part with the next: half as many parts, each
# twice as long, but each byte is put one and a half times. So payload that grows fast is none of that.
MAX_PAYLOAD_TAIL = 3 << 19
# A tail of rows that is as long, and began so long ago, becomes a part: it would travel with each head, and is fetched
# with each. Who follows the run has it, so nobody fetches that part but who comes later. A window has 128 at most.
MIN_SETTLED_TAIL, SETTLE_S = 64 << 10, 20.0
_MEASURED = 64 << 10  # bytes of a put that tells how fast the store is
HEARTBEAT_S = 30.0
_ANOTHER_S, _ANOTHER_LOOK_S = 45.0, 1.0  # an uploader that has put no head for so long is dead
_MAX_RUN_IN_HEAD = 16 << 10
_AT_ONCE = 4  # windows in flight
_MOST_TOLD = 10_000  # files, the oldest ones
_TELL_AGAIN_S = 60.0
_ATTEMPTS = 5
# A window of more parts than this is put again as one, before its head, so that readers ask for fewer. That puts each
# byte once more, so it is for slow payload, and what grows fast is put in parts that are not shorter. Metadata is
# fetched whole, so its parts may be small: as settled tails are.
_MOST_PARTS_PAYLOAD = 16
_MOST_PARTS_METADATA = WINDOW // MIN_SETTLED_TAIL
_SUPERSEDED_S = 60.0
# Of these with one flush, and more as long as half of an interval lasts: the next head waits for them.
_MOST_REMOVED = 8


class Fenced(Exception):
    """Another uploader has taken the run over."""


class Uploader:
    """Uploads one run. **Not thread-safe.** Every method raises Refused (for good), Unreachable, or Fenced."""

    def __init__(
        self,
        run: str,
        store: Store,
        *,
        uploader: int = 0,
        interval_s: float = 2.0,
        max_bytes_per_s: float = 0.0,
        keep_local: int | None = None,
        owner: str = "",
        again: bool = False,
    ) -> None:
        self._run = os.path.abspath(run)
        self._store = store
        self._interval_s = interval_s
        self._limiter = Limiter(max_bytes_per_s)
        self._run_json, self.run_id = read_run_json(self._run)
        self._manifest = Manifest(self.run_id, uploader=uploader)
        self._etag = ""
        self._put_at = 0.0  # monotonic, of the head
        self._put_state = ""
        self._unput = False  # the manifest says more than the head in the bucket
        self._superseded: list[tuple[float, str]] = []
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="luff-put")
        self._head_key = _files.head_key(self.run_id, uploader)
        self._earlier = (0, 0, 0)  # requests, puts, bytes sent by uploaders before
        self._bytes_per_s = 0.0  # of the last put that was long enough to tell
        self._last_head = b""
        self._keep_local = keep_local  # bytes of payload that are to stay in the run; None: all
        self._told: tuple[float, tuple[list[list[int]], int]] = (
            float("-inf"),
            ([], 0),
        )  # the writer: when, what
        self._indexes = Indexes()
        # Who begins this upload again when it has ended: 16 digits, with which its instances begin; "" if nobody does.
        self._owner = owner
        self._again = again
        self._tail_since: dict[File, float] = {}  # monotonic: of rows
        self._pace = Pace()

    @property
    def behind(self) -> bool:
        """True while rows are visible whose payload is not there yet."""
        return self._manifest.behind

    # ---- Begin ----

    def begin(self) -> None:
        """Checks the bucket, and takes the run over from whoever uploaded it before.

        One that is begun again takes it over from its own earlier ones, or from one that is dead: Fenced if somebody
        else has begun to upload the run meanwhile.
        """
        check_bucket(self._store)
        # Of several hosts the first makes the run, and says whether it is encrypted: refused if ours is not as it is.
        there = put_once(self._store, _files.run_key(self.run_id), self._run_json, MAX_RUN_JSON)
        self._run_json = self._run_json if there is None else there
        for _ in range(_ATTEMPTS):
            found = self._read_head()
            tails: list[bytes] = []
            if found is not None:
                manifest, by_file, self._etag = found
                if manifest.run_id != self.run_id:
                    raise Refused(
                        f"the head is of another run, {manifest.run_id}: {self._store.url}/{self._head_key}"
                    )
                self._manifest, tails = manifest, list(by_file.values())
                self._manifest.pruned = False  # values go up again
                self._earlier = manifest.requests, manifest.puts, manifest.sent
                if self._again and not manifest.instance.startswith(self._owner):
                    self._leave_to_another(manifest)
            self._manifest.run = _text(self._run_json)
            self._manifest.instance = self._owner + secrets.token_hex((32 - len(self._owner)) // 2)
            self._manifest.interval_ms = round(self._interval_s * 1000)
            try:
                self._put_head("live", tails)  # whoever uploads it beside us learns of it now
            except Fenced:
                self._etag = ""
                continue  # that one was faster once more
            clean_run(self._store, self.run_id, 0.0 if self._again else QUIET_S)
            return
        raise Unreachable(f"another uploader is faster again and again: {self._store.url}/{self._head_key}")

    def _leave_to_another(self, theirs: Manifest) -> None:
        """Fenced if another uploader still puts heads. By what it does: no two hosts' clocks are compared."""
        end = time.monotonic() + _ANOTHER_S
        while theirs.state != "ended" and time.monotonic() < end:
            time.sleep(_ANOTHER_LOOK_S)
            found = self._read_head()
            if found is None:
                return
            if (found[0].instance, found[0].sequence) != (theirs.instance, theirs.sequence):
                raise Fenced(
                    f"another uploader has taken the run over at {self._store.url}/{self._head_key}; this one is not "
                    "begun again"
                )

    def _read_head(self) -> tuple[Manifest, dict[File, bytes], str] | None:
        try:
            found = self._store.get(self._head_key, _head.MAX_HEAD)
        except Absent:
            return None
        if found is None:
            return None
        try:
            return (*_head.parse_head_untrusted(found[0]), found[1])
        except BadObject as error:
            raise Refused(
                f"{error}; remove it to upload the run anew: {self._store.url}/{self._head_key}"
            ) from None

    # ---- One flush ----

    def flush(self, state: str = "live", rows_only: bool = False) -> bool:
        """Uploads what is new. `state`: live; draining or ended once the job is over. Returns True if it put a head.

        Spends about one interval on payload, none with `rows_only`; what is left makes the run `behind`.
        """
        deadline = float("-inf") if rows_only else time.monotonic() + self._interval_s
        before_failure, self._unput = self._unput, True
        metadata, payload = self._lengths(payload=False), self._lengths(payload=True)
        self._pace.look(payload, time.monotonic())
        changed = self._notice_gone(metadata, payload)
        before = {file: entry.bytes for file, entry in self._manifest.files.items()}
        in_parts = {file: entry.in_parts for file, entry in self._manifest.files.items()}
        behind = self._send_windows(payload, deadline)
        growing, sealed = self._find_sealed(metadata)
        if state == "ended":
            changed = self._send_sealed(sealed, float("inf")) or changed
            changed = self._join_parts(everything=True) or changed
            sealed = {}
            growing = {f: n for f, n in growing.items() if not self._manifest.files[f].sealed}
        self._send_windows(growing, float("inf"))
        self._drop_merged(metadata)
        lengths = {**growing, **payload}
        if state == "live":
            self._settle_tails(growing, in_parts)
        tails = self._tails(lengths, deadline, state == "ended")
        behind = behind or any(self._manifest.files[f].bytes < length for f, length in payload.items())
        changed = changed or behind != self._manifest.behind or state != self._put_state
        changed = changed or before != {file: entry.bytes for file, entry in self._manifest.files.items()}
        self._manifest.behind = behind
        self._unput = before_failure or changed
        if not self._unput and not sealed and time.monotonic() - self._put_at < HEARTBEAT_S:
            return False
        if state == "ended" and behind:
            state = "draining"
        self._put_head(state, tails)
        self._tell_writer()
        self._remove_superseded(everything=state == "ended")
        if sealed and not rows_only:
            # Their rows are visible. What makes them quick to open is larger than these, and is told by the next head,
            # which must not wait for long: what is left is found again by the next flush.
            self._unput = True
            deadline = time.monotonic() + self._interval_s
            self._send_sealed(sealed, deadline)
            self._join_parts(everything=False, deadline=deadline)
        if state == "live" and not behind:
            self._shorten_manifest(time.monotonic() + self._interval_s / 2)
        return True

    @property
    def sequence(self) -> int:
        """Of the head in the bucket: how many there were."""
        return self._manifest.sequence

    def _tell_writer(self) -> None:
        """Says which payload the bucket has, after a head that names it: the training's writer may then remove it.

        Bytes that travel in a head become a part with the next one, for which they are read again, so they do not
        count. An uploader that has ended says nothing any more, so this is repeated.
        """
        if self._keep_local is None:
            return
        files = self._manifest.files.items()
        there = [
            [f.folder, f.sequence, e.in_parts] for f, e in files if f.is_payload and not e.lost and not e.tail
        ]
        there = sorted(there)[:_MOST_TOLD]
        gone = sum(f.is_payload and e.lost and e.in_parts > 0 for f, e in files)
        when, told = self._told
        if (there, gone) == told and time.monotonic() - when < _TELL_AGAIN_S:
            return
        write_note(
            self._run,
            "uploaded.json",
            {
                "format": "luff-uploaded",
                "version": 1,
                "url": f"{self._store.url}/{self.run_id}",
                "unix_ns": time.time_ns(),
                "keep_bytes": self._keep_local,
                "payload": there,
                "gone": gone,
            },
        )
        self._told = time.monotonic(), (there, gone)

    def _count(self) -> None:
        requests, puts, sent = self._earlier
        self._manifest.requests = requests + self._store.requests
        self._manifest.puts = puts + self._store.puts
        self._manifest.sent = sent + self._store.sent

    def write_cost(self) -> None:
        """Writes into the run what its upload has cost so far, for `luff show`, unless the run cannot be written."""
        self._count()
        text = {
            "format": "luff-sync",
            "version": 1,
            "url": f"{self._store.url}/{self.run_id}",
            "unix_ns": time.time_ns(),
            "requests": self._manifest.requests,
            "puts": self._manifest.puts,
            "sent": self._manifest.sent,
        }
        write_note(self._run, f"u{self._manifest.uploader:04d}.json", text)

    def put_card(self, card: bytes) -> None:
        """Puts the card of the run, for lists of runs. It belongs to whoever puts the head."""
        self._put(_files.card_key(self.run_id), card)

    def end(self) -> None:
        """After a flush as `ended`: keeps the last head, also where heads are removed."""
        self._put(_files.end_key(self.run_id, self._manifest.uploader), self._last_head)
        clean_run(self._store, self.run_id)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _lengths(self, payload: bool) -> dict[File, int]:
        return lengths_of(self._run, payload)

    def _notice_gone(self, metadata: dict[File, int], payload: dict[File, int]) -> bool:
        """Files that are gone or shorter. Returns True if the manifest says something new."""
        changed = False
        for file, entry in self._manifest.files.items():
            length = (payload if file.is_payload else metadata).get(file)
            if not file.is_stream and length is not None and (entry.lost or length < entry.bytes):
                # A text that was written anew: its parts are of another text.
                entry.ends, entry.tail, entry.rewrites = [], 0, entry.rewrites + 1
                changed = True
            lost = length is None or length < entry.in_parts
            if lost:
                (payload if file.is_payload else metadata).pop(file, None)
                entry.tail = 0
            changed = changed or lost != entry.lost
            entry.lost = lost
        return changed

    def _drop_merged(self, metadata: dict[File, int]) -> None:
        """Forgets segments that a merged one has replaced on disk."""
        newest: dict[tuple[str, int, int], int] = {}
        for file in metadata:
            if file.is_stream:
                key = (file.kind, file.folder, file.sequence)
                newest[key] = max(newest.get(key, 0), file.generation)
        for file in list(self._manifest.files):
            if not file.is_stream or file.is_payload:
                continue
            if self._manifest.files[file].lost and file.generation < newest.get(
                (file.kind, file.folder, file.sequence), 0
            ):
                self._supersede(file, 0, len(self._manifest.files[file].ends))
                gone = self._manifest.files.pop(file)
                if gone.sealed:
                    self._superseded.append((time.monotonic(), _files.footer_key(self.run_id, file)))
                    self._drop_index(gone.index)

    # ---- Sealed segments ----

    def _find_sealed(self, metadata: dict[File, int]) -> tuple[dict[File, int], dict[File, _sealed.Sealed]]:
        """Lengths of what is to go into parts, and the segments that were sealed since they were put."""
        growing: dict[File, int] = {}
        sealed: dict[File, _sealed.Sealed] = {}
        for file, length in metadata.items():
            entry = self._manifest.files.setdefault(file, Entry())
            if entry.sealed:
                continue
            found = None
            if file.is_stream and length >= _sealed.MIN_SEALED and length > entry.bytes:
                found = _sealed.look(lambda b, e, f=file: self._read(f, b, e), length, file.sequence)  # type: ignore[misc]
            if found is not None:
                sealed[file] = found
            growing[file] = length if found is None else max(found.footer, entry.bytes)
        return growing, sealed

    def _send_sealed(self, sealed: dict[File, _sealed.Sealed], deadline: float) -> bool:
        """Puts frames, footers, and what opens them. Returns True if the manifest says something new."""
        ready: list[_sealed.Indexed] = []
        for file, found in sealed.items():
            if ready and time.monotonic() > deadline:
                break
            entry = self._manifest.files[file]
            self._send_windows({file: found.footer}, float("inf"))
            if entry.in_parts < found.footer:
                if not self._put_part(file, entry.in_parts, found.footer):
                    continue  # it was merged meanwhile
                self._add_part(file, found.footer)
            footer = self._read(file, found.footer, found.end)
            pieces = [(begin, self._read(file, begin, end)) for begin, end in found.pieces]
            if footer is None or entry.in_parts > found.end or any(data is None for _, data in pieces):
                continue
            self._put(_files.footer_key(self.run_id, file), footer)
            whole = [(begin, data) for begin, data in pieces if data is not None]
            ready.append(_sealed.Indexed(file, found.end, whole))
        for name, before, segments in self._indexes.add(ready, self._manifest.files):
            packed = _sealed.pack_index(self.run_id, segments)
            self._put(_files.index_key(self.run_id, self._manifest.uploader, name), packed)
            for segment in segments:
                entry = self._manifest.files[segment.file]
                if not entry.sealed:
                    entry.footer, entry.sealed = sealed[segment.file].footer, segment.end
                    entry.tail = 0
                entry.index = name
            self._drop_index(before)
        return bool(ready)

    def _drop_index(self, name: str) -> None:
        """Removes an index, in a minute, that no file names any more."""
        if name and not any(entry.index == name for entry in self._manifest.files.values()):
            key = _files.index_key(self.run_id, self._manifest.uploader, name)
            self._superseded.append((time.monotonic(), key))

    def _join_parts(self, everything: bool, deadline: float = float("inf")) -> bool:
        """Makes one part of each window of a sealed segment's frames. Returns True if the manifest says something new.

        Not of a folder's newest one: who follows the run is about to fetch its last part.
        """
        newest: dict[tuple[str, int], int] = {}
        for file, entry in self._manifest.files.items():
            if entry.sealed and not everything:
                newest[file[:2]] = max(newest.get(file[:2], 0), file.sequence)
        changed = False
        for file, entry in self._manifest.files.items():
            if not entry.sealed or entry.lost or newest.get(file[:2]) == file.sequence:
                continue
            wanted = [*range(WINDOW, entry.footer, WINDOW), entry.footer]
            if entry.ends == wanted:
                continue
            if changed and time.monotonic() > deadline:
                break
            parts = list(zip([0, *wanted[:-1]], wanted, strict=True))
            there = set(zip([0, *entry.ends[:-1]], entry.ends, strict=True))
            if not all(part in there or self._put_part(file, *part) for part in parts):
                continue  # it was merged meanwhile
            for begin, end in there - set(parts):
                key = _files.part_key(self.run_id, file, entry.rewrites, begin, end)
                self._superseded.append((time.monotonic(), key))
            entry.ends, changed = wanted, True
        return changed

    # ---- Parts ----

    def _send_windows(self, lengths: dict[File, int], deadline: float) -> bool:
        """Puts whole windows. Returns True if the deadline came first."""
        todo: list[tuple[File, int, int]] = []
        for file, length in lengths.items():
            entry = self._manifest.files.setdefault(file, Entry())
            begin = entry.in_parts
            while begin < length and (end := (begin // WINDOW + 1) * WINDOW) <= length:
                todo.append((file, begin, end))
                begin = end
        for at in range(0, len(todo), _AT_ONCE):
            if time.monotonic() > deadline:
                return True
            batch = todo[at : at + _AT_ONCE]
            done = list(self._pool.map(lambda one: self._put_part(*one), batch))
            for (file, begin, end), put in zip(batch, done, strict=True):
                if put and self._manifest.files[file].in_parts == begin:
                    self._add_part(file, end)
        return False

    def _add_part(self, file: File, end: int) -> None:
        entry = self._manifest.files[file]
        entry.ends.append(end)
        most = _MOST_PARTS_PAYLOAD if file.is_payload else _MOST_PARTS_METADATA
        if not end % WINDOW and len(parts_of_window(entry, end - WINDOW)) > most:
            self._join_window(file, end - WINDOW)

    def _join_window(self, file: File, begin: int) -> bool:
        """Puts a full window as one part. Returns False if its bytes are not on this host any more."""
        if not self._put_part(file, begin, begin + WINDOW):
            return False
        entry = self._manifest.files[file]
        parts = parts_of_window(entry, begin)
        self._supersede(file, parts.start, parts.stop)
        entry.ends[parts.start : parts.stop] = [begin + WINDOW]
        return True

    def _shorten_manifest(self, deadline: float) -> None:
        """Joins windows of payload if there are too many parts: the oldest that can be, and always one."""
        for file, begin in windows_to_join(self._manifest.files):
            if not self._join_window(file, begin):
                continue
            self._unput = True
            if time.monotonic() > deadline:
                return

    def _supersede(self, file: File, first: int, last: int) -> None:
        entry, now = self._manifest.files[file], time.monotonic()
        for i in range(first, last):
            begin = entry.ends[i - 1] if i else 0
            key = _files.part_key(self.run_id, file, entry.rewrites, begin, entry.ends[i])
            self._superseded.append((now, key))

    def _remove_superseded(self, everything: bool = False) -> None:
        """Deletes parts that no manifest of the last minute names. A refusal is no error: a janitor may do it."""
        now, removed = time.monotonic(), 0
        while self._superseded and (everything or now - self._superseded[0][0] > _SUPERSEDED_S):
            if not everything and removed >= _MOST_REMOVED and time.monotonic() > now + self._interval_s / 2:
                return
            _, key = self._superseded.pop(0)
            removed += 1
            try:
                self._store.delete(key)
            except (Refused, Unreachable, Absent, Conflict):
                continue

    def _read(self, file: File, begin: int, end: int) -> bytes | None:
        """Bytes of a local file; None if it has become shorter or is gone."""
        try:
            fd = open_regular(os.path.join(self._run, file.path))
        except OSError:
            return None
        try:
            data = os.pread(fd, end - begin, begin)
        except OSError:
            return None
        finally:
            os.close(fd)
        return data if len(data) == end - begin else None

    def _put_part(self, file: File, begin: int, end: int) -> bool:
        data = self._read(file, begin, end)
        if data is None:
            return False
        if not file.is_payload:
            data = zlib.compress(data, 1)
        key = _files.part_key(self.run_id, file, self._manifest.files[file].rewrites, begin, end)
        self._put(key, data)
        return True

    def _put(self, key: str, data: bytes) -> None:
        begun = time.monotonic()
        self._limiter.take(len(data))
        self._store.put(key, data)
        self._measure_speed(len(data), begun)

    def _measure_speed(self, size: int, begun: float) -> None:
        if size >= _MEASURED:
            self._bytes_per_s = size / max(time.monotonic() - begun, 1e-6)

    def _settle_tails(self, lengths: dict[File, int], in_parts: dict[File, int]) -> None:
        """Makes parts of what long tails of rows had at the last head, so that the next ones begin behind it.

        `in_parts`: of each file, at that head. A window that is full now has taken its tail in.
        """
        now = time.monotonic()
        since: dict[File, float] = {}
        for file, length in lengths.items():
            entry = self._manifest.files[file]
            if not file.is_stream or not entry.tail or entry.in_parts != in_parts.get(file):
                continue
            since[file] = self._tail_since.get(file, now)
            begin, end = entry.in_parts, entry.in_parts + entry.tail
            long = entry.tail >= MIN_SETTLED_TAIL and now - since[file] >= SETTLE_S
            if long and length > end and self._put_part(file, begin, end):
                self._add_part(file, end)
                since[file] = now
        self._tail_since = since

    def _tails(self, lengths: dict[File, int], deadline: float, ended: bool) -> list[bytes]:
        """Decides what of each file travels in the head, makes parts of the rest, and returns the tails."""
        rest, was = {}, {}
        for file, length in lengths.items():
            begin = self._manifest.files[file].in_parts
            if begin < length and (length - 1) // WINDOW == begin // WINDOW:
                rest[file] = length - begin
            was[file], self._manifest.files[file].tail = self._manifest.files[file].tail, 0
        if self._keep_local is not None:  # what rests becomes a part, so that it may go from the host
            for file in [f for f in rest if f.is_payload and was[f] == rest[f]]:
                if self._put_part(file, self._manifest.files[file].in_parts, lengths[file]):
                    self._add_part(file, lengths[file])
                    del rest[file]
        together, once = sum(rest.values()), 0
        # Payload before the rows that refer to it, if this fails half-way; else the longest first.
        for file in sorted(rest, key=lambda f: (ended and not f.is_payload, -rest[f])):
            if together <= MAX_TAIL and not (ended and file.is_payload):
                break
            new = file.is_payload and not was[file] and not ended and time.monotonic() <= deadline
            fast = self._pace.is_fast(file) and rest[file] >= WINDOW // _MOST_PARTS_PAYLOAD
            if new and not fast and once + rest[file] <= self._most_at_once():
                once += rest[file]
                together -= rest[file]
                continue
            together -= rest.pop(file)
            if file.is_payload and not ended and time.monotonic() > deadline:
                continue  # behind; its turn comes with the next flush
            if self._put_part(file, self._manifest.files[file].in_parts, lengths[file]):
                self._add_part(file, lengths[file])
        tails = []
        for file in self._manifest.files:
            if file not in rest:
                continue
            begin = self._manifest.files[file].in_parts
            data = self._read(file, begin, begin + rest[file])
            if data is not None:
                self._manifest.files[file].tail = len(data)
                tails.append(data)
        return tails

    def _most_at_once(self) -> float:
        """Bytes of payload that may travel in the head: they must not hold it up by more than half of an interval."""
        return min(MAX_PAYLOAD_TAIL, self._bytes_per_s * self._interval_s / 2)

    # ---- Head ----

    def _put_head(self, state: str, tails: list[bytes]) -> None:
        self._manifest.sequence += 1
        self._manifest.host_unix_ns = time.time_ns()
        self._manifest.state = state
        self._count()
        data = _head.pack(self._manifest, tails)
        if len(data) > _head.MAX_HEAD:
            raise Refused(f"the run has too many files for a bucket: {len(self._manifest.files)}")
        begun = time.monotonic()
        self._limiter.take(len(data))
        for _ in range(_ATTEMPTS):
            try:
                if self._etag:
                    self._etag = self._store.put_if(self._head_key, data, self._etag)
                else:
                    self._etag = self._store.put_new(self._head_key, data)
            except Conflict:
                if not self._read_back():
                    continue
            except Absent:  # what some stores say of a condition on an object that is gone
                raise Refused(_removed(self._store.url, self._head_key)) from None
            self._measure_speed(len(data), begun)
            self._put_at, self._put_state, self._unput = time.monotonic(), state, False
            self._last_head = data
            return
        raise Unreachable(f"the store refuses the head again and again: {self._store.url}/{self._head_key}")

    def _read_back(self) -> bool:
        """After a refused put: True if the head is there after all, since its answer was lost or the refusal was wrong.

        False: it is to be put again. Fenced if another uploader has replaced it.
        """
        found = self._read_head()
        if found is None:
            if self._etag:
                raise Refused(_removed(self._store.url, self._head_key))
            return False
        manifest, _, etag = found
        if manifest.instance != self._manifest.instance:
            raise Fenced(
                f"another uploader has taken the run over at {self._store.url}/{self._head_key}; this one ends"
            )
        self._etag = etag
        return manifest.sequence == self._manifest.sequence


def _text(run_json: bytes) -> str:
    """run.json as it travels in heads; "" if readers are to get its object."""
    try:
        return run_json.decode() if len(run_json) <= _MAX_RUN_IN_HEAD else ""
    except UnicodeDecodeError:
        return ""


def _removed(url: str, key: str) -> str:
    return f"the head of the run was removed from the bucket, so its upload has ended: {url}/{key}"
