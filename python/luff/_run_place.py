"""Where a run goes that no `luff run` has chosen."""

from __future__ import annotations

import os
import re
import sys
import time
import warnings

__all__ = ["new_run", "warn", "warn_of_another_place"]

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def new_run() -> str:
    """Returns a path for a run that nobody named: ``$LUFF_HOME/runs/DATE-TIME-SCRIPT``, by default in ``~/.luff``."""
    home = os.environ.get("LUFF_HOME") or os.path.join(os.path.expanduser("~"), ".luff")
    script = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
    name = "notebook" if "ipykernel" in script or "colab" in script else script.removesuffix(".py")
    name = re.sub(r"[^A-Za-z0-9_.]", "-", name)[:40].strip("-.") or "python"
    return os.path.join(os.path.abspath(home), "runs", f"{time.strftime('%Y%m%d-%H%M%S')}-{name}")


def warn_of_another_place(wanted: str, taken: str) -> None:
    """Warns that a run is not where it was to be."""
    why = "holds a run already" if os.path.isdir(wanted) else "is no directory"
    warn(f"{wanted} {why}; this one is recorded into {taken}")


def warn(text: str) -> None:
    """Warns at the user's line. Never raises, even if warnings are errors."""
    level = 1
    frame = sys._getframe(0)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level += 1
        frame = frame.f_back  # type: ignore[assignment]
    try:
        warnings.warn(text, UserWarning, stacklevel=level)
    except UserWarning:
        pass
