"""A file that a verb makes from what another verb of `luff` prints as JSON."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from luff._rules_beside import luff_command
from luff.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

OK, WRONG_USAGE = 0, 2


@contextmanager
def whole_file(path: str) -> Iterator[BinaryIO]:
    """Opens a file that is there whole or not at all, also if its writing fails or is interrupted."""
    temporary = f"{path}.{secrets.token_hex(4)}~"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        with os.fdopen(fd, "wb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise


def make_file(path: str, what: str, command: Sequence[str], write: Callable[[bytes], str]) -> int:
    """Runs a verb, has `write` make the file of what it printed, and says what became of it: the exit code.

    `what` is the file's kind for an error ("page"); `write` returns what is said behind the path.
    """
    try:
        done = subprocess.run([luff_command(), *command], stdout=subprocess.PIPE, check=False)
        if done.returncode != OK:  # it has said why
            return done.returncode if done.returncode > 0 else 1
        told = write(done.stdout)
    except NotFoundError as error:
        print(f"luff: {command[0]}: {error}", file=sys.stderr)
        return WRONG_USAGE
    except OSError as error:
        print(
            f"luff: {command[0]}: the {what} cannot be written ({error.strerror}); give a file in a directory that "
            f"exists: {path}",
            file=sys.stderr,
        )
        return WRONG_USAGE
    print(f"luff: {path}{told}", file=sys.stderr)
    return OK
