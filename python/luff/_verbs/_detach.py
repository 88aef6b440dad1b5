"""Starts a verb in a process that is nobody's child: ``python -I _detach.py LOG VERB ARGUMENTS``.

The starter waits for a bare interpreter only, and has no child left that its own ``os.wait`` could meet. What the verb
says goes into a file. The working directory stays: the environment may name files of credentials relative to it.
"""

from __future__ import annotations

import os
import runpy
import sys


def _go_on_alone(log: str) -> None:
    if os.fork() != 0:
        os._exit(0)
    os.setsid()
    os.nice(10)
    nothing = os.open(os.devnull, os.O_RDWR)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    try:
        said = os.open(log, flags, 0o600)
    except OSError:  # a disk that is full: the upload is worth more than what it says
        said = nothing
    for fd, to in ((0, nothing), (1, nothing), (2, said)):
        os.dup2(to, fd)


if __name__ == "__main__":
    _go_on_alone(sys.argv.pop(1))
    start = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_start.py")
    sys.argv[0] = start
    runpy.run_path(start, run_name="__main__")
