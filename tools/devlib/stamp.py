"""Detects that nothing has changed, by hashes of inputs, and runs one ./dev at a time where that matters."""

import contextlib
import fcntl
import hashlib
from pathlib import Path

from devlib.term import ROOT, say


def digest(paths, *extra):
    """Returns a hash of the names and contents of files; folders are walked. `extra` are further strings."""
    h = hashlib.sha256()
    for text in extra:
        h.update(str(text).encode() + b"\0")
    for file in sorted(_files(paths)):
        h.update(str(file.relative_to(ROOT)).encode() + b"\0")
        try:
            h.update(hashlib.sha256(file.read_bytes()).digest())
        except FileNotFoundError:  # removed by another process since it was listed
            continue
    return h.hexdigest()


def _files(paths):
    for path in paths:
        path = ROOT / path
        if path.is_dir():
            yield from (f for f in path.rglob("*") if f.is_file() and "__pycache__" not in f.parts)
        elif path.exists():
            yield path


def fresh(stamp, value):
    """Returns whether the stamp file contains `value`."""
    try:
        return Path(stamp).read_text() == value
    except OSError:
        return False


def write(stamp, value):
    Path(stamp).parent.mkdir(parents=True, exist_ok=True)
    Path(stamp).write_text(value)


@contextlib.contextmanager
def lock(name):
    """Allows one ./dev at a time in `name`; waits and says so."""
    path = ROOT / "build" / "locks" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say(f"  waiting for another ./dev that uses {name}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
