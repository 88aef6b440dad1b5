"""``python -m luff.compat.NAME SCRIPT ...`` and ``-m MODULE ...``: runs a script after a preparation."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable

__all__ = ["run_script"]


def run_script(module: str, prepare: Callable[[], None]) -> int:
    """Runs what the command line names; `module` is the one that was given to Python with -m. Returns the exit code."""
    usage = f"usage: python -m {module} SCRIPT [ARGUMENT ...]\n       python -m {module} -m MODULE [ARGUMENT ...]\n"
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stderr.write(usage)
        return 0 if arguments else 2
    if arguments[0] == "-m" and len(arguments) < 2:
        sys.stderr.write(usage)
        return 2
    prepare()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        if "" not in sys.path and os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")
    return 0
