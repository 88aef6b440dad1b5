"""Programs that read other formats run in environments of their own; tests are skipped, with the reason, without
them.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command, luff, run, train

__all__ = ["Command", "luff", "run", "train"]

ROOT = Path(__file__).parents[2]
Side = Callable[..., Any]


@pytest.fixture(scope="session")
def smdebug() -> Side:
    """Returns a function that runs smdebug_side.py where smdebug is installed; with `read`, it returns what that
    printed.
    """
    python = Path(os.environ.get("LUFF_SMDEBUG_PYTHON", ROOT / ".venvs" / "peers" / "bin" / "python"))
    if not python.exists():
        pytest.skip("smdebug is not installed: ./dev setup --with peers")

    def call(what: str, path: Path) -> Any:
        done = subprocess.run(
            [python, Path(__file__).with_name("smdebug_side.py"), what, path],
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout.strip().splitlines()[-1]) if what == "read" else None

    return call
