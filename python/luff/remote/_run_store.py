"""The store of one run: encrypts and decrypts its objects where the run is encrypted. docs/security.md.

Encrypted are ``runs/ID/`` and ``live/X/ID/`` whole, and of the card all but numbers and states. Whoever uploads or
reads a run has this store instead of the bucket's, and knows nothing of it.
"""

from __future__ import annotations

import base64
import json
import os
import re
import zlib
from typing import TYPE_CHECKING, Any

from luff.remote import _files
from luff.remote._errors import Refused, TooLarge
from luff.remote._files import MAX_CARD, card_key, run_key
from luff.remote._recipients import ENCRYPT_TO, KEY_COMMAND, KEY_FILES, get_key, identities
from luff.remote._seal import (
    HEADER,
    SEGMENT,
    BadSeal,
    begin_of,
    check_cryptography,
    is_sealed,
    seal,
    sealed_size,
    segment_at,
    segments_of,
    unseal,
    unseal_segments,
)
from luff.remote._store import Listed, Store

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_WHOLE = 16 << 20  # of an object whose name does not say its size
_HEADERS = 1024
_PART = re.compile(r"[^/]+/[^/]+/([0-9a-f]{1,12})-([0-9a-f]{1,12})")
#: What the card of an encrypted run says to everybody: numbers and states.
_OPEN = (
    "card",
    "run_id",
    "outcome",
    "verdict",
    "begun_unix_ns",
    "took_s",
    "steps",
    "workers",
    "pruned",
    "cut",
)
_MAX_OPENED_CARD = 64 << 10


class RunStore(Store):
    """A bucket as one run sees it. Thread-safe as the bucket's store is.

    `key`: called at most once, when the first encrypted object is met; raises Refused where nobody can open it.
    `sealed`: whether the run is encrypted; None: as its first object is.
    """

    def __init__(
        self, inner: Store, run_id: str, key: Callable[[], bytes], sealed: bool | None = None
    ) -> None:
        self._inner = inner
        self._run_id = run_id
        self._get_key = key
        self._key = b""
        self._sealed = sealed
        self._headers: dict[str, bytes] = {}
        self._own = (f"runs/{run_id}/", f"live/{run_id[0]}/{run_id}/", _files.commits_prefix(run_id))
        self.url = inner.url

    @property
    def sealed(self) -> bool:
        """Whether the run is encrypted, as far as is known."""
        return bool(self._sealed)

    # The bucket's store counts.

    @property
    def requests(self) -> int:  # type: ignore[override]
        return self._inner.requests

    @property
    def puts(self) -> int:  # type: ignore[override]
        return self._inner.puts

    @property
    def sent(self) -> int:  # type: ignore[override]
        return self._inner.sent

    @property
    def received(self) -> int:  # type: ignore[override]
        return self._inner.received

    def _is_of_run(self, key: str) -> bool:
        return key.startswith(self._own)

    def _data_key(self) -> bytes:
        if not self._key:
            self._key = self._get_key()
        return self._key

    def _opened(self, key: str, what: Callable[[bytes], bytes]) -> bytes:
        try:
            return what(self._data_key())
        except BadSeal as error:
            if key == run_key(self._run_id):
                self._key = b""  # pruned and uploaded anew, with another one: the next look asks for it
            raise Refused(f"an encrypted object cannot be opened, {error}: {self.url}/{key}") from None

    def get(self, key: str, most: int, unless: str = "") -> tuple[bytes, str] | None:
        if not self._is_of_run(key):
            return self._inner.get(key, most, unless)
        found = self._inner.get(key, sealed_size(most), unless)
        if found is None:
            return None
        data, etag = found
        sealed = is_sealed(data)
        if self._sealed is None:
            self._sealed = sealed
        if self._sealed and not sealed:
            raise Refused(f"the run is encrypted, and this object of it is not: {self.url}/{key}")
        if self._sealed:
            return self._opened(key, lambda own: unseal(own, key, data)), etag
        if sealed and (key.startswith("live/") or key == run_key(self._run_id)):
            raise Refused(
                f"the run is encrypted in the bucket, and was to be uploaded without; set {ENCRYPT_TO}, and "
                f"{KEY_FILES} if this is another host: {self.url}/{key}"
            )
        if len(data) > most:
            raise TooLarge(f"an object has {len(data)} bytes, Luff writes at most {most}: {self.url}/{key}")
        return data, etag

    def get_range(self, key: str, begin: int, end: int, size: int | None = None) -> bytes:
        if not self._sealed or not self._is_of_run(key) or begin >= end:
            return self._inner.get_range(key, begin, end)
        size = size or _size_in_name(key.split("/", 2)[2])
        if size is None:
            found = self.get(key, _MAX_WHOLE)
            data = found[0] if found else b""
            if len(data) < end:
                raise Refused(f"an object is shorter than it should be: {self.url}/{key}")
            return data[begin:end]
        if end > size:
            raise Refused(f"an object is shorter than what is asked for: {self.url}/{key}")
        first, last = segment_at(begin), segments_of(size) - 1
        stop = min((segment_at(end - 1) + 1) * SEGMENT, sealed_size(size))

        def segments(own: bytes) -> bytes:
            data = self._inner.get_range(key, first * SEGMENT, stop)
            if first == 0:
                return unseal_segments(own, key, data[:HEADER], data[HEADER:], first, last)
            return unseal_segments(own, key, self._header(key), data, first, last)

        def again(own: bytes) -> bytes:
            try:
                return segments(own)
            except BadSeal:  # it was put again meanwhile, with another header
                self._headers.pop(key, None)
                return segments(own)

        opened = self._opened(key, again)
        return opened[begin - begin_of(first) : end - begin_of(first)]

    def _header(self, key: str) -> bytes:
        known = self._headers.get(key)
        if known is None:
            known = self._inner.get_range(key, 0, HEADER)
            if len(self._headers) >= _HEADERS:
                self._headers.clear()
            self._headers[key] = known
        return known

    def _closed(self, key: str, data: bytes) -> bytes:
        if self._sealed and self._is_of_run(key):
            self._headers.pop(key, None)
            return seal(self._data_key(), key, data)
        if self._sealed and key == card_key(self._run_id):
            return seal_card(self._data_key(), key, data)
        return data

    def put(self, key: str, data: bytes) -> None:
        self._inner.put(key, self._closed(key, data))

    def put_new(self, key: str, data: bytes) -> str:
        return self._inner.put_new(key, self._closed(key, data))

    def put_if(self, key: str, data: bytes, etag: str) -> str:
        return self._inner.put_if(key, self._closed(key, data), etag)

    def delete(self, key: str) -> None:
        self._inner.delete(key)

    def delete_all(self, keys: list[str]) -> None:
        self._inner.delete_all(keys)

    def clean(self, prefix: str, older_s: float, within_s: float) -> None:
        self._inner.clean(prefix, older_s, within_s)

    def children(self, prefix: str) -> list[str]:
        return self._inner.children(prefix)

    def objects(self, prefix: str, most: int) -> list[Listed]:
        return self._inner.objects(prefix, most)


def _size_in_name(name: str) -> int | None:
    """Bytes of a part of payload, FILE/BEGIN-END; None of all others: they are packed."""
    match = _PART.fullmatch(name)
    if match is None or not name.split("/")[1].endswith(".lfd"):
        return None
    size = int(match[2], 16) - int(match[1], 16)
    return size if size > 0 else None


# ---- Who reads ----


def reading(store: Store, run_id: str) -> RunStore:
    """The store of a run for who reads it, with the keys of this environment."""

    def key() -> bytes:
        check_cryptography()
        found = get_key(store, run_id, identities())
        if found is None:
            raise Refused(
                f"the run is encrypted, and no key here opens it; name the file of one in {KEY_FILES}, or a command in "
                f"{KEY_COMMAND}: {store.url}/{run_id}"
            )
        return found

    return RunStore(store, run_id, key)


def identity_text() -> str:
    """What names the keys of this environment; "" if there are none. Cards that were read with others are read anew."""
    return "\n".join(os.environ.get(name, "") for name in (KEY_FILES, KEY_COMMAND)).strip()


def has_identity() -> bool:
    """True if this environment names a key that opens runs."""
    return identity_text() != ""


# ---- Cards ----


def seal_card(key: bytes, name: str, data: bytes) -> bytes:
    """A card that says numbers and states to everybody, and the rest to who has the key.

    The rest is left out where it does not fit. Refused if it is no card.
    """
    try:
        card = json.loads(data)
    except (ValueError, RecursionError):
        card = None
    if not isinstance(card, dict):
        raise Refused(f"a card that is no object of JSON is not put: {name}")
    if isinstance(card.get("sealed"), str):  # it was got from the bucket, and has a new mark
        return data
    told: dict[str, Any] = {member: card[member] for member in _OPEN if member in card}
    count = card.get("findings", {}).get("count") if isinstance(card.get("findings"), dict) else None
    if isinstance(count, int):
        told["findings"] = {"count": count}
    for rest in (data, json.dumps({**card, "scalars": [], "course": []}).encode(), b""):
        if rest:
            told["sealed"] = base64.b64encode(seal(key, name, zlib.compress(rest, 9))).decode()
        else:
            told.pop("sealed", None)
        text = json.dumps(told, separators=(",", ":")).encode()
        if len(text) <= MAX_CARD:
            break
    return text


def public_card(data: bytes) -> bytes:
    """Of a card what everybody may see."""
    try:
        card = json.loads(data)
    except (ValueError, RecursionError):
        return data
    return (
        json.dumps({k: v for k, v in card.items() if k != "sealed"}).encode()
        if isinstance(card, dict)
        else data
    )


def open_card(store: Store, run_id: str, data: bytes) -> bytes:
    """The whole card, if a key here opens it; else what everybody may see. Raises Unreachable, CommandFailed."""
    told = public_card(data)
    try:
        card = json.loads(data)
        sealed = card.get("sealed") if isinstance(card, dict) else None
        if not isinstance(sealed, str):
            return data
        if has_identity():
            check_cryptography()
        key = get_key(store, run_id, identities()) if has_identity() else None
        if key is None:
            return told
        packed = unseal(key, card_key(run_id), base64.b64decode(sealed, validate=True))
        stream = zlib.decompressobj()
        whole = json.loads(stream.decompress(packed, _MAX_OPENED_CARD))
        if not isinstance(whole, dict):
            return told
        whole |= {
            member: card[member] for member in ("pruned",) if member in card
        }  # said later, by who has no key
        text = json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
        return text if len(text) <= MAX_CARD else told
    except (ValueError, RecursionError, zlib.error, Refused):  # also what no key opens
        return told
