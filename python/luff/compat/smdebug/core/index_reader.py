"""Reads the index of a trial as it grows.

Most steps hold the same tensors, so the contents of an index file are kept as a shared table of names and an array of
places: a million records take some ten megabytes.
"""

from __future__ import annotations

import os
import time
from array import array
from dataclasses import dataclass, field
from typing import Any

from luff._bounded import parse_json, read_regular
from luff.compat.smdebug.core.locations import parse_step_from_file, parse_worker_name_from_file
from luff.compat.smdebug.core.modes import ModeKeys
from luff.compat.smdebug.core.reductions import parse_reduction_name
from luff.compat.smdebug.exceptions import IndexReaderException

__all__ = ["IndexEntry", "LocalIndexReader", "ReadIndexFilesCache", "S3IndexReader"]

# Errors that a file can cause which was not written by a hook.
_WRONG = (ValueError, KeyError, TypeError, AttributeError, OSError, ArithmeticError)
# A folder unchanged for this long cannot change without getting a new time stamp.
_SETTLED_NS = 200_000_000
_MAX_BYTES = 256 << 20  # of one index file


@dataclass
class Names:
    """Names in one or many index files, and the position of each in the array of places."""

    values: dict[str, int] = field(default_factory=dict)
    reductions: dict[str, dict[tuple[str, bool], int]] = field(default_factory=dict)
    shapes: dict[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)

    def tensors(self) -> set[str]:
        """Returns the names of all tensors with a value, a reduction or a shape."""
        return self.values.keys() | self.reductions.keys() | self.shapes.keys()


@dataclass
class IndexEntry:
    """What one worker saved in one step."""

    step: int
    worker: str
    mode: ModeKeys
    mode_step: int
    event_file: str
    names: Names
    places: array[int]

    def place(self, position: int) -> tuple[int, int]:
        """Returns offset and length of a record."""
        return self.places[2 * position], self.places[2 * position + 1]


def _number(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise ValueError(f"found {what} {value!r}, expected a number")
    return value


class LocalIndexReader:
    """The index of a directory. `problems` names the files that could not be read."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.problems: dict[str, str] = {}
        self._read: set[str] = set()
        self._folders: dict[str, tuple[int, int]] = {}  # folder -> its time stamp, and when it was listed
        self._names: dict[Any, Names] = {}

    def _unchanged(self, folder: str) -> bool:
        try:
            stamp = os.stat(folder).st_mtime_ns
        except OSError:
            return True
        before, listed = self._folders.get(folder, (0, 0))
        self._folders[folder] = (stamp, time.time_ns())
        return stamp == before and listed - stamp > _SETTLED_NS

    def list_index_files(self, after_folder: str = "") -> list[str]:
        """Returns the index files that were not read yet, ordered by step."""
        top = os.path.join(self.path, "index")
        out: list[str] = []
        try:
            folders = sorted(entry.path for entry in os.scandir(top) if entry.is_dir())
            folders = [top, *(f for f in folders if os.path.basename(f) >= after_folder)]
        except OSError:
            return out
        for folder in folders:
            if self._unchanged(folder):
                continue
            try:
                names = [e.name for e in os.scandir(folder) if e.name.endswith((".json", ".csv"))]
            except OSError:
                continue
            paths = (os.path.join(folder, name) for name in names)
            out += [path for path in paths if path not in self._read]
        return sorted(out, key=os.path.basename)

    def read(
        self, after_folder: str = "", range_steps: tuple[int | None, int | None] | None = None
    ) -> list[IndexEntry]:
        """Returns what was written since the last call; `range_steps` is half open."""
        out = []
        low, high = range_steps or (None, None)
        for path in self.list_index_files(after_folder):
            self._read.add(path)
            try:
                step = parse_step_from_file(path)
                if (low is not None and step < low) or (high is not None and step >= high):
                    continue
                out.append(self._entry(path, step, parse_worker_name_from_file(path)))
            except (IndexReaderException, *_WRONG) as error:
                self.problems[path] = f"{type(error).__name__}: {error}"
        return out

    def _entry(self, path: str, step: int, worker: str) -> IndexEntry:
        folder, name = os.path.split(path)
        found = parse_json(read_regular(folder, name, _MAX_BYTES))
        if not isinstance(found, dict) or not isinstance(found.get("meta"), dict) or not found["meta"]:
            raise IndexReaderException('found no "meta", expected an index file')
        tensors, shapes = found.get("tensor_payload"), found.get("shape_payload")
        if tensors is None and shapes is None:
            raise IndexReaderException('found neither "tensor_payload" nor "shape_payload"')
        meta = found["meta"]
        places = array("Q")
        for row in tensors or ():
            places.append(_number(row["start_idx"], "start_idx"))
            places.append(_number(row["length"], "length"))
        shape_rows = tuple(
            (
                row["tensorname"],
                tuple(int(n) for n in row["shape"]),
                row.get("originalname", row["tensorname"]),
            )
            for row in shapes or ()
        )
        key = (tuple(row["tensorname"] for row in tensors or ()), shape_rows)
        names = self._names.get(key)
        if names is None:
            names = self._names[key] = self._make(*key)
        mode = ModeKeys[meta.get("mode", "GLOBAL")]
        mode_step = _number(meta.get("mode_step", step), "mode_step")
        event_file = str(meta.get("event_file_name", ""))
        if ".." in event_file.split("/") or event_file.startswith("/"):
            raise IndexReaderException(
                f"found event_file_name {event_file!r}, expected a path inside of the trial"
            )
        return IndexEntry(step, worker, mode, mode_step, event_file, names, places)

    @staticmethod
    def _make(tensors: tuple[str, ...], shapes: tuple[tuple[str, tuple[int, ...], str], ...]) -> Names:
        names = Names()
        for position, name in enumerate(tensors):  # if a name occurs twice, the last one counts
            reduction = parse_reduction_name(name)
            if reduction is None:
                names.values[name] = position
            else:
                names.reductions.setdefault(reduction[0], {})[reduction[1:]] = position
        for name, shape, original in shapes:
            names.shapes[name] = (shape, original)
        return names


class S3IndexReader(LocalIndexReader):
    """The index of a bucket; cannot be made, since object storage is not supported."""

    def __init__(self, path: str) -> None:
        from luff.compat.smdebug.core.access_layer.s3 import no_s3

        no_s3(path)


class ReadIndexFilesCache:
    """Remembers names of files that were read. Above its limit it forgets those before the start key."""

    def __init__(self) -> None:
        self.lookup_set: set[str] = set()
        self.cache_limit = 1000

    def has_not_read(self, index_file: str) -> bool:
        """Returns whether a file is new."""
        return index_file not in self.lookup_set

    def add(self, index_file: str, start_after_key: str | None) -> None:
        """Remembers a file."""
        if len(self.lookup_set) > self.cache_limit and start_after_key is not None:
            self.lookup_set = {name for name in self.lookup_set if name >= start_after_key}
        self.lookup_set.add(index_file)
