"""Units of time, and names of the profiler's files."""

from __future__ import annotations

import os
import re
from datetime import datetime, timezone
from enum import Enum
from typing import Any

__all__ = [
    "TimeUnits",
    "convert_utc_datetime_to_microseconds",
    "convert_utc_datetime_to_nanoseconds",
    "convert_utc_timestamp_to_microseconds",
    "convert_utc_timestamp_to_nanoseconds",
    "convert_utc_timestamp_to_seconds",
    "get_node_id_from_system_profiler_filename",
    "get_node_id_from_tracefilename",
    "get_timestamp_from_tracefilename",
    "get_utctimestamp_us_since_epoch_from_system_profiler_file",
    "is_valid_tfprof_tracefilename",
    "is_valid_tracefilename",
    "ns_since_epoch_to_human_readable_time",
    "read_tf_profiler_metadata_file",
    "us_since_epoch_to_human_readable_time",
    "validate_system_profiler_file",
]

_SYSTEM_NAME = re.compile(r"(?:.*/)?system/(?:.*/)?(\d{10})\.(algo-\d+)\.json$")
_METADATA_NAME = re.compile(r"(.+)_(\d+)_(\d+)\.metadata")


class TimeUnits(Enum):
    """Units in which times are given."""

    SECONDS = 1
    MILLISECONDS = 2
    MICROSECONDS = 3
    NANOSECONDS = 4


_NS = {
    TimeUnits.SECONDS: 1_000_000_000,
    TimeUnits.MILLISECONDS: 1_000_000,
    TimeUnits.MICROSECONDS: 1_000,
    TimeUnits.NANOSECONDS: 1,
}


def _converted(time: float, unit: TimeUnits, to: TimeUnits) -> int:
    factor, divisor = _NS[unit], _NS[to]
    return int(time * (factor // divisor)) if factor >= divisor else int(time // (divisor // factor))


def convert_utc_timestamp_to_nanoseconds(timestamp: float, unit: TimeUnits = TimeUnits.MICROSECONDS) -> int:
    """Converts a time to nanoseconds."""
    return _converted(timestamp, unit, TimeUnits.NANOSECONDS)


def convert_utc_timestamp_to_microseconds(timestamp: float, unit: TimeUnits = TimeUnits.MICROSECONDS) -> int:
    """Converts a time to microseconds."""
    return _converted(timestamp, unit, TimeUnits.MICROSECONDS)


def convert_utc_timestamp_to_seconds(timestamp: float, unit: TimeUnits = TimeUnits.MICROSECONDS) -> int:
    """Converts a time to whole seconds."""
    return _converted(timestamp, unit, TimeUnits.SECONDS)


def convert_utc_datetime_to_nanoseconds(timestamp_datetime: datetime) -> int:
    """Converts a date to nanoseconds since 1970."""
    return convert_utc_timestamp_to_nanoseconds(timestamp_datetime.timestamp(), TimeUnits.SECONDS)


def convert_utc_datetime_to_microseconds(timestamp_datetime: datetime) -> int:
    """Converts a date to microseconds since 1970."""
    return convert_utc_timestamp_to_microseconds(timestamp_datetime.timestamp(), TimeUnits.SECONDS)


def us_since_epoch_to_human_readable_time(us_since_epoch: float) -> str:
    """Converts microseconds since 1970 to a text in UTC, e.g. ``2020-06-03T04:51:39:457089``."""
    return datetime.fromtimestamp(us_since_epoch / 1e6, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S:%f")


def ns_since_epoch_to_human_readable_time(ns_since_epoch: float) -> str:
    """The same for nanoseconds."""
    return us_since_epoch_to_human_readable_time(ns_since_epoch / 1e3)


def is_valid_tracefilename(filename: str) -> bool:
    """Returns whether it is the path of a closed timeline: ``.../pevents/HOUR/TIME_NODE_SUFFIX.json``."""
    return filename.endswith(".json") and "pevents" in filename and filename.count("_") >= 2


def is_valid_tfprof_tracefilename(filename: str) -> bool:
    """Returns whether it is the path of a trace of TensorFlow's profiler."""
    return filename.endswith("trace.json.gz") and "tensorflow/detailed_profiling" in filename


def validate_system_profiler_file(filename: str) -> bool:
    """Returns whether it is the path of a file of system metrics: ``.../system/.../MINUTE.algo-N.json``."""
    return _SYSTEM_NAME.match(filename) is not None


def get_node_id_from_system_profiler_filename(filename: str) -> str | None:
    """Returns e.g. ``algo-1``; None if it is no file of system metrics."""
    match = _SYSTEM_NAME.match(filename)
    return match[2] if match else None


def get_utctimestamp_us_since_epoch_from_system_profiler_file(filename: str) -> int | None:
    """Returns the minute of a file of system metrics in microseconds; None for another file."""
    match = _SYSTEM_NAME.match(filename)
    return int(match[1]) * 1_000_000 if match else None


def get_node_id_from_tracefilename(filename: str) -> str:
    """Returns who wrote a timeline, e.g. ``0-algo-1``."""
    if is_valid_tracefilename(filename):
        return os.path.basename(filename).split("_")[1]
    return read_tf_profiler_metadata_file(filename)[0]


def get_timestamp_from_tracefilename(filename: str) -> int:
    """Returns when the last event of a timeline ended, in microseconds; 0 if its name does not say."""
    if is_valid_tracefilename(filename):
        first = os.path.basename(filename).split("_")[0]
        return int(first) if first.isdecimal() else 0
    return int(read_tf_profiler_metadata_file(filename)[2])


def read_tf_profiler_metadata_file(file_path: str) -> tuple[str, str, str]:
    """Returns node, begin and end (microseconds) of a trace of TensorFlow's profiler, as the marker beside it says.

    They are ``("", "0", "0")`` if there is none.
    """
    nothing = ("", "0", "0")
    if not is_valid_tfprof_tracefilename(file_path) or file_path.startswith("s3://"):
        return nothing
    from luff.compat.smdebug.profiler._files import walk

    folder = file_path
    for _ in range(4):  # plugins/profile/RUN/HOST.trace.json.gz
        folder = os.path.dirname(folder)
    for path in walk(folder):
        match = _METADATA_NAME.fullmatch(os.path.basename(path))
        if match:
            return match[1], match[2], match[3]
    return nothing


def str2bool(v: Any) -> bool:
    """Converts a text to a truth value."""
    if isinstance(v, bool):
        return v
    text = str(v).strip().lower()
    if text in ("y", "yes", "t", "true", "on", "1"):
        return True
    if text in ("n", "no", "f", "false", "off", "0"):
        return False
    raise ValueError(f"found {v!r}, expected true or false")
