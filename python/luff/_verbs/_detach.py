"""Keeps an upload going in a process that is nobody's child: ``python -I _detach.py RUN URL``.

The starter waits for a bare interpreter only, and has no child left that its own ``os.wait`` could meet. The process
that goes on starts ``luff sync``, waits for it, and starts it again if it ends before the run does, by the rules of
src/cli/upload_ends.h for an upload under ``luff run``. What is said goes to ``sync/log`` in the run. The working
directory stays: the environment may name files of credentials relative to it.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time

_DONE, _FENCED = 0, 4  # with these the run is uploaded, by whom ever
_FINAL = (_DONE, 2, _FENCED, 5, 6)  # exit codes of an upload after which there is nothing to begin again
_PAUSES = (1, 2, 5, 15, 60, 120, 300, 300)  # seconds, one for each end in a row
_SETTLED_S = 600.0  # one that has lived for so long ends the row


def _go_on_alone(log: str) -> None:
    if os.fork() != 0:
        os._exit(0)
    os.setsid()
    os.nice(10)
    # A scheduler tells all processes of a job to end. The upload is told, too, and we end after it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored ones are inherited, and nobody could wait then
    nothing = os.open(os.devnull, os.O_RDWR)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    try:
        said = os.open(log, flags, 0o600)
    except OSError:  # a disk that is full: the upload is worth more than what it says
        said = nothing
    for fd, to in ((0, nothing), (1, nothing), (2, said)):
        os.dup2(to, fd)


def _say(text: str) -> None:
    try:
        os.write(2, f"luff: sync: {text}\n".encode(errors="backslashreplace"))
    except OSError:
        pass


def _note(folder: str, **what: object) -> None:
    """Replaces ``ends.json``, of which `luff show` tells."""
    path = os.path.join(folder, "ends.json")
    text = json.dumps({"format": "luff-sync-ends", "version": 1, **what, "unix_ns": time.time_ns()})
    try:
        fd = os.open(f"{path}~", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(text + "\n")
        os.replace(f"{path}~", path)
    except OSError:
        pass


def _first_pause_s() -> float:
    try:
        seconds = float(os.environ.get("LUFF_UPLOAD_PAUSE_S", "1"))
    except ValueError:
        return 1.0
    return seconds if 0 <= seconds <= 60 else 1.0


def _ended(words: list[str]) -> tuple[int, str]:
    """Runs an upload. Returns its exit code, below 0 where it has none, and how it ended."""
    try:
        child = os.posix_spawn(sys.executable, words, os.environ, setsigdef=[signal.SIGTERM])
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except OSError as error:
        return -1, error.strerror or "it did not start"
    return code, f"signal {-code}" if code < 0 else f"exit code {code}"


def _keep(run: str, url: str) -> None:
    start = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_start.py")
    words = [sys.executable, "-I", start, "sync", f"--owner={os.urandom(8).hex()}"]
    folder = os.path.join(run, "sync")
    try:
        os.unlink(os.path.join(folder, "ends.json"))  # of an earlier upload
    except OSError:
        pass
    ends, in_row = 0, 0
    while True:
        begun = time.monotonic()
        code, how = _ended([*words, *(["--again"] if ends else []), "--", run, url])
        if code in _FINAL:
            if code not in (_DONE, _FENCED) and ends:  # the others say what is missing
                _note(folder, url=url, ends=ends, last=how, again=False)
            return
        if time.monotonic() - begun >= _SETTLED_S:
            in_row = 0
        ends += 1
        again = in_row < len(_PAUSES)
        _note(folder, url=url, ends=ends, last=how, again=again)
        if not again:
            by_hand = shlex.join(["luff", "sync", run, url])
            _say(f"ended {ends} times, the last time so: {how}; it is not begun again: `{by_hand}` goes on")
            return
        if in_row == 0:
            _say(f"ended ({how}) and is begun again")
        time.sleep(_PAUSES[in_row] * _first_pause_s())
        in_row += 1


if __name__ == "__main__":
    _go_on_alone(os.path.join(sys.argv[1], "sync", "log"))
    _keep(*sys.argv[1:])
