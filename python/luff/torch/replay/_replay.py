"""Evaluates a step's statements again in a forked child, to find the operation and line that made NaN.

The training process forks once and continues; the child's answer comes through a pipe that is read at step ends. The
child shares only the pipe (`_isolation`), may not write, connect or start anything, runs one thread at the lowest
priority, and is killed by the kernel after ten seconds. docs/adr/0010 explains what is safe and why.
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
from luff.torch.replay._draws import Draws

__all__ = ["Replay", "first_in_child", "frames_of_user", "of_user", "wait_for"]

_ANSWER = 4096  # at most PIPE_BUF, so that it arrives whole or not at all
_FRAMES = 8
_LOOK_S = 0.02
_IDLE = 5  # checks in a row at which it slept and had used no time: it waits for something in another process
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_LUFF = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_first: list[Callable[[], object]] = []


def first_in_child(action: Callable[[], object]) -> None:
    """Calls `action` in every child before it evaluates anything."""
    _first.append(action)


def of_user(filename: str) -> bool:
    """Returns whether a file belongs to neither torch nor Luff."""
    return not filename.startswith((_TORCH, _LUFF, "<")) and "torch/nn/" not in filename


def frames_of_user() -> list[Any]:
    """Returns the user's running frames, innermost first."""
    frames: list[Any] = []
    frame = sys._getframe(1)
    while frame is not None and len(frames) < _FRAMES:
        if of_user(frame.f_code.co_filename):
            frames.append(frame)
        frame = frame.f_back  # type: ignore[assignment]
    return frames


def _shared(models: Iterable[Any]) -> str:
    """Returns why the models' memory cannot be copied (other processes may change it); "" if it can."""
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
        frames: list[Any], root: Any, backward: bool, names: Any, models: Iterable[Any], draws: Draws
    ) -> Replay | str:
        """Forks a child that evaluates the step again; returns the reason if that is not allowed.

        Parameters
        ----------
        frames
            The user's frames, innermost first.
        root
            The non-finite loss, or None.
        backward
            Whether the loss is finite and its gradients are not.
        names
            Names of modules.
        models
            Models whose parameters and buffers the step uses.
        draws
            States of the random numbers that the step has drawn from.
        """
        if not frames:
            return "no function of the script is running"
        reason = _isolation.why_not() or _shared(models)
        if reason:
            return reason

        def search() -> dict[str, Any] | None:
            from luff.torch.replay import _retrace

            return _retrace.search(frames, root, backward, names, draws)

        return _forked(search, {frame.f_code.co_filename for frame in frames})

    @staticmethod
    def ask(
        question: Callable[[], dict[str, Any] | None], largest: int, models: Iterable[Any] = ()
    ) -> Replay | str:
        """Forks a child that answers another question; returns the reason if that is not allowed.

        Parameters
        ----------
        question
            Called in the child. Returns the answer, as JSON of at most 4 KiB.
        largest
            Bytes of memory in use; a larger process is not forked.
        models
            Models whose parameters and buffers it uses.
        """
        return _isolation.why_not(largest) or _shared(models) or _forked(question, ())

    def answer(self, until: float = 0.0) -> dict[str, Any] | None:
        """Returns the child's answer ({}: nothing found), or "no_replay" with a reason; None while it is working.

        `until` is for the end of the run: waits while the child works, at most until then (monotonic time).
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
        """Returns True once the child has ended and was reaped. Does not wait."""
        try:
            return os.waitpid(self._pid, os.WNOHANG)[0] != 0
        except ChildProcessError:
            return True  # the script itself has reaped it


def wait_for(pipe: int, pid: int, until: float) -> None:
    """Returns when the pipe has data, when the child has stopped working, or at the given time (monotonic)."""
    idle, used = 0, ("", 0)
    answer = select.poll()  # `select.select` accepts no descriptor above 1023
    answer.register(pipe, select.POLLIN)
    while idle < _IDLE:
        left = until - time.monotonic()
        if left <= 0 or answer.poll(min(left, _LOOK_S) * 1000):
            return
        now = _life(pid)
        idle = idle + 1 if now == used and now[0] not in "RD" else 0
        used = now


def _life(pid: int) -> tuple[str, int]:
    """Returns the state of a process, and the ticks it has used; a process that no
    longer exists counts as sleeping.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return fields[0], int(fields[11]) + int(fields[12])
    except (OSError, ValueError, IndexError):
        return "S", 0


def _quoted(found: dict[str, Any]) -> dict[str, Any]:
    """Adds the text of the line: the child cannot open files."""
    if "line" in found and "code" not in found:
        text = linecache.getline(str(found.get("file")), int(found["line"])).strip()
        if text:
            found["code"] = text[:160]
    return found


def _forked(question: Callable[[], dict[str, Any] | None], files: Iterable[str]) -> Replay:
    from luff.torch.replay import _retrace  # noqa: F401 (the child imports nothing: its time is not limited yet)

    receiving, sending = map(Descriptor, os.pipe())
    parent = os.getpid()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns about other threads
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
    """Runs everything that happens in the child; never returns."""
    if not sending.is_ours():
        os._exit(0)
    pipe = sending.number
    try:
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
    """Turns off hooks, the compiler, threads, and everything that Python would report to the system."""
    for action in _first:
        action()
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.config.disable = True
    torch.set_num_threads(1)
    sys.addaudithook(_audit)
