"""``python -m luff.compat.smdebug SCRIPT ...`` and ``-m MODULE ...``: runs it with this package as smdebug."""

from __future__ import annotations

import os
import sys

import luff
from luff.compat._script import run_script
from luff.compat.smdebug import install


def _prepare() -> None:
    """Gives the name, also in processes that the script starts: see luff/_bootstrap."""
    install()
    os.environ["LUFF_COMPAT"] = "smdebug"
    folder = os.path.join(os.path.dirname(os.path.abspath(luff.__file__)), "_bootstrap")
    others = [
        place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place and place != folder
    ]
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, *others])


if __name__ == "__main__":
    sys.exit(run_script("luff.compat.smdebug", _prepare))
