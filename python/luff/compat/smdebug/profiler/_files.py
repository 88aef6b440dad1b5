"""Reads the profiler's files. They come from elsewhere: each problem names file and line, and hides nothing else.

A line that a killed writer left unfinished at the end of a file is no problem.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterator
from typing import Any

from luff._bounded import parse_json, read_regular

__all__ = ["gzipped_trace", "system_records", "timeline_records", "walk"]

MAX_FILE_BYTES = 512 << 20
MAX_PROBLEMS = 100  # of one file


def walk(folder: str) -> Iterator[str]:
    """Yields the regular files below a folder, sorted; links are not followed."""
    for root, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            path = os.path.join(root, name)
            if os.path.isfile(path) and not os.path.islink(path):
                yield path


def _read(path: str) -> bytes:
    folder, name = os.path.split(path)
    return read_regular(folder or ".", name, MAX_FILE_BYTES)


class _Problems(list[str]):
    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._left = 0

    def add(self, line: int, what: str) -> None:
        if len(self) < MAX_PROBLEMS:
            self.append(f"{self._path}, line {line}: {what}")
        else:
            self._left += 1
            self[-1] = f"{self._path}: {self._left + 1} further lines cannot be read"


def _by_lines(text: bytes, problems: _Problems) -> Iterator[tuple[int, Any]]:
    """Yields number and content of each line that holds an object; all of them between ``[`` and ``]`` or none."""
    lines = text.split(b"\n")
    while lines and not lines[-1].strip():
        lines.pop()
    for number, raw in enumerate(lines, 1):
        line = raw.strip()
        if number == 1:
            line = line.removeprefix(b"[")
        line = line.removesuffix(b",")
        if line in (b"", b"]"):
            continue
        try:
            found = parse_json(line)
        except ValueError as error:
            if line.endswith(b"]"):  # the end of the array on the last object's line
                try:
                    yield number, parse_json(line[:-1])
                    continue
                except ValueError:
                    pass
            if number != len(lines):
                problems.add(number, f"found no JSON ({error})")
            continue
        yield number, found


def _number(found: Any) -> bool:
    if not isinstance(found, (int, float)) or isinstance(found, bool):
        return False
    return math.isfinite(found) if isinstance(found, float) else abs(found) < 1 << 62


def system_records(path: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Reads a file of system metrics.

    Returns
    -------
    list of dict
        Each has ``Type`` (str), ``Name`` (str or None), ``Dimension`` (str), ``Value`` (number), ``NodeId`` (str) and
        ``Timestamp`` (seconds).
    list of str
        Problems, each with file and line.

    Raises
    ------
    OSError, ValueError
        If the file cannot be opened, is no regular file, or has more than 512 MiB.
    """
    problems = _Problems(path)
    records = []
    for line, found in _by_lines(_read(path), problems):
        if not isinstance(found, dict):
            problems.add(line, f"found {type(found).__name__}, expected an object")
            continue
        if not (
            all(isinstance(found.get(key), str) for key in ("Type", "Dimension", "NodeId"))
            and isinstance(found.get("Name"), (str, type(None)))
            and _number(found.get("Value"))
            and _number(found.get("Timestamp"))
        ):
            problems.add(
                line,
                "expected texts Type, Name, Dimension and NodeId, and numbers Value and Timestamp: "
                f"{str(found)[:200]}",
            )
            continue
        records.append({"Name": None, **found})
    return records, problems


def _is_event(found: Any) -> bool:
    if not isinstance(found, dict) or not isinstance(found.get("ph"), str):
        return False
    for key in ("ts", "dur"):
        if key in found and not _number(found[key]):
            return False
    if not isinstance(found.get("pid", 0), (int, str)) or not isinstance(found.get("tid", 0), (int, str)):
        return False
    return isinstance(found.get("args", {}), (dict, type(None)))


def _events(items: Iterator[tuple[int, Any]], problems: _Problems) -> list[dict[str, Any]]:
    events = []
    for line, found in items:
        if _is_event(found):
            events.append(found)
        elif found != {} and not (isinstance(found, dict) and "ph" not in found):
            problems.add(line, f"found no trace event: {str(found)[:200]}")
    return events


def timeline_records(path: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Reads a timeline: a JSON array of trace events, one a line.

    Returns
    -------
    list of dict
        Events; each has ``ph``, and ``ts``, ``dur``, ``pid``, ``tid`` and ``args`` are of the right types if present.
    list of str
        Problems, each with file and line.

    Raises
    ------
    OSError, ValueError
        If the file cannot be opened, is no regular file, or has more than 512 MiB.
    """
    problems = _Problems(path)
    text = _read(path)
    try:
        whole = parse_json(text)
    except ValueError:
        return _events(_by_lines(text, problems), problems), problems
    if isinstance(whole, dict):
        whole = whole.get("traceEvents")
    if not isinstance(whole, list):
        problems.add(1, "expected an array of trace events")
        return [], problems
    return _events(((number, found) for number, found in enumerate(whole, 2)), problems), problems


def gzipped_trace(path: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Reads what TensorFlow's profiler wrote: gzip of an object with ``traceEvents``; results as `timeline_records`."""
    problems = _Problems(path)
    unpack = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        text = unpack.decompress(_read(path), MAX_FILE_BYTES)
        if unpack.unconsumed_tail or not unpack.eof:
            raise ValueError(f"is cut off, or has more than {MAX_FILE_BYTES} bytes unpacked")
        whole = parse_json(text)
        if not isinstance(whole, dict) or not isinstance(whole.get("traceEvents"), list):
            raise ValueError("has no list traceEvents")
    except (zlib.error, ValueError) as error:
        problems.append(f"{path}: found no trace of TensorFlow: {error}")
        return [], problems
    return _events(((0, found) for found in whole["traceEvents"]), problems), problems
