"""The card of a run in a bucket, made by ``luff card`` in a process of its own, as often as it is worth it."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from typing import TYPE_CHECKING

from luff._rules_beside import luff_command
from luff.errors import NotFoundError
from luff.remote._errors import BucketError
from luff.remote._files import MAX_CARD

if TYPE_CHECKING:
    from collections.abc import Callable

_VERDICT_S = 30.0  # at most as often if a finding, or a command, is new
_PROGRESS_S = 60.0  # if only steps are
_HEARTBEAT_S = 300.0  # if nothing is, so that readers can tell a live run from one whose machine is lost
_MOST_S = 60.0  # a card that takes longer is given up
_SHARE = 300  # CPU seconds that pass for each one that a card took


class CardMaker:
    """Makes the card of one run, without holding up the upload. **Not thread-safe.**"""

    def __init__(self, run: str) -> None:
        self._run = run
        self._luff: str | None = None  # without it there are no cards
        try:
            self._luff = luff_command()
        except NotFoundError:
            pass
        self._child: subprocess.Popen[bytes] | None = None
        self._begun = float("-inf")
        self._cpu_s, self._total_s = 0.0, 0.0  # CPU seconds of the last card, and of all
        self._seen: tuple[int, ...] = ()  # what a verdict depends on, when the last card was begun
        self._sequence = -1  # of the head, then

    def take(self, sequence: int) -> bytes | None:
        """Returns a card that is ready, and begins the next one when it is due. Takes no time.

        `sequence`: of the head in the bucket.
        """
        if self._child is not None:
            return self._end_if_ready()
        passed, verdict = time.monotonic() - self._begun, self._of_verdict()
        pause = _VERDICT_S if verdict != self._seen else _PROGRESS_S
        pause = pause if verdict != self._seen or sequence != self._sequence else _HEARTBEAT_S
        if self._luff is not None and passed > max(pause, _SHARE * self._cpu_s):
            self._begin(verdict, sequence)
        return None

    def last(self, seconds: float) -> bytes | None:
        """The card of a run that has ended. Takes at most so long; None if that is not enough."""
        self.close()
        if self._luff is not None:
            self._begin((), -1)
        return self._end(min(seconds, _MOST_S))

    def close(self) -> None:
        """Gives up the card that is being made."""
        if self._child is not None:
            self._child.kill()
            self._end(_MOST_S)

    def _of_verdict(self) -> tuple[int, ...]:
        def size(name: str) -> int:
            try:
                return os.stat(os.path.join(self._run, name)).st_mtime_ns
            except OSError:
                return 0

        return size("rules/luff/findings.jsonl"), size("control")

    def _begin(self, verdict: tuple[int, ...], sequence: int) -> None:
        self._begun, self._seen, self._sequence = time.monotonic(), verdict, sequence
        try:
            self._child = subprocess.Popen(
                [str(self._luff), "card", self._run],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,  # a card is smaller than what a pipe holds, so nobody waits
                stderr=subprocess.DEVNULL,
            )
        except (FileNotFoundError, PermissionError):
            self._luff = None
        except OSError:  # no memory or no process is left: when the next one is due
            pass

    def _end_if_ready(self) -> bytes | None:
        assert self._child is not None
        if self._child.poll() is None and time.monotonic() - self._begun > _MOST_S:
            self._child.kill()
        elif self._child.returncode is None:
            return None
        return self._end(_MOST_S)

    def _end(self, seconds: float) -> bytes | None:
        child, self._child = self._child, None
        if child is None:
            return None
        try:
            card = child.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            return None
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        before, self._total_s = self._total_s, used.ru_utime + used.ru_stime
        self._cpu_s = self._total_s - before
        card = card.strip()
        return card if child.returncode == 0 and 0 < len(card) <= MAX_CARD else None


class Cards:
    """Keeps the card in the bucket up to date. A bucket that refuses cards has the run, and no card."""

    def __init__(self, run: str, put: Callable[[bytes], None]) -> None:
        self._maker: CardMaker | None = CardMaker(run)
        self._put = put
        self._kept = b""
        self._kept_at = 0.0

    def look(self, sequence: int) -> None:
        """After a flush. Raises nothing."""
        if self._maker is not None:
            self._keep(self._maker.take(sequence))

    def end(self, seconds: float) -> None:
        """After the last flush."""
        if self._maker is not None:
            self._keep(self._maker.last(seconds))

    def close(self) -> None:
        if self._maker is not None:
            self._maker.close()

    def _keep(self, card: bytes | None) -> None:
        same = card == self._kept and time.monotonic() - self._kept_at < _HEARTBEAT_S / 2
        if card is None or same:
            return
        try:
            self._put(card)
        except BucketError:
            return  # the next one will do
        self._kept, self._kept_at = card, time.monotonic()
