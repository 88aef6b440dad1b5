"""Messages between the hosts of a job, in its bucket: ``jobs/JOB/NNNNNN.json``, put if absent: one order for all.

Nothing here looks into a message: the supervisor of each host signs and checks them. This passes them on between the
bucket and the folder `hosts` of the run, which the supervisor has made. docs/spec/bucket-format.md, section 15.
"""

from __future__ import annotations

import os
import re
import threading
import time
from typing import TYPE_CHECKING

from luff.remote._errors import Absent, BucketError, Conflict, TooLarge, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from luff.remote._store import Store

MAX_MESSAGE = 64 << 10
MAX_NUMBER = 999_999
MOST_WAITING = 256  # messages that the supervisor has not taken
MOST_AT_ONCE = 64
MOST_LEFT_OUT = 1_000  # numbers in a row
_LOOK_S = 1.0  # between two looks at the bucket
_BUSY_S = 0.25  # likewise, while the hosts talk
_TALK_S = 60.0  # for so long after the last message
_OWN_S = 0.1  # between two looks for what this host has to say
_FAILED_S = 2.0  # until a bucket that has failed is asked again
_ATTEMPTS = 100

_JOB = re.compile(r"[0-9a-f]{32}")
_NAME = re.compile(r"([0-9]{6})\.json")
_OWN = re.compile(r"([0-9]{6})\.(json|sent)")


def is_job(text: str) -> bool:
    return _JOB.fullmatch(text) is not None


def message_key(job: str, number: int) -> str:
    return f"jobs/{job}/{number:06d}.json"


class Hosts:
    """Passes messages on. **Not thread-safe**: `follow` runs in a thread of its own, and never raises."""

    def __init__(self, run: str, store: Store, job: str, say: Callable[[str], None]) -> None:
        self._folder = os.path.join(run, "hosts")
        self._store, self._job, self._say = store, job, say
        self._last = -1  # number of the last message; -1: not known yet
        self._ask_at = 0.0  # monotonic: the next look at the bucket, if this host has nothing to say
        self._failed_until = 0.0
        self._talk_until = 0.0
        self._said: set[str] = set()

    def follow(self, over: threading.Event) -> None:
        """Passes messages on until `over`. Whatever fails is told, and tried again: a job relies on it."""
        while not over.wait(_OWN_S):
            try:
                self.look()
            except Exception as error:
                self._tell(f"the hosts of the job cannot talk to each other: {error!r}")
                self._failed_until = time.monotonic() + _FAILED_S

    def look(self) -> None:
        """Puts what this host has to say, and fetches what is new, unless it is too early for that."""
        own, now = self._own(), time.monotonic()
        if now < self._failed_until or (not own and now < self._ask_at):
            return
        try:
            self._look(own)
            return
        except Unreachable:
            pass  # the upload tells of it
        except BucketError as error:
            self._tell(f"the hosts of the job cannot talk to each other: {error}")
        except OSError as error:
            self._tell(f"the hosts of the job cannot talk to each other: {error.strerror}: {self._folder}")
        self._failed_until = time.monotonic() + _FAILED_S

    def _look(self, own: list[str]) -> None:
        if not os.path.isdir(os.path.join(self._folder, "out")):
            self._ask_at = time.monotonic() + _LOOK_S  # the run has no supervisor yet
            return
        if self._last < 0:
            last = self._heard()
            if last < 0:
                last = self._end_of_log()
                self._write("begun", b"%d" % last)
            self._last = last
        if self._fetch_all():  # while this fails, the supervisor may take back what it has to say
            for name in self._own()[:MOST_AT_ONCE] if own else ():
                self._put(name)
                self._talk_until = time.monotonic() + _TALK_S
        now = time.monotonic()
        self._ask_at = now + (_BUSY_S if now < self._talk_until else _LOOK_S)

    def _own(self) -> list[str]:
        """Names of what is to be put, in its order."""
        try:
            names = os.listdir(os.path.join(self._folder, "out"))
        except OSError:
            return []
        return sorted(name for name in names if _OWN.fullmatch(name))

    def _heard(self) -> int:
        """The last number that an earlier upload of this supervisor has passed on; -1 if there was none.

        A supervisor that begins removes `begun`.
        """
        if not os.path.exists(os.path.join(self._folder, "begun")):
            return -1
        names = (_NAME.fullmatch(name) for name in os.listdir(os.path.join(self._folder, "in")))
        heard = [int(name[1]) for name in names if name is not None]
        for name in ("begun", "heard"):
            try:
                with open(os.path.join(self._folder, name), "rb") as file:
                    heard.append(int(file.read(16)))
            except (OSError, ValueError):
                continue
        return max(heard, default=-1)

    def _end_of_log(self) -> int:
        """The last number that is taken. What was said before belongs to a host that asked then."""
        last = 0
        names = (_NAME.fullmatch(name) for name in self._store.children(f"jobs/{self._job}/"))
        for number in sorted(int(name[1]) for name in names if name is not None):
            if last < number <= last + MOST_LEFT_OUT:  # one far beyond would use all numbers up
                last = number
        return last

    def _fetch_all(self) -> bool:
        """Fetches what is new. False if there may be more."""
        waiting = len(os.listdir(os.path.join(self._folder, "in")))
        for _ in range(MOST_AT_ONCE):
            if waiting >= MOST_WAITING or self._last >= MAX_NUMBER:  # nobody supervises the job any more
                return False
            try:
                self._fetch()
            except Absent:
                return True
            waiting += 1
        return False

    def _fetch(self) -> bytes:
        """Copies the next message; Absent if there is none.

        One that is too large to be a message is left out, as empty. Another that cannot be read may be the decision.
        """
        try:
            found = self._store.get(message_key(self._job, self._last + 1), MAX_MESSAGE)
        except TooLarge as error:
            self._tell(f"a message between the job's hosts cannot be read: {error}")
            found = None
        data = found[0] if found else b""
        # One whose put an earlier upload, or the client, did not see through; it is not put twice.
        for name in (name for name in self._own() if name.endswith(".sent")):
            path = os.path.join(self._folder, "out", name)
            if self._read(path) == data:
                os.unlink(path)
        self._pass_on(data)
        self._talk_until = time.monotonic() + _TALK_S
        return data

    def _pass_on(self, data: bytes) -> None:
        self._write(f"in/{self._last + 1:06d}.json", data)
        self._write("heard", b"%d" % (self._last + 1))
        self._last += 1

    def _put(self, name: str) -> None:
        """Puts one message under the next number that is free. Raises Unreachable if it is not known to be there."""
        path = os.path.join(self._folder, "out", name)
        sent = f"{os.path.splitext(path)[0]}.sent"
        if path != sent:
            try:
                os.rename(path, sent)  # from now on the supervisor cannot take it back
            except FileNotFoundError:
                return  # it has
        data = self._read(sent)
        for _ in range(_ATTEMPTS):
            if self._last >= MAX_NUMBER:
                break
            try:
                self._store.put_new(message_key(self._job, self._last + 1), data)
            except Conflict:
                # Another host's; or its own: a client repeats a put whose answer was lost, and reports a conflict.
                try:
                    if self._fetch() == data:
                        return
                except Absent:  # a 409 that wrote nothing
                    pass
                continue
            os.unlink(sent)
            self._pass_on(data)
            return
        raise Unreachable(f"every number that was tried is taken: {self._store.url}/jobs/{self._job}/")

    def _read(self, path: str) -> bytes:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as file:
            return file.read(MAX_MESSAGE)

    def _write(self, name: str, data: bytes) -> None:
        path = os.path.join(self._folder, name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(f"{path}~", flags, 0o600), "wb") as file:
            file.write(data)
        os.replace(f"{path}~", path)

    def _tell(self, text: str) -> None:
        if text not in self._said and len(self._said) < 20:
            self._said.add(text)
            self._say(text)
