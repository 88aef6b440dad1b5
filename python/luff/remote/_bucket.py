"""``luff.json``, which says what a bucket is."""

from __future__ import annotations

import json

from luff.remote._errors import Refused
from luff.remote._head import VERSION


def bucket_text() -> bytes:
    """What a new bucket gets."""
    return json.dumps({"format": "luff-bucket", "version": VERSION, "shards": 16}).encode()


def check_bucket_untrusted(data: bytes, url: str) -> None:
    """Checks luff.json of a bucket. Refused if it is of another format or a later version."""
    try:
        text = json.loads(data)
    except (ValueError, RecursionError):
        text = None
    if not isinstance(text, dict) or text.get("format") != "luff-bucket":
        raise Refused(f"luff.json says that no Luff writes here; give another prefix: {url}/luff.json")
    if text.get("version") != VERSION:
        found = str(text.get("version"))[:20]
        raise Refused(
            f"found version {found} of the bucket format, this Luff has {VERSION}; use the Luff that made the "
            f"bucket, or another prefix: {url}/luff.json"
        )
