"""Puts of objects that may be there already, and of which one is enough.

A refusal is not believed before a look: a store also refuses, by 409, while another put is under way, and has nothing
afterwards; a client that repeats a put whose answer was lost is refused because of its own.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from luff.remote._errors import Absent, Conflict, Refused, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from luff.remote._store import Store

_ATTEMPTS = 6
_PAUSE_S = 0.02  # and twice as long each time
_MARK = 4096


def put_once(store: Store, key: str, data: bytes, most: int) -> bytes | None:
    """Puts an object unless there is one. Returns the one that is there; None if this one was put.

    Raises a BucketError: TooLarge beyond `most` bytes.
    """

    def look() -> bytes:
        found = store.get(key, most)
        return found[0] if found else b""

    return _put(store, key, data, look)


def put_unless_there(store: Store, key: str, data: bytes) -> None:
    """Puts an object unless there is one, whatever that is, and whoever may read it. Raises a BucketError."""

    def look() -> bytes:
        try:
            store.get(key, _MARK)
        except Refused:  # somebody's
            pass
        return b""

    _put(store, key, data, look)


def _put(store: Store, key: str, data: bytes, look: Callable[[], bytes]) -> bytes | None:
    for attempt in range(_ATTEMPTS):
        try:
            store.put_new(key, data)
        except Conflict:
            try:
                return look()
            except Absent:
                time.sleep(_PAUSE_S * 2**attempt)
                continue
        return None
    raise Unreachable(f"the store refuses an object again and again, and has none: {store.url}/{key}")
