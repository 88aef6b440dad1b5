"""Starts a verb: ``python -I _start.py VERB ARGUMENTS``, as the luff command does.

Isolated, the interpreter imports nothing from the working directory, ``PYTHONPATH`` or the user's own site, where a
stranger may have put files. The package that contains this file comes before all others of that name.
"""

from __future__ import annotations

import os
import runpy
import sys


def _find_package() -> None:
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if root in sys.path:
        return
    installed = [n for n, place in enumerate(sys.path) if place.endswith(("site-packages", "dist-packages"))]
    sys.path.insert(installed[0] if installed else len(sys.path), root)


if __name__ == "__main__":
    _find_package()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # any name can be printed
    verb = sys.argv.pop(1)
    runpy.run_module(f"luff._verbs.{verb}", run_name="__main__", alter_sys=True)
