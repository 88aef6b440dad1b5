"""The fetcher: one process for each user and environment that fetches from buckets what readers ask for.

It listens on a socket of its folder, which only the user can reach. A line of JSON is a request, a line the answer. It
ends when nobody has been connected for a while.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from luff.remote._cache import Cache, Gone, Later
from luff.remote._errors import BucketError, Refused, Unreachable, of_disk
from luff.remote._files import File, parse_file_untrusted, split_run
from luff.remote._run_store import reading
from luff.remote._spool import Spool, with_retries
from luff.remote._store import Store, normal_url, open_store

_LOOK_S = 1.0
_LOOK_ENDED_S = 30.0
_LONGEST_PAUSE_S = 60.0
_MOST_LINE = 1 << 16
_KEPT_S = 7 * 86400.0


class Fetcher:
    """Serves one folder. `run` returns when nobody has been connected for `idle_s`."""

    most_connections = 256
    retry_s = 60.0  # how long a request waits for a bucket that does not answer

    def __init__(self, root: str, *, cache_bytes: int, idle_s: float) -> None:
        self._root = root
        self._idle_s = idle_s
        self._cache = Cache(cache_bytes)
        self._lock = threading.Lock()
        self._stores: dict[str, Store] = {}
        self._spools: dict[str, Spool] = {}  # by folder
        self._followed: dict[Spool, int] = {}
        self._next_look: dict[Spool, tuple[float, float]] = {}  # when, and the pause after a failure
        self._looking: set[Spool] = set()
        self._connections = 0
        self._last_seen = time.monotonic()
        self._pool = ThreadPoolExecutor(8, thread_name_prefix="luff-get")
        self._lookers = ThreadPoolExecutor(8, thread_name_prefix="luff-look")

    def run(self) -> int:
        lock = os.open(os.path.join(self._root, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return 0  # another one serves it
        os.utime(self._root)
        self._remove_old_roots()
        self._take_in_copies()
        listener = self._listen()
        threading.Thread(target=self._look_for_ever, daemon=True).start()
        while True:
            listener.settimeout(min(1.0, self._idle_s))
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                with self._lock:
                    idle = self._connections == 0 and time.monotonic() - self._last_seen > self._idle_s
                if idle:
                    break
                continue
            with self._lock:
                full = self._connections >= self.most_connections
                self._connections += 0 if full else 1
            if full:
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
        listener.close()
        try:
            os.unlink(os.path.join(self._root, "socket"))
        except FileNotFoundError:
            pass
        self._cache.evict()
        for spool in self._spools.values():
            spool.save()
        os.close(lock)
        return 0

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        folder = os.open(self._root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        path = f"/proc/self/fd/{folder}/socket"
        try:
            os.unlink(os.path.join(self._root, "socket"))
        except FileNotFoundError:
            pass
        before = os.umask(0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(before)
            os.close(folder)
        listener.listen(64)
        return listener

    def _remove_old_roots(self) -> None:
        """Copies of other environments (credentials that have expired) that nobody has used for a week."""
        above = os.path.dirname(self._root)
        for name in os.listdir(above):
            root = os.path.join(above, name)
            try:
                if not name.startswith("spool-") or time.time() - os.stat(root).st_mtime < _KEPT_S:
                    continue
                lock = os.open(os.path.join(root, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(root, ignore_errors=True)
                finally:
                    os.close(lock)
            except OSError:
                continue

    def _take_in_copies(self) -> None:
        """What earlier fetchers left shares the room, the longest unused first. Who was unused for a week goes."""
        copies = []
        for base in _folders(self._root):
            for folder in _folders(base):
                try:
                    copies.append((os.stat(os.path.join(folder, "mirror.json")).st_mtime, folder))
                except OSError:
                    continue
        for used, folder in sorted(copies):
            if time.time() - used > _KEPT_S:
                shutil.rmtree(folder, ignore_errors=True)
                continue
            try:
                spool = self._spool_of(_url_of(folder))
                if spool.folder == folder:
                    spool.take_in()
            except (OSError, ValueError, KeyError, TypeError, BucketError):
                continue
        self._cache.evict()

    # ---- Requests ----

    def _serve(self, connection: socket.socket) -> None:
        followed: set[Spool] = set()
        try:
            with connection, connection.makefile("rwb") as stream:
                while line := stream.readline(_MOST_LINE):
                    stream.write(json.dumps(self._answer(line, followed)).encode() + b"\n")
                    stream.flush()
        except OSError:
            pass
        finally:
            with self._lock:
                for spool in followed:
                    self._followed[spool] -= 1
                    if not self._followed[spool]:
                        del self._followed[spool]
                self._connections -= 1
                self._last_seen = time.monotonic()

    def _answer(self, line: bytes, followed: set[Spool]) -> dict[str, Any]:
        try:
            request = json.loads(line)
            kind = request["op"]
            if kind == "open":
                spool = self._spool_of(normal_url(request["url"]))
                spool.open(whole=request.get("rows") != "asked")
                return {"ok": True, "path": spool.folder}
            if kind == "follow":
                spool = self._known(request["path"])
                with self._lock:
                    if spool not in followed:
                        followed.add(spool)
                        self._followed[spool] = self._followed.get(spool, 0) + 1
                return {"ok": True}
            if kind == "payload":
                return self._payload(request)
            if kind == "rows":
                return self._rows(request)
        except (Later, Gone, Refused, Unreachable) as error:
            return {
                "ok": False,
                "error": str(error),
                "final": isinstance(error, Refused),
                "later": isinstance(error, Later),
                "gone": isinstance(error, Gone),
            }
        except BucketError as error:
            return {"ok": False, "error": str(error), "final": True}
        except OSError as error:
            return {"ok": False, "error": str(of_disk(error, self._root)), "final": False}
        except (ValueError, KeyError, TypeError):
            pass
        return {"ok": False, "error": "the request makes no sense", "final": True}

    def _payload(self, request: dict[str, Any]) -> dict[str, Any]:
        spool = self._known(request["path"])
        worker, number, begin, size = (int(request[name]) for name in ("worker", "file", "from", "bytes"))
        file = File("w", worker, "d", number)
        if min(worker, number, begin, size) < 0:
            raise ValueError
        try:
            with_retries(lambda: spool.need(file, begin, size), self.retry_s)
        except Later:
            spool.refresh()  # the reader may be a look ahead of us
            spool.need(file, begin, size)
        return {"ok": True}

    def _rows(self, request: dict[str, Any]) -> dict[str, Any]:
        spool = self._known(request["path"])
        file = parse_file_untrusted(["w", request["worker"], "m", request["file"], request["generation"]])
        begin, size = int(request["from"]), int(request["bytes"])
        if min(begin, size) < 0:
            raise ValueError
        have: list[tuple[int, int]] = []
        with_retries(lambda: have.extend(spool.need_rows(file, begin, size)), self.retry_s)
        return {"ok": True, "have": have}

    def _spool_of(self, url: str) -> Spool:
        base, run_id = split_run(url)
        with self._lock:
            if base not in self._stores:
                self._stores[base] = open_store(base)
            folder = os.path.join(self._root, hashlib.sha256(base.encode()).hexdigest()[:16], run_id)
            if folder not in self._spools:
                self._spools[folder] = self._make_spool(
                    folder, url, reading(self._stores[base], run_id), run_id
                )
            return self._spools[folder]

    def _make_spool(self, folder: str, url: str, store: Store, run_id: str) -> Spool:
        socket_path = os.path.join(self._root, "socket")
        return Spool(folder, url, store, run_id, socket_path, self._cache, self._pool)

    def _known(self, folder: str) -> Spool:
        """The spool of a folder; one of an earlier fetcher is opened again."""
        with self._lock:
            known = self._spools.get(folder)
        if known is not None and known.begun:
            return known
        if os.path.dirname(os.path.dirname(folder)) != self._root:
            raise ValueError
        try:
            spool = self._spool_of(_url_of(folder))
        except OSError:
            raise Refused(f"the copy of the run was removed; open its URL again: {folder}") from None
        with_retries(lambda: spool.open(whole=False), self.retry_s)
        return spool

    # ---- Looking for news ----

    def _look_for_ever(self) -> None:
        while True:
            time.sleep(_LOOK_S)
            self._look()

    def _look(self) -> None:
        """Begins a look at each run whose turn has come. A bucket that hangs holds up no other's runs."""
        now = time.monotonic()
        with self._lock:
            due = [s for s in self._followed if self._next_look.get(s, (0.0, 0.0))[0] <= now]
            due = [spool for spool in due if spool not in self._looking]
            self._looking.update(due)
        for spool in due:
            self._lookers.submit(self._look_at, spool)

    def _look_at(self, spool: Spool) -> None:
        pause = self._next_look.get(spool, (0.0, 0.0))[1]
        try:
            spool.refresh()
            pause = 0.0
        except BucketError:
            pause = min(_LONGEST_PAUSE_S, max(1.0, pause * 2))
        except Exception:
            pause = _LONGEST_PAUSE_S
        wait = pause or (_LOOK_ENDED_S if spool.over else 0.0)
        with self._lock:
            self._next_look[spool] = (time.monotonic() + wait, pause)
            self._looking.discard(spool)


def _folders(above: str) -> list[str]:
    with os.scandir(above) as entries:
        return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]


def _url_of(folder: str) -> str:
    """The URL of the run that a folder is a copy of."""
    with open(os.path.join(folder, "mirror.json"), "rb") as file:
        return normal_url(json.loads(file.read(1 << 24))["url"])
