"""A step's statements evaluated again in a forked child, to see which operation and line made NaN.

The training process forks once and goes on; what the child finds comes through a pipe that is asked at step ends.
The child has no descriptor but the pipe, may not write, connect or start anything, runs one thread at the lowest
priority, and is ended by the kernel after `_SECONDS`. What is safe and why: docs/adr/0010.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["Replay", "frames_of_user"]

_SECONDS = 10.0
_LARGEST = 8 << 30  # bytes of memory in use: a larger process is not forked
_ANSWER = 4096  # at most PIPE_BUF: comes whole or not at all
_FRAMES = 8
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_LUFF = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def of_user(filename: str) -> bool:
    """True for files that are neither torch's nor ours."""
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


def _memory_in_use() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def allowed() -> bool:
    """Whether this process may be forked for a replay."""
    if os.environ.get("LUFF_REPLAY", "").lower() in ("0", "off", "no", "false"):
        return False
    if not sys.platform.startswith("linux") or not hasattr(os, "fork"):
        return False
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        return False
    if torch.utils.data.get_worker_info() is not None:
        return False
    return _memory_in_use() <= _LARGEST


class Replay:
    """One child at work."""

    def __init__(self, pid: int, pipe: int) -> None:
        self._pid = pid
        self._pipe = pipe
        self._until = time.monotonic() + _SECONDS + 2

    @staticmethod
    def start(frames: list[Any], root: Any, backward: bool, names: Any) -> Replay | None:
        """Forks; None where that is not allowed.

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
        """
        if not frames or not allowed():
            return None

        def search() -> dict[str, Any] | None:
            from luff.torch import _retrace

            return _retrace.search(frames, root, backward, names)

        return _forked(search)

    @staticmethod
    def ask(question: Callable[[], dict[str, Any] | None], largest: int) -> Replay | None:
        """Forks a child that answers another question; None where that is not allowed.

        Parameters
        ----------
        question
            Called in the child. What it returns is the answer, as JSON of at most 4 KiB.
        largest
            Bytes of memory in use: a larger process is not forked.
        """
        if not allowed() or _memory_in_use() > largest:
            return None
        return _forked(question)

    def answer(self, wait_s: float = 0.0) -> dict[str, Any] | None:
        """What the child has found: {} for nothing; None while it is at work."""
        if self._pipe < 0:
            return {}
        if wait_s > 0:
            select.select([self._pipe], [], [], wait_s)
        try:
            data = os.read(self._pipe, _ANSWER)
        except BlockingIOError:
            if wait_s <= 0 and time.monotonic() < self._until:
                return None
            data = b""
        os.close(self._pipe)
        self._pipe = -1
        try:
            found = json.loads(data) if data else {}
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def collected(self) -> bool:
        """Collects the child once it has ended (by itself, or by the kernel): nothing is waited for."""
        try:
            return os.waitpid(self._pid, os.WNOHANG)[0] != 0
        except ChildProcessError:
            return True  # the script itself has collected it


def _forked(question: Callable[[], dict[str, Any] | None]) -> Replay:
    receiving, sending = os.pipe()
    if sys.version_info >= (3, 12):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
    else:
        pid = os.fork()
    if pid == 0:
        _child(sending, question)
    os.close(sending)
    os.set_blocking(receiving, False)
    return Replay(pid, receiving)


def _child(pipe: int, question: Callable[[], dict[str, Any] | None]) -> None:
    """Everything that happens in the child; never returns."""
    try:
        _confine(pipe)
        found = question()
        if found:
            os.write(pipe, json.dumps(found).encode()[:_ANSWER])
    except BaseException as error:
        if os.environ.get("LUFF_REPLAY") == "debug":
            os.write(pipe, json.dumps({"error": repr(error)[:1000]}).encode())
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


def _confine(pipe: int) -> None:
    """Leaves the child nothing but memory, one thread, and the pipe."""
    for number in signal.valid_signals():
        try:
            if signal.getsignal(number) not in (signal.SIG_DFL, None):
                signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            continue
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    signal.setitimer(signal.ITIMER_REAL, _SECONDS)  # and its signal ends the process
    os.setsid()
    os.nice(10)
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")
    except OSError:
        pass
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    limit = os.sysconf("SC_OPEN_MAX")
    os.closerange(3, pipe)
    os.closerange(pipe + 1, limit if 0 < limit <= 1 << 20 else 1 << 20)
    from luff.torch._hooks import hooks

    for hook in hooks.living:
        hook.live = False
    hooks.living = []
    hooks.default = hooks.last = None
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.config.disable = True
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    sys.addaudithook(_audit)
