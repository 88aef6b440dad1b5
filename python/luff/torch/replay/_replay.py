"""A step's statements evaluated again in a forked child, to see which operation and line made NaN.

The training process forks once and continues; what the child finds comes through a pipe that is read at step ends.
The child shares only the pipe (`_isolation`), may not write, connect or start anything, runs one thread at the lowest
priority, and is ended by the kernel after ten seconds. What is safe and why: docs/adr/0010.
"""

from __future__ import annotations

import json
import linecache
import os
import select
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch

from luff._descriptor import Descriptor
from luff.torch.replay import _isolation

__all__ = ["Replay", "first_in_child", "frames_of_user", "of_user", "wait_for"]

_ANSWER = 4096  # at most PIPE_BUF: comes whole or not at all
_FRAMES = 8
_LOOK_S = 0.02
_IDLE = 5  # looks in a row at which it slept and had used no time: what it waits for was in another process
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_LUFF = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_first: list[Callable[[], object]] = []


def first_in_child(action: Callable[[], object]) -> None:
    """Calls `action` in every child before it evaluates anything."""
    _first.append(action)


def of_user(filename: str) -> bool:
    """True for files of neither torch nor Luff."""
    return not filename.startswith((_TORCH, _LUFF, "<")) and "torch/nn/" not in filename


def frames_of_user() -> list[Any]:
    """The user's frames that are running, the innermost first."""
    frames: list[Any] = []
    frame = sys._getframe(1)
    while frame is not None and len(frames) < _FRAMES:
        if of_user(frame.f_code.co_filename):
            frames.append(frame)
        frame = frame.f_back  # type: ignore[assignment]
    return frames


def _shared(models: Iterable[Any]) -> str:
    """Why the models' memory cannot be copied: other processes may change it meanwhile. "" if it can."""
    try:
        if any(tensor.is_shared() for model in models for tensor in (*model.parameters(), *model.buffers())):
            return "parameters are in memory that other processes write"
    except (RuntimeError, NotImplementedError):
        return "the memory of a parameter is not its own"
    return ""


class Replay:
    """One child that evaluates something."""

    def __init__(self, pid: int, pipe: Descriptor) -> None:
        self._pid = pid
        self._pipe = pipe
        self._until = time.monotonic() + _isolation.SECONDS + 2

    @staticmethod
    def start(
        frames: list[Any], root: Any, backward: bool, names: Any, models: Iterable[Any]
    ) -> Replay | str:
        """Forks; where that is not allowed, why.

        Parameters
        ----------
        frames
            The user's frames, the innermost first.
        root
            The loss that is not finite, or None.
        backward
            The loss is finite, its gradients are not.
        names
            Names of modules.
        models
            Those whose parameters and buffers the step uses.
        """
        if not frames:
            return "no function of the script is running"
        reason = _isolation.why_not() or _shared(models)
        if reason:
            return reason

        def search() -> dict[str, Any] | None:
            from luff.torch.replay import _retrace

            return _retrace.search(frames, root, backward, names)

        return _forked(search, {frame.f_code.co_filename for frame in frames})

    @staticmethod
    def ask(
        question: Callable[[], dict[str, Any] | None], largest: int, models: Iterable[Any] = ()
    ) -> Replay | str:
        """Forks a child that answers another question; where that is not allowed, why.

        Parameters
        ----------
        question
            Called in the child. What it returns is the answer, as JSON of at most 4 KiB.
        largest
            Bytes of memory in use: a larger process is not forked.
        models
            Those whose parameters and buffers it uses.
        """
        return _isolation.why_not(largest) or _shared(models) or _forked(question, ())

    def answer(self, until: float = 0.0) -> dict[str, Any] | None:
        """What the child has found ({}: nothing), or "no_replay", why it could not look; None while it is at work.

        `until`: the run ends; waits while the child works, at most until then (monotonic).
        """
        pipe = self._pipe
        if pipe.number < 0:
            return {}
        if not pipe.is_ours():
            pipe.close()
            return {"no_replay": "the script has closed the pipe that the answer comes through"}
        if until > 0:
            wait_for(pipe.number, self._pid, until)
        try:
            data = os.read(pipe.number, _ANSWER)
        except BlockingIOError:
            if until <= 0 and time.monotonic() < self._until:
                return None
            data = b""
        pipe.close()
        try:
            found = (
                json.loads(data)
                if data
                else {"no_replay": "the child that evaluates the step again gave no answer"}
            )
        except ValueError:
            return {}
        return _quoted(found) if isinstance(found, dict) else {}

    def collected(self) -> bool:
        """True once the child has ended and is collected. Does not wait."""
        try:
            return os.waitpid(self._pid, os.WNOHANG)[0] != 0
        except ChildProcessError:
            return True  # the script itself has collected it


def wait_for(pipe: int, pid: int, until: float) -> None:
    """Returns when the pipe has something, when the child has stopped working, or at that time (monotonic)."""
    idle, used = 0, ("", 0)
    answer = select.poll()  # `select.select` knows no number above 1023
    answer.register(pipe, select.POLLIN)
    while idle < _IDLE:
        left = until - time.monotonic()
        if left <= 0 or answer.poll(min(left, _LOOK_S) * 1000):
            return
        now = _life(pid)
        idle = idle + 1 if now == used and now[0] not in "RD" else 0
        used = now


def _life(pid: int) -> tuple[str, int]:
    """State of a process, and the ticks it has used; a process that is gone sleeps."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return fields[0], int(fields[11]) + int(fields[12])
    except (OSError, ValueError, IndexError):
        return "S", 0


def _quoted(found: dict[str, Any]) -> dict[str, Any]:
    """With the text of its line: the child can open no file."""
    if "line" in found and "code" not in found:
        text = linecache.getline(str(found.get("file")), int(found["line"])).strip()
        if text:
            found["code"] = text[:160]
    return found


def _forked(question: Callable[[], dict[str, Any] | None], files: Iterable[str]) -> Replay:
    receiving, sending = map(Descriptor, os.pipe())
    parent = os.getpid()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: there are other threads
            pid = os.fork()
    except OSError:
        receiving.close()
        sending.close()
        raise
    if pid == 0:
        _child(sending, parent, files, question)
    sending.close()
    if receiving.is_ours():  # handlers of `os.register_at_fork` have run since
        os.set_blocking(receiving.number, False)
    return Replay(pid, receiving)


def _child(
    sending: Descriptor, parent: int, files: Iterable[str], question: Callable[[], dict[str, Any] | None]
) -> None:
    """Everything that happens in the child; never returns."""
    if not sending.is_ours():
        os._exit(0)
    pipe = sending.number
    try:
        from luff.torch.replay import _retrace  # noqa: F401 (nothing can be imported later)

        _isolation.cut_off(pipe, parent, files)
        _switch_off()
        os.write(pipe, json.dumps(question() or {}).encode()[:_ANSWER])
    except BaseException as error:
        if os.environ.get("LUFF_REPLAY") == "debug":
            os.write(pipe, json.dumps({"error": repr(error)[:1000]}).encode())
        else:
            os.write(pipe, b'{"no_replay": "evaluated again in a child, the step failed"}')
    finally:
        os._exit(0)


_FORBIDDEN = (
    "socket.",
    "subprocess.",
    "shutil.",
    "os.",
    "ctypes.dlopen",
    "signal.",
    "urllib.",
    "ftplib.",
    "smtplib.",
    "sqlite3.",
    "tempfile.",
    "pty.",
    "syslog.",
)
_HARMLESS = ("os.listdir", "os.scandir", "os.walk", "os.fwalk")


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        mode, flags = arguments[1], arguments[2]
        writing = isinstance(mode, str) and any(letter in mode for letter in "wax+")
        if writing or (isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
            raise PermissionError("a replay writes no file")
    elif event.startswith(_FORBIDDEN) and event not in _HARMLESS:
        raise PermissionError(f"a replay may not do {event}")


def _switch_off() -> None:
    """Turns off hooks, the compiler, threads, and what Python would report to the system."""
    for action in _first:
        action()
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.config.disable = True
    torch.set_num_threads(1)
    sys.addaudithook(_audit)
