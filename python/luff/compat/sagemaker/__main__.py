"""``python -m luff.compat.sagemaker SCRIPT ...`` and ``-m MODULE ...``: runs it with this package as sagemaker, and
`luff.compat.smdebug` as smdebug.
"""

from __future__ import annotations

import sys

from luff.compat import sagemaker, smdebug
from luff.compat._script import run_script


def _prepare() -> None:
    sagemaker.install()
    smdebug.install()


if __name__ == "__main__":
    sys.exit(run_script("luff.compat.sagemaker", _prepare))
