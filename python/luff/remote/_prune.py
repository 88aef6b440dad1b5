"""Removes what is old from a bucket: values of runs, or whole runs. Cards stay.

A run is old when nothing of it has changed for so long: its heads and its card. Whoever uploads a run puts a head every
30 s, so a live run is never old. What removes values says so first, in the head, so a reader never looks for them.
"""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, NamedTuple

from luff.remote import _files, _head
from luff.remote._errors import Absent, Conflict, Refused
from luff.remote._files import CARDS, MAX_CARD, is_run_id
from luff.remote._uploader import check_bucket_untrusted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from luff.remote._store import Listed, Store

KEEP = ("metadata", "nothing")
MAX_OBJECTS = 1_000_000  # of a run at once; the next call removes the rest
_MAX_RUNS = 1_000_000


class Pruned(NamedTuple):
    """What was, or would be, removed of a run."""

    run_id: str
    modified_unix_ns: int  # when something of it changed last, by the bucket's clock
    objects: int
    bytes: int
    problem: str  # why it was left alone, or ""


def old_runs(store: Store, before_unix_ns: int) -> list[tuple[str, int]]:
    """Ids of runs of which nothing has changed since then, and when something did. A request for each 1,000."""
    try:
        found = store.get("luff.json", 4096)
    except Absent:
        raise Refused(f"Luff has uploaded nothing there: {store.url}") from None
    check_bucket_untrusted(found[0] if found else b"", store.url)
    newest: dict[str, int] = {}

    def note(run_id: str, listed: Listed) -> None:
        if is_run_id(run_id):
            newest[run_id] = max(newest.get(run_id, 0), listed.modified_unix_ns)

    for listed in store.objects("live/", _MAX_RUNS):
        parts = listed.name.split("/")
        if len(parts) == 3:
            note(parts[1], listed)
    for listed in store.objects(CARDS, _MAX_RUNS):
        note(listed.name, listed)
    return sorted((run_id, at) for run_id, at in newest.items() if at < before_unix_ns)


def prune(store: Store, keep: str, before_unix_ns: int, dry_run: bool) -> Iterator[Pruned]:
    """Removes what is old, a run after the other. Runs of which nothing is left to remove are not told."""
    for run_id, modified in old_runs(store, before_unix_ns):
        prefix = f"runs/{run_id}/"
        objects = [o for o in store.objects(prefix, MAX_OBJECTS) if keep == "nothing" or _is_payload(o.name)]
        heads = store.objects(f"live/{run_id[0]}/{run_id}/", _MAX_RUNS) if keep == "nothing" else []
        if not objects and not heads:
            continue
        size = sum(o.size for o in (*objects, *heads))
        told = Pruned(run_id, modified, len(objects) + len(heads), size, "")
        if dry_run:
            yield told
            continue
        try:
            if keep == "metadata":
                _say_that_values_go(store, run_id)
            store.delete_all([f"live/{run_id[0]}/{run_id}/{o.name}" for o in heads])
            store.delete_all([prefix + o.name for o in objects])
            _mark_card(store, run_id, "payload" if keep == "metadata" else "all")
        except (Conflict, Refused) as error:
            yield told._replace(problem=str(error))
        else:
            yield told


def _is_payload(name: str) -> bool:
    """Of an object below runs/ID/: FILE/BEGIN-END."""
    parts = name.split("/")
    file = _files.stream_of(*parts[:2]) if len(parts) == 3 else None
    return file is not None and file.is_payload


def _say_that_values_go(store: Store, run_id: str) -> None:
    prefix = f"live/{run_id[0]}/{run_id}/"
    keys = [prefix + listed.name for listed in store.objects(prefix, _files.MAX_UPLOADER)]
    below = f"runs/{run_id}/"
    keys += [f"{below}{name}/end" for name in store.children(below) if name[:1] == "u"]
    for key in keys:
        try:
            found = store.get(key, _head.MAX_HEAD)
        except Absent:
            continue
        if found is None:
            continue
        try:
            manifest, tails = _head.parse_head_untrusted(found[0])
        except _head.BadObject as error:
            raise Refused(f"{error}: {store.url}/{key}") from None
        if manifest.run_id != run_id:
            raise Refused(f"the head is of another run: {store.url}/{key}")
        manifest.files = {file: entry for file, entry in manifest.files.items() if not file.is_payload}
        manifest.pruned, manifest.behind, manifest.state = True, False, "ended"
        manifest.sequence += 1
        manifest.instance = secrets.token_hex(16)  # an uploader that comes back learns of it
        kept = [tails[file] for file, entry in manifest.files.items() if entry.tail]
        store.put_if(key, _head.pack(manifest, kept), found[1])


def _mark_card(store: Store, run_id: str, what: str) -> None:
    """The card says what is gone. One that is damaged, or too large for it, stays as it is."""
    key = _files.card_key(run_id)
    try:
        found = store.get(key, MAX_CARD)
        card = json.loads(found[0]) if found else None
    except (Absent, Refused, ValueError, RecursionError):
        return
    if not isinstance(card, dict):
        return
    card["pruned"] = what
    data = json.dumps(card, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
    if len(data) <= MAX_CARD:
        store.put(key, data)
