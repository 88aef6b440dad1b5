"""Keeps a ``luff watch`` running: starts it again when it dies, and asks it how far it is. Knows nothing of Ray."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Sequence
from typing import Any

from luff._rules_beside import luff_command

__all__ = ["Shard", "lag_of"]

_WRONG_USAGE = 2
_TAKEN = "another luff watch judges these runs"  # the one before us, which is about to leave
_LINES = 50  # that it said last
_LONGEST_PAUSE_S = 30.0
_LEAVE_S = 15.0  # it leaves within 10 s of a signal
_ASK_S = 5.0
_METRICS = re.compile(r"luff: metrics: (http://127\.0\.0\.1:[0-9]+/metrics)")
_SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? ([0-9.eE+-]+|NaN|\+Inf)")
# Ends with us, however we end: 1 is PR_SET_PDEATHSIG, 15 SIGTERM. If we are gone already, it does not begin.
_WITH_US = (
    "import ctypes, os, sys\n"
    "ctypes.CDLL(None).prctl(1, 15, 0, 0, 0)\n"
    "os.getppid() == int(sys.argv[1]) and os.execv(sys.argv[2], sys.argv[2:])\n"
)


class Shard:
    """One ``luff watch BASE --shard I/N`` as a child. Thread-safe."""

    def __init__(self, base: str, shard: int, shards: int, words: Sequence[str] = ()) -> None:
        self.base, self.shard, self.shards = base, shard, shards
        self._folder = tempfile.mkdtemp(prefix="luff-watch-")  # mode 0700
        self._token = os.path.join(self._folder, "token")
        self._words = [
            base, "--shard", f"{shard}/{shards}", "--metrics", "127.0.0.1:0", "--metrics-token", self._token, *words,
        ]  # fmt: skip
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None
        self._stopping = threading.Event()
        self._judging = threading.Event()  # it has begun, or never will
        self._metrics = ""
        self._starts = 0
        self._problem = ""
        self._said: deque[str] = deque(maxlen=_LINES)
        # A child ends with the thread that has started it, so that one stays.
        self._keeper = threading.Thread(target=self._keep, name="luff-watch", daemon=True)
        self._keeper.start()

    def wait_until_judging(self, seconds: float) -> bool:
        """True once it judges; False if it has ended for good, or takes longer."""
        return self._judging.wait(seconds) and not self._problem

    def report(self) -> dict[str, Any]:
        """How far it is: see `luff.ray.Watch.report`."""
        with self._lock:
            told: dict[str, Any] = {
                "shard": self.shard, "base": self.base, "host": socket.gethostname(),
                "pid": self._child.pid if self._child is not None else None, "starts": self._starts,
                "problem": self._problem, "said": list(self._said),
            }  # fmt: skip
            address = self._metrics
        told |= {
            "ready": False,
            "runs": {},
            "behind_s": None,
            "lag_p99_s": None,
            "steps": None,
            "findings": None,
        }
        if not address:
            return told
        try:
            with open(self._token) as file:
                token = file.read().strip()
            request = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"})
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is on this machine
            with opener.open(request, timeout=_ASK_S) as answer:
                text = answer.read(1 << 20).decode()
        except (OSError, ValueError, urllib.error.URLError) as error:
            told["problem"] = told["problem"] or f"it does not answer: {error}"
            return told
        return told | _told_by(text)

    def stop(self) -> dict[str, Any]:
        """Ends it, as a signal does: it commits, and leaves. Returns the last report."""
        told = self.report()
        with self._lock:
            self._stopping.set()
            child = self._child
        if child is not None and child.poll() is None:
            child.terminate()
            try:
                child.wait(_LEAVE_S)
            except subprocess.TimeoutExpired:
                child.kill()
        self._keeper.join(_LEAVE_S)
        shutil.rmtree(self._folder, ignore_errors=True)
        return told

    def _keep(self) -> None:
        pause = 1.0
        while True:
            begun = time.monotonic()
            try:
                command = [
                    sys.executable,
                    "-I",
                    "-c",
                    _WITH_US,
                    str(os.getpid()),
                    luff_command(),
                    "watch",
                    *self._words,
                ]
                with self._lock:
                    if self._stopping.is_set():
                        break
                    self._child = subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                        errors="backslashreplace", env={"LUFF_PYTHON": sys.executable, **os.environ},
                    )  # fmt: skip
                    self._starts += 1
                code, taken = self._follow(self._child)
            except Exception as error:  # nobody else would hear of it
                self._gone_for_good(str(error))
                break
            with self._lock:
                self._child, self._metrics = None, ""
                if self._stopping.is_set():
                    break
            if code in (0, _WRONG_USAGE) and not taken:  # it would end so again
                self._gone_for_good(f"luff watch has ended with exit code {code}")
                break
            pause = 1.0 if time.monotonic() - begun > 60 else min(2 * pause, _LONGEST_PAUSE_S)
            self._stopping.wait(pause)
        self._judging.set()

    def _follow(self, child: subprocess.Popen[str]) -> tuple[int, bool]:
        """Waits for its end. Returns the exit code, and whether another process has its place."""
        assert child.stderr is not None
        taken = False
        with child.stderr:
            for line in child.stderr:
                found, taken = _METRICS.search(line), taken or _TAKEN in line
                with self._lock:
                    self._said.append(line.rstrip("\n")[:1000])
                    self._metrics = found[1] if found else self._metrics
                if "judging the runs of" in line:
                    self._judging.set()
        return child.wait(), taken

    def _gone_for_good(self, why: str) -> None:
        with self._lock:
            last = self._said[-1] if self._said else ""
            self._problem = f"{why}: {last}" if last else why


def _told_by(text: str) -> dict[str, Any]:
    samples = [match.groups() for line in text.splitlines() if (match := _SAMPLE.fullmatch(line))]
    value = {name: float(number) for name, labels, number in samples if not labels}
    runs = {
        labels.removeprefix('state="').removesuffix('"'): int(float(number))
        for name, labels, number in samples
        if name == "luff_watch_runs" and labels
    }
    return {
        "ready": value.get("luff_watch_ready") == 1,
        "runs": runs,
        "behind_s": value.get("luff_watch_behind_seconds"),
        "lag_p99_s": lag_of(text, 0.99),
        "steps": int(value.get("luff_watch_steps_total", 0)),
        "findings": int(sum(float(n) for name, _, n in samples if name == "luff_watch_findings_total")),
    }


def lag_of(text: str, share: float) -> float | None:
    """The lag within which this share of steps was judged: the end of a bucket of the histogram, in seconds.

    None if nothing was judged; infinite beyond the last bucket.
    """
    buckets = []
    for line in text.splitlines():
        match = _SAMPLE.fullmatch(line)
        if match is not None and match[1] == "luff_watch_lag_seconds_bucket" and match[2]:
            end = re.search(r'le="([^"]+)"', match[2])
            if end is not None:
                buckets.append((float(end[1].replace("+Inf", "inf")), float(match[3])))
    buckets.sort()
    if not buckets or buckets[-1][1] == 0:
        return None
    return next(end for end, count in buckets if count >= share * buckets[-1][1])
