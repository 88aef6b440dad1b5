"""Copies of the live runs of a bucket, for who judges them."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from luff.remote._fetcher import Fetcher
from luff.remote._spool import Spool

if TYPE_CHECKING:
    import threading

    from luff.remote._store import Store


class Copies(Fetcher):
    """The copies, for who judges them. A list tells what is new, so runs are not looked at one by one."""

    most_connections = 20_000
    retry_s = 2.0  # who judges waits: the others would, too
    serving: threading.Thread | None = None

    def _make_spool(self, folder: str, url: str, store: Store, run_id: str) -> Spool:
        place = os.path.join(self._root, "socket")
        return Spool(folder, url, store, run_id, place, self._cache, self._pool, judged_here=True)

    def _look(self) -> None:
        pass

    def stores(self) -> list[Store]:
        """What the copies are fetched from."""
        with self._lock:
            return list(self._stores.values())

    def spool(self, url: str) -> Spool:
        return self._spool_of(url)

    def end(self, seconds: float) -> None:
        """Notes which payload is here, for the next one, and serves nobody any more if nobody is there."""
        with self._lock:
            spools, used = list(self._spools.values()), self._connections > 0
        if used:
            for spool in spools:
                spool.save()
            return
        self._idle_s = 0.01
        if self.serving is not None:
            self.serving.join(seconds)

    def drop(self, spool: Spool) -> None:
        """Removes a copy."""
        with self._lock:
            self._spools = {folder: one for folder, one in self._spools.items() if one is not spool}
        shutil.rmtree(spool.folder, ignore_errors=True)
        self._cache.drop(spool)
