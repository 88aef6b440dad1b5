"""``luff.json``, which says what a bucket is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from luff.remote._errors import Absent, Conflict, Refused
from luff.remote._files import VERSION, is_version, other_version
from luff.remote._put_once import put_once

if TYPE_CHECKING:
    from luff.remote._store import Store

_MAX_TEXT = 4096


def bucket_text() -> bytes:
    """What a new bucket gets."""
    return json.dumps({"format": "luff-bucket", "version": VERSION, "shards": 16}).encode()


def check_bucket(store: Store) -> None:
    """Refuses a bucket of another format, and one whose conditional puts are none."""
    text = bucket_text()
    nothing = (
        f"the store takes conditional puts and does not obey them, so two uploaders would mix: {store.url}"
    )
    there = put_once(store, "luff.json", text, _MAX_TEXT)
    if there is not None:
        check_bucket_untrusted(there, store.url)
    elif _puts_new(store, text):
        raise Refused(nothing)
    try:
        store.put_if("luff.json", text, '"0123456789abcdef0123456789abcdef"')
    except Conflict:
        return
    raise Refused(nothing)


def is_begun(store: Store) -> bool:
    """False if no Luff has written there yet. Raises what `check_bucket_untrusted` does."""
    try:
        found = store.get("luff.json", _MAX_TEXT)
    except Absent:
        return False
    check_bucket_untrusted(found[0] if found else b"", store.url)
    return True


def _puts_new(store: Store, text: bytes) -> bool:
    """False if the store says that luff.json is there."""
    try:
        store.put_new("luff.json", text)
    except Conflict:
        return False
    return True


def check_bucket_untrusted(data: bytes, url: str) -> None:
    """Checks luff.json of a bucket. Refused if it is of another format or version."""
    try:
        text = json.loads(data)
    except (ValueError, RecursionError):
        text = None
    if not isinstance(text, dict) or text.get("format") != "luff-bucket":
        raise Refused(f"luff.json says that no Luff writes here; give another prefix: {url}/luff.json")
    if not is_version(text.get("version")):
        raise Refused(f"{other_version(text.get('version'))}: {url}/luff.json")
