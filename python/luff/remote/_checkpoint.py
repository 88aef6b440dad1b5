"""Checkpoints of who judges a run, in its bucket: ``rules/luff/ID/checkpoint``, so that another host goes on there.

A checkpoint is put only once everything that it takes for found stands in commits: who begins with it finds nothing
again that was found before. Without one, the judge begins at the first step, and finds the same.
"""

from __future__ import annotations

import json
import os
import zlib
from typing import TYPE_CHECKING

from luff.remote import _files
from luff.remote._disk import write_whole
from luff.remote._errors import Absent, Refused
from luff.remote._head import BadObject, unpack_bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from luff.remote._store import Store

FORMAT = "luff-checkpoint"
MAX_CHECKPOINT = 64 << 20  # unpacked
MAX_PACKED = 16 << 20
_FOLDER = os.path.join("rules", _files.EVALUATOR)


def checkpoint_key(run_id: str) -> str:
    return f"{_files.commits_prefix(run_id)}checkpoint"


def put_checkpoint(store: Store, run_id: str, copy: str, knows: Callable[[str], bool], before: int) -> int:
    """Puts the checkpoint in a copy, unless it is the one of `before` or knows of findings that no commit has.

    Returns what tells it from the next one. Raises a BucketError.
    """
    folder = os.path.join(copy, _FOLDER)
    try:
        with open(os.path.join(folder, "checkpoint.json"), "rb") as file:
            mark = os.fstat(file.fileno()).st_mtime_ns
            if mark == before:
                return before
            checkpoint = file.read(MAX_CHECKPOINT)
        with open(
            os.path.join(folder, "findings.jsonl"), "rb"
        ) as file:  # after it: what it knows stands there
            findings = file.read(MAX_CHECKPOINT)
    except FileNotFoundError:
        return before
    text = findings.decode(errors="replace")
    if not all(knows(line) for line in text.split("\n") if line):
        return before
    whole = json.dumps(
        {
            "format": FORMAT,
            "version": _files.VERSION,
            "run_id": run_id,
            "checkpoint": checkpoint.decode(errors="replace"),
            "findings": text,
        }
    ).encode()
    data = zlib.compress(whole, 1)
    if len(whole) <= MAX_CHECKPOINT and len(data) <= MAX_PACKED:
        store.put(checkpoint_key(run_id), data)
    return mark


def get_checkpoint(store: Store, run_id: str) -> tuple[str, str]:
    """The checkpoint, and the findings that it knows of; both "" if there is none that can be used."""
    try:
        found = store.get(checkpoint_key(run_id), MAX_PACKED)
        text = json.loads(unpack_bounded(found[0] if found else b"", MAX_CHECKPOINT, "the checkpoint"))
    except (Absent, Refused, BadObject, ValueError, RecursionError):
        return "", ""
    if (
        not isinstance(text, dict)
        or text.get("format") != FORMAT
        or not _files.is_version(text.get("version"))
    ):
        return "", ""
    checkpoint, findings = text.get("checkpoint"), text.get("findings")
    if not isinstance(checkpoint, str) or not isinstance(findings, str) or text.get("run_id") != run_id:
        return "", ""
    return checkpoint, findings


def seed(copy: str, saved: tuple[str, str], lines: Iterable[str]) -> None:
    """Lets who judges a new copy begin where the bucket says. Raises OSError."""
    checkpoint, findings = saved
    known = set(findings.split("\n"))
    rest = [line for line in lines if line not in known]
    if not checkpoint and not rest:
        return
    folder = os.path.join(copy, _FOLDER)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    whole = findings + "".join(f"{line}\n" for line in rest)
    write_whole(os.path.join(folder, "findings.jsonl"), whole.encode(errors="replace"))
    if checkpoint:
        write_whole(os.path.join(folder, "checkpoint.json"), checkpoint.encode(errors="replace"))
