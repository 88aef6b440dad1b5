"""Requests to a job, as objects of its bucket: ``requests/ID/NNNNNN.json``, numbered from 1, put if absent.

Nothing here looks into a request: whoever uploads the run copies the bytes of each into the run's folder `requests`,
and the job's supervisor, which made the folder, checks the signature. docs/spec/bucket-format.md has the rules.
"""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING

from luff.remote._errors import Absent, BucketError, Conflict, Refused, TooLarge, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from luff.remote._store import Store

MAX_REQUEST = 64 << 10
MAX_NUMBER = 999_999
MOST_AT_ONCE = 8  # of one look
MOST_WAITING = 64  # that the supervisor has not looked at
MOST_OF_A_RUN = 10_000
_LIST_EVERY_S = 60.0  # where a number was left out
MOST_LEFT_OUT = 1_000  # numbers in a row
_ATTEMPTS = 100

_NAME = re.compile(r"([0-9]{6})\.json")


def request_key(run_id: str, number: int) -> str:
    return f"requests/{run_id}/{number:06d}.json"


def _numbers(store: Store, run_id: str) -> list[int]:
    names = (_NAME.fullmatch(name) for name in store.children(f"requests/{run_id}/"))
    return sorted(int(name[1]) for name in names if name is not None)


def put_request(store: Store, run_id: str, data: bytes, after: int = 0) -> int:
    """Puts a request under the next number, which is beyond `after`. Returns the number. Raises a BucketError."""
    number = after + 1
    for taken in _numbers(store, run_id):
        if number <= taken < number + MOST_LEFT_OUT:  # one far beyond would use all numbers up
            number = taken + 1
    for _ in range(_ATTEMPTS):
        if number > MAX_NUMBER:
            break
        key = request_key(run_id, number)
        try:
            store.put_new(key, data)
        except Conflict:
            # A client repeats a put whose answer was lost, and reports that the object is there.
            try:
                found = store.get(key, MAX_REQUEST)
            except Absent:
                continue
            except Refused:
                found = None  # somebody's, and larger than any request
            if found is None or found[0] != data:
                number += 1
                continue
        return number
    raise Unreachable(
        "every number that was tried is taken; remove what others have put there, and try again: "
        f"{store.url}/{request_key(run_id, min(number, MAX_NUMBER))}"
    )


class Requests:
    """Fetches the requests of one run into its folder `requests`. **Not thread-safe.**

    Without that folder nobody wants requests, and the bucket is not asked.
    """

    def __init__(self, run: str, store: Store, run_id: str, say: Callable[[str], None]) -> None:
        self._folder = os.path.join(run, "requests")
        self._store, self._run_id, self._say = store, run_id, say
        self._last = -1  # number of the last that was fetched; -1: not known yet
        self._said: set[str] = set()
        self._list_at = 0.0
        self._listed: frozenset[int] = frozenset()  # numbers that there were at the last list
        self._taken = 0

    def look(self) -> int:
        """Fetches what is new, at most `MOST_AT_ONCE`. Returns how many came. Never raises."""
        try:
            return self._look()
        except BucketError as error:
            self._tell(str(error))
        except OSError as error:
            self._tell(f"{error.strerror}: {self._folder}")
        return 0

    def _look(self) -> int:
        if not os.path.isdir(self._folder):
            return 0
        if self._last < 0:
            self._last = self._remembered()
        came = 0
        while came < MOST_AT_ONCE and self._may_take():
            number = self._last + 1
            if number > MAX_NUMBER:
                break
            try:
                if not self._fetch(number):
                    break
            except Absent:
                if not self._skip_to_next():
                    break
                continue
            came += 1
        return came

    def _may_take(self) -> bool:
        waiting = sum(1 for name in os.listdir(self._folder) if name[:6].isdigit())
        if waiting >= MOST_WAITING:  # nobody supervises the job any more
            return False
        if self._taken >= MOST_OF_A_RUN:
            self._tell(f"the run had {MOST_OF_A_RUN} requests, and no more are fetched")
            return False
        return True

    def _fetch(self, number: int) -> bool:
        """Copies one request. False if it cannot be read now; Absent if there is none."""
        key = request_key(self._run_id, number)
        try:
            found = self._store.get(key, MAX_REQUEST)
        except Unreachable:
            return False  # the upload tells of it
        except Absent:
            raise
        except TooLarge:
            self._write(number, ".problem", b"the object is larger than 64 KiB, so it was not read")
        except Refused as error:  # no right, no file, or, where nobody may list, no such object
            if not self._is_listed(number):
                self._tell(f"requests cannot be read ({error}); it needs get and list below requests/")
                return False
            self._write(number, ".problem", f"the object cannot be read: {error}".encode(errors="replace"))
        else:
            self._write(number, ".json", found[0] if found else b"")
        self._last = number
        self._taken += 1
        self._remember()
        return True

    def _list(self) -> bool:
        """Lists the numbers that there are. False if a minute has not passed since it did."""
        now = time.monotonic()
        if now < self._list_at:
            return False
        self._list_at = now + _LIST_EVERY_S
        self._listed = frozenset()
        self._listed = frozenset(_numbers(self._store, self._run_id))
        return True

    def _is_listed(self, number: int) -> bool:
        """True if the number is there: one object that cannot be read must not hold up those behind it."""
        if number not in self._listed:
            try:
                self._list()
            except Refused:
                return False
        return number in self._listed

    def _skip_to_next(self) -> bool:
        """Where a number was left out, the next one that there is. Looks once in a minute."""
        if not self._list():
            return False
        most = self._last + MOST_LEFT_OUT
        beyond = sorted(number for number in self._listed if self._last < number <= most)
        if not beyond:
            return False
        self._last = beyond[0] - 1
        return True

    def _write(self, number: int, ending: str, data: bytes) -> None:
        self._put_file(f"{number:06d}{ending}", data)

    def _put_file(self, name: str, data: bytes) -> None:
        path = os.path.join(self._folder, name)
        temporary = f"{path}~"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        os.replace(temporary, path)

    def _remember(self) -> None:
        self._put_file("last", b"%d" % self._last)

    def _remembered(self) -> int:
        try:
            with open(os.path.join(self._folder, "last"), "rb") as file:
                text = file.read(16)
        except FileNotFoundError:
            return 0
        return int(text) if text.isdigit() and int(text) <= MAX_NUMBER else 0

    def _tell(self, text: str) -> None:
        if text not in self._said and len(self._said) < 20:
            self._said.add(text)
            self._say(text)
