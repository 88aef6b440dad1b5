"""``luff prune URL --older 30d --keep metadata|nothing``: removes old runs from a bucket, or their values."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from typing import TYPE_CHECKING

from luff.remote._errors import BucketError, Unreachable, WrongUrl
from luff.remote._prune import KEEP, prune
from luff.remote._store import check_installed, normal_url, open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

OK, WRONG_USAGE, REFUSED, INCOMPLETE = 0, 2, 5, 6
_UNITS = {"h": 3600, "d": 86400, "w": 7 * 86400}
_LEAST_S = 86400  # a clock that is off by hours must not make a live run old
_AGE = re.compile(r"([0-9]{1,5})([hdw])")


def seconds_of(age: str) -> int:
    """Seconds of "30d". ValueError says what is wrong."""
    match = _AGE.fullmatch(age)
    if match is None:
        raise ValueError(f"--older is {age!r}; expected a number and h, d or w, for example 30d")
    seconds = int(match[1]) * _UNITS[match[2]]
    if seconds < _LEAST_S:
        raise ValueError(f"--older is {age}; expected at least 1d, so that no clock makes a live run old")
    return seconds


def _shown(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _size(size: int) -> str:
    amount = float(size)
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 1000 or unit == "GB":
            break
        amount /= 1000
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def _run(url: str, keep: str, seconds: int, dry_run: bool, as_json: bool) -> int:
    runs = objects = size = problems = 0
    for one in prune(open_store(url), keep, seconds * 10**9, dry_run):
        days = (time.time_ns() - one.modified_unix_ns) / 86400e9
        if as_json:
            print(json.dumps({**one._asdict(), "removed": not dry_run and not one.problem}), flush=True)
        elif one.problem:
            print(f"{one.run_id}  left alone: {_shown(one.problem)}", flush=True)
        else:
            print(
                f"{one.run_id}  {days:6.0f} days  {one.objects:8} objects  {_size(one.bytes):>9}", flush=True
            )
        if one.problem:
            problems += 1
        else:
            runs, objects, size = runs + 1, objects + one.objects, size + one.bytes
    what = "would be removed" if dry_run else "removed"
    if not as_json:
        of = "values of" if keep == "metadata" else "all but the card of"
        print(f"{what}: {of} {runs} run{'s' * (runs != 1)}, {objects} objects, {_size(size)}")
    return REFUSED if problems else OK


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="luff prune")
    parser.add_argument("url")
    parser.add_argument("--older", required=True)
    parser.add_argument("--keep", required=True, choices=KEEP)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(words)
    try:
        seconds = seconds_of(arguments.older)
        url = normal_url(arguments.url)
        check_installed(url)
    except (ValueError, BucketError) as error:
        print(f"luff: prune: {_shown(str(error))}", file=sys.stderr)
        return WRONG_USAGE
    try:
        return _run(url, arguments.keep, seconds, arguments.dry_run, arguments.json)
    except BucketError as error:
        print(f"luff: prune: {_shown(str(error))}", file=sys.stderr)
        return {Unreachable: INCOMPLETE, WrongUrl: WRONG_USAGE}.get(type(error), REFUSED)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # obstore's threads do not survive the end of the interpreter
