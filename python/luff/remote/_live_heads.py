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
    found: dict[str, list[tuple[str, str]]] = {}
    newest: dict[str, int] = {}
    many = False
    for digit in digits:
        prefix = f"{digit}/" if digit else ""
        objects = store.objects(f"live/{prefix}", MAX_HEADS)
        many = many or len(objects) >= MAX_HEADS
        for one in objects:
            match = _HEAD.fullmatch(prefix + one.name)
            if match is None:
                continue
            run_id = match[2]
            found.setdefault(run_id, []).append((match[3], one.etag))
            newest[run_id] = max(newest.get(run_id, one.modified_unix_ns), one.modified_unix_ns)
    return {run_id: RunHeads(newest[run_id], tuple(sorted(heads))) for run_id, heads in found.items()}, many
