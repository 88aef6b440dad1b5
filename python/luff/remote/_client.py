"""Opens the URL of a run: finds or starts the fetcher, and has it make the spool."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import socket
import stat
import subprocess
import sys
import time
from typing import Any

from luff import errors
from luff._rules_beside import luff_command
from luff.remote._errors import Absent, BucketError, Refused, Unreachable, WrongUrl, of_disk
from luff.remote._files import is_run_id, split_run
from luff.remote._recipients import KEY_FILES
from luff.remote._store import SCHEMES, check_installed, normal_url, open_store

_CONNECT_S = 10.0
_START_S = 20.0
_ENDED_S = (0.1, 0.5)  # pauses before a fetcher that has just ended is started anew
_ANSWER_S = 600.0  # the metadata of a large run takes its time
# What decides which data the fetcher may see, and where. Readers share a fetcher and its copies only if all are equal.
_OF_STORES = (
    "AWS_", "AZURE_", "AZURITE_", "GOOGLE_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "SSL_CERT", KEY_FILES,
)  # fmt: skip


class _Outliving(subprocess.Popen[bytes]):
    """A process that goes on when its starter ends, which is nothing to warn of."""

    def __del__(self) -> None:
        pass


_started: list[_Outliving] = []  # by this process: waited for once they have ended


def is_url(path: object) -> bool:
    """True for the URL of a run in a bucket."""
    return isinstance(path, str) and path.split("://", 1)[0] in SCHEMES and "://" in path


def cache_root() -> str:
    """The folder of all copies: $LUFF_CACHE, else luff in the user's cache."""
    given = os.environ.get("LUFF_CACHE")
    if given:
        return os.path.abspath(given)
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):  # such a one is to be ignored
        cache = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "luff")


def _environment() -> dict[str, str]:
    """The fetcher's: it has another working directory."""
    found = dict(os.environ)
    if files := found.get(KEY_FILES):
        found[KEY_FILES] = ":".join(os.path.abspath(path) for path in files.split(":") if path)
    return found


class _Ended(Unreachable):
    """The fetcher ended while it was asked."""


def fetcher_root() -> str:
    """The folder of the fetcher that this environment shares, made if it is absent. Raises Refused."""
    text = "\n".join(
        f"{k}={v}" for k, v in sorted(_environment().items()) if k.upper().startswith(_OF_STORES)
    )
    root = os.path.join(cache_root(), "spool-" + hashlib.sha256(text.encode()).hexdigest()[:16])
    try:
        os.makedirs(root, mode=0o700, exist_ok=True)
        info = os.lstat(root)
    except OSError as error:
        raise Refused(
            f"the copies of runs have no place ({error.strerror}); set LUFF_CACHE: {root}"
        ) from None
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o077:
        raise Refused(f"the folder of copies must be yours alone; remove it, or set LUFF_CACHE: {root}")
    return root


def connect(root: str) -> socket.socket | None:
    """A connection with the fetcher of this folder; None if there is none."""
    folder = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.settimeout(_CONNECT_S)  # of one that was stopped, the queue may be full
        try:
            client.connect(f"/proc/self/fd/{folder}/socket")  # of any length: a socket's own path is short
        except OSError:
            client.close()
            return None
    finally:
        os.close(folder)
    return client


def _connect_or_start(root: str) -> socket.socket:
    with open(os.path.join(root, "start"), "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several readers one starts it
        found = connect(root)
        if found is not None:
            return found
        _started[:] = [child for child in _started if child.poll() is None]
        package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        with open(os.path.join(root, "log"), "wb") as log:
            child = _Outliving(
                [sys.executable, "-I", os.path.join(package, "_verbs", "_start.py"), "fetch", root],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=_environment(),
                start_new_session=True,
            )
            _started.append(child)
        end = time.monotonic() + _START_S
        while time.monotonic() < end:
            found = connect(root)
            if found is not None:
                return found
            if child.poll() is not None:
                break
            time.sleep(0.02)
    raise Unreachable(f"the process that fetches runs did not start; it said why in {root}/log")


def ask(connection: socket.socket, request: dict[str, Any]) -> dict[str, Any]:
    """Sends a request, and returns the answer. Raises the error that it tells."""
    connection.settimeout(_ANSWER_S)
    try:
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as answers:
            line = answers.readline(1 << 20)
        answer = json.loads(line)
    except TimeoutError:
        raise Unreachable("the process that fetches runs does not answer; try again") from None
    except (OSError, ValueError):
        raise _Ended("the process that fetches runs has ended; try again") from None
    if not isinstance(answer, dict) or answer.get("ok") is not True:
        text = str(answer.get("error", "")) if isinstance(answer, dict) else ""
        raise Refused(text) if answer.get("final") else Unreachable(text)
    return answer


def whole_url(url: str) -> str:
    """The URL of a run whose id may be abbreviated, or counted from the newest one (``@1``). WrongUrl names the runs
    that there are.
    """
    try:
        split_run(url)
    except WrongUrl:
        pass
    else:
        return url
    base, _, begin = url.rpartition("/")
    if "://" in base and re.fullmatch(r"@[0-9]{1,8}", begin):
        return _counted_url(base, int(begin[1:]))
    begins = re.fullmatch(r"[0-9a-f]{1,31}", begin) is not None and not base.endswith("/")
    others: list[str] = []  # runs, if it is a bucket that `begin` follows
    if begins:
        others = _runs_above(base)
        found = [name for name in others if name.startswith(begin)]
        if len(found) == 1:
            return f"{base}/{found[0]}"
        if found:
            raise WrongUrl(f"several runs begin with {begin}: {', '.join(found[:3])}: {base}")
    known = _runs_of(url)
    if others and not known:
        raise WrongUrl(f"no run begins with {begin}; there are {_some(others)}: {base}")
    if not known:
        raise WrongUrl(
            f"found {url}, expected BASE/ID, the URL of a bucket and the id of a run; it has no runs"
        )
    raise WrongUrl(
        f"found {url}, expected BASE/ID, the URL of a bucket and the id of one of its {len(known)} runs: {_some(known)}"
    )


def _some(runs: list[str]) -> str:
    return ", ".join(runs[:3]) + (", …" if len(runs) > 3 else "")


def _runs_of(base: str) -> list[str]:
    return [name for name in open_store(base).children("runs/") if is_run_id(name)]


def _runs_above(base: str) -> list[str]:
    """As `_runs_of`, of a prefix that we may have no right to list: the URL was of the bucket below it, then."""
    try:
        return _runs_of(base)
    except (Refused, Absent):
        return []


def _counted_url(base: str, number: int) -> str:
    """The run that `luff runs BASE` numbers so."""
    command = [luff_command(), "runs", base, "--json", "--limit", str(max(number, 1))]
    asked = subprocess.run(command, capture_output=True, check=False, env=_environment())
    if asked.returncode != 0:
        said = asked.stderr.decode(errors="replace").strip().removeprefix("luff: ")
        raise Unreachable(said or f"the runs cannot be listed: {base}")
    runs = [json.loads(line)["run_id"] for line in asked.stdout.splitlines()]
    if not runs:
        raise WrongUrl(f"there is no run with a card: {base}")
    if not 1 <= number <= len(runs):
        raise WrongUrl(f"there is no run @{number}, the oldest one is @{len(runs)}: {base}")
    return f"{base}/{runs[number - 1]}"


def open_run(url: str, whole: bool = True) -> str:
    """Makes a local copy of a run, which the fetcher keeps up to date while somebody reads it. Returns its directory.

    `whole`: with all rows; otherwise those of sealed segments are fetched when they are read. Raises a BucketError.
    """
    url = normal_url(url)
    check_installed(url)
    url = whole_url(url)
    root = fetcher_root()
    request = {"op": "open", "url": url, "rows": "all" if whole else "asked"}
    pauses = list(_ENDED_S)
    while True:
        try:
            connection = _connect_or_start(root)
        except OSError as error:
            raise of_disk(error, root) from None
        with connection:
            try:
                return str(ask(connection, request)["path"])
            except _Ended:  # as it does when nobody has been there for a while
                if not pauses:
                    raise
        time.sleep(pauses.pop(0))


def spool_of(url: str) -> str:
    """As `open_run`, without rows that nobody reads, and with the errors of `luff.errors`."""
    try:
        return open_run(url, whole=False)
    except WrongUrl as error:
        raise errors.InvalidArgumentError(str(error)) from None
    except Unreachable as error:
        raise errors.UnavailableError(str(error)) from None
    except BucketError as error:
        raise errors.NotFoundError(str(error)) from None
