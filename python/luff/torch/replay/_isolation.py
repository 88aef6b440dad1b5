"""A forked child without side effects: whether this process may have one, and how the child is isolated.

The child gives up every descriptor and replaces every shared mapping by a private copy. If a shared one is left, it
exits without doing anything. docs/adr/0010 explains why that is enough.
"""

from __future__ import annotations

import ctypes
import linecache
import os
import resource
import signal
import stat
import struct
import sys
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from luff._memory import address_space, free_memory, resident_memory

__all__ = ["SECONDS", "Shared", "cut_off", "shared_mappings", "why_not"]

SECONDS = 10.0
LARGEST = 8 << 30  # bytes of memory in use; a larger process is not forked
_SHARED = 256 << 20  # most bytes of shared memory that a child copies
_ROOM = 512 << 20  # bytes that a child may allocate
_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_NO_MORE_RIGHTS = 38  # PR_SET_NO_NEW_PRIVS
_FILTER_CALLS = 22, 2  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050001  # answers of a filter: continue; EPERM
_PRIVATE_FIXED_ANONYMOUS = 0x02 | 0x10 | 0x20
#: Devices without state: a process may have them open, and a child may close them.
_HARMLESS_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts/", "console", "fuse")
#: Calls that reach semaphores, queues and memory of System V: by a number, which is neither descriptor nor mapping.
_SYSTEM_V = {
    "x86_64": (29, 30, 31, 64, 65, 66, 68, 69, 70, 71, 220),
    "aarch64": tuple(range(186, 197)),
}
#: Files in which an idle thread waits for work.
_WAITING = (
    "threading.py",
    "queue.py",
    "selectors.py",
    "socketserver.py",
    os.path.join("concurrent", "futures", "thread.py"),
    os.path.join("multiprocessing", "connection.py"),
)


class Shared(NamedTuple):
    """Memory through which other processes see what this one writes."""

    start: int
    size: int
    name: str


# In the training process ----------------------------------------------------------------------------------------------


def why_not(largest: int = LARGEST) -> str:
    """Returns why this process may not be forked; "" if it may.

    Parameters
    ----------
    largest
        Bytes of memory in use; a larger process is not forked.
    """
    if os.environ.get("LUFF_REPLAY", "").lower() in ("0", "off", "no", "false"):
        return "LUFF_REPLAY is off"
    if not sys.platform.startswith("linux") or not hasattr(os, "fork"):
        return "this system has no fork that can be confined"
    try:
        return _of_frameworks() or _of_process() or _of_memory(largest)
    except (OSError, ValueError) as error:
        return f"what the process shares with others cannot be read ({type(error).__name__})"


def _of_frameworks() -> str:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return "an accelerator is in use"
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        return "several ranks train together"
    if torch.utils.data.get_worker_info() is not None:
        return "this is a worker of a loader"
    return ""


def _of_process() -> str:
    for mapping in shared_mappings():
        if mapping.name.startswith("/dev/") and not mapping.name.startswith(("/dev/shm/", "/dev/zero")):
            return f"memory of a device is mapped ({mapping.name})"
    device = _open_device()
    if device:
        return f"a device is open ({device})"
    if sum(mapping.size for mapping in shared_mappings()) > _SHARED:
        return f"more than {_SHARED >> 20} MiB of memory are shared with other processes"
    if not _is_default(signal.getsignal(signal.SIGCHLD)):
        return "the script handles the end of its children itself (SIGCHLD)"
    thread = _busy_thread()
    return f"another thread is at work ({thread})" if thread else ""


def shared_mappings() -> list[Shared]:
    """Returns the shared writable mappings of this process."""
    found = []
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            parts = line.split(maxsplit=5)
            if parts[1][1] == "w" and parts[1][3] == "s":
                start, end = (int(number, 16) for number in parts[0].split("-"))
                found.append(Shared(start, end - start, parts[5].strip() if len(parts) > 5 else ""))
    return found


def _open_device() -> str:
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISCHR(os.fstat(int(name)).st_mode):
                continue
            path = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if not path.removeprefix("/dev/").startswith(_HARMLESS_DEVICES):
            return path
    return ""


def _is_default(handler: Any) -> bool:
    """Whether the handler is not set, or is the one by which loaders detect the death of their workers."""
    if not callable(handler) or isinstance(handler, signal.Handlers):
        return handler is not None
    if not str(getattr(handler, "__module__", "")).startswith("torch.utils.data"):
        return False
    held = (cell.cell_contents for cell in getattr(handler, "__closure__", None) or ())
    return not any(callable(value) and not isinstance(value, signal.Handlers) for value in held)


def _busy_thread() -> str:
    import threading

    here = threading.get_ident()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        if ident != here and not frame.f_code.co_filename.endswith(_WAITING):
            return names.get(ident, "unknown")
    return ""


def _of_memory(largest: int) -> str:
    """Checks that there is room for copies of what both processes write, and for what the child allocates."""
    used = resident_memory()
    if used > largest:
        return f"the process uses more than {largest >> 30} GiB of memory"
    return "memory is short" if free_memory() < used + _ROOM else ""


# In the child ---------------------------------------------------------------------------------------------------------


def cut_off(pipe: int, parent: int, files: Iterable[str]) -> None:
    """Isolates the child: it keeps only private memory, one thread, and the pipe.

    Parameters
    ----------
    parent
        The process that has forked; the child dies with it.
    files
        Sources that the child may have to quote: it cannot open files later.

    Raises
    ------
    OSError
        If something shared is left: the child must exit.
    """
    _of_signals()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_DIES_WITH_PARENT, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)
    os.setsid()
    os.nice(10)
    _prefer_to_kill()
    for mapping in shared_mappings():
        _make_private(libc, mapping)
    if shared_mappings():
        raise OSError("memory is shared still")
    _keep_only(pipe)
    _refuse_system_v(libc)
    for name in files:
        linecache.getlines(name)
    _limits()


def _of_signals() -> None:
    for number in signal.valid_signals():
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):  # signals that cannot be caught
            continue
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    signal.setitimer(signal.ITIMER_REAL, SECONDS)  # its signal ends the process


def _prefer_to_kill() -> None:
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")
    except OSError:
        return


def _make_private(libc: Any, mapping: Shared) -> None:
    """Replaces a shared mapping by a private copy at the same address."""
    content = ctypes.string_at(mapping.start, mapping.size)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]
    where = libc.mmap(mapping.start, mapping.size, 0x3, _PRIVATE_FIXED_ANONYMOUS, -1, 0)
    if where != mapping.start:
        raise OSError(ctypes.get_errno(), "mmap")
    ctypes.memmove(mapping.start, content, mapping.size)


def _keep_only(pipe: int) -> None:
    """Replaces all descriptors but the pipe by the null device. Nothing in the script knows the pipe's number.

    They are not closed, because some libraries end the process when one of their descriptors is gone.
    """
    null = os.open(os.devnull, os.O_RDWR)
    taken = {0, 1, 2, *map(int, os.listdir("/proc/self/fd"))}
    for descriptor in taken - {null, pipe}:
        os.dup2(null, descriptor)


def _refuse_system_v(libc: Any) -> None:
    """Makes the kernel refuse calls that reach objects of System V; has no effect if it cannot filter calls."""
    calls = _SYSTEM_V.get(os.uname().machine, ())
    rules = [
        (0x20, 0, 0, 0)
    ]  # loads the number of the call; each rule below jumps to the last one if it matches
    rules += [(0x15, len(calls) - place, 0, call) for place, call in enumerate(calls)]
    rules += [(0x06, 0, 0, _ALLOW), (0x06, 0, 0, _REFUSE)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(rules), ctypes.addressof(code)))
    if libc.prctl(_NO_MORE_RIGHTS, ctypes.c_ulong(1), 0, 0, 0) == 0:
        option, mode = _FILTER_CALLS
        libc.prctl(option, ctypes.c_ulong(mode), program, 0, 0)


def _limits() -> None:
    room = address_space() + min(max(free_memory() // 4, _ROOM), 4 << 30)
    for which, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CPU, int(SECONDS) + 2),
        (resource.RLIMIT_AS, room),
    ):
        hard = resource.getrlimit(which)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(which, (most, most))
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))  # no more descriptors can be opened
