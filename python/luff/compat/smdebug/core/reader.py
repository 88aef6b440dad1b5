"""Reads an event file from its beginning."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from luff.compat.smdebug.core.events import Record, read_record
from luff.compat.smdebug.core.modes import ModeKeys

__all__ = ["FileReader", "read_value"]


def read_value(path: str, start: int, length: int) -> Any:
    """Returns the value of the record at a place of an event file."""
    with open(path, "rb") as file:
        file.seek(start)
        record = read_record(file, path, at_most=length)
    return record.value if record is not None else None


class FileReader:
    """An event file."""

    def __init__(self, fname: str, **_: Any) -> None:
        self.fname = str(fname)

    def _records(self) -> Iterator[Record]:
        with open(self.fname, "rb") as file:
            while (record := read_record(file, self.fname)) is not None:
                if record.name:
                    yield record

    def read_tensors(self) -> Iterator[tuple[str, int, Any, ModeKeys, int]]:
        """Yields name, global step, value, mode and mode step of each tensor."""
        for record in self._records():
            mode_step = record.step if record.mode_step is None else record.mode_step
            yield record.name, record.step, record.value, ModeKeys(record.mode), mode_step

    def read_events(self, regex_list: list[str] | None = None) -> list[dict[str, Any]]:
        """Returns name, step, value and time of each record whose name matches one of the expressions."""
        wanted = [re.compile(text) for text in regex_list or [""]]
        return [
            {
                "name": record.name,
                "step": record.step,
                "timestamp": record.wall_time,
                "value": np.atleast_1d(np.asarray(record.value)),
            }
            for record in self._records()
            if any(regex.search(record.name) for regex in wanted)
        ]
