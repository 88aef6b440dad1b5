"""Which heads of live runs a bucket has: one list tells what is new of all of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from luff.remote._store import Store

MAX_HEADS = 200_000
_HEAD = re.compile(r"([0-9a-f])/(\1[0-9a-f]{31})/(u[0-9]{4})")


class RunHeads(NamedTuple):
    """The heads of one run."""

    modified_unix_ns: int  # of the newest, by the store's clock
    heads: tuple[tuple[str, str], ...]  # names and etags, ascending


def list_heads(store: Store, digits: Iterable[str]) -> tuple[dict[str, RunHeads], bool]:
    """Heads by the run's id, of runs whose ids begin with these digits ("": of all).

    Also returns whether there were more than `MAX_HEADS` below one of them, of which the rest is missing.
    """
    found: dict[str, RunHeads] = {}
    many = False
    for digit in digits:
        prefix = f"{digit}/" if digit else ""
        objects = store.objects(f"live/{prefix}", MAX_HEADS)
        many = many or len(objects) >= MAX_HEADS
        for one in objects:
            match = _HEAD.fullmatch(prefix + one.name)
            if match is None:
                continue
            before = found.get(match[2])
            head = (match[3], one.etag)
            if before is None:
                found[match[2]] = RunHeads(one.modified_unix_ns, (head,))
            else:
                heads = tuple(sorted((*before.heads, head)))
                found[match[2]] = RunHeads(max(before.modified_unix_ns, one.modified_unix_ns), heads)
    return found, many
