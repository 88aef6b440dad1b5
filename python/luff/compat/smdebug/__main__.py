"""``python -m luff.compat.smdebug SCRIPT ...`` and ``-m MODULE ...``: runs it with this package as smdebug."""

from __future__ import annotations

import os
import runpy
import sys

import luff
from luff.compat.smdebug import install

_USAGE = (
    "usage: python -m luff.compat.smdebug SCRIPT [ARGUMENT ...]\n"
    "       python -m luff.compat.smdebug -m MODULE [ARGUMENT ...]"
)


def _tell_children() -> None:
    """Makes processes that the script starts find the name as well: see luff/_bootstrap."""
    os.environ["LUFF_COMPAT"] = "smdebug"
    folder = os.path.join(os.path.dirname(os.path.abspath(luff.__file__)), "_bootstrap")
    others = [
        place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place and place != folder
    ]
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, *others])


def main() -> int:
    """Runs what the command line names."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stderr.write(_USAGE + "\n")
        return 0 if arguments else 2
    install()
    _tell_children()
    if arguments[0] == "-m":
        if len(arguments) < 2:
            sys.stderr.write(_USAGE + "\n")
            return 2
        sys.argv = arguments[1:]
        if "" not in sys.path and os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
