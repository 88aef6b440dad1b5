"""Sweeps run as scripts of their own, with the luff command that is installed or named by LUFF_EXECUTABLE."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap


def run_script(folder, name, text, *words, timeout=300, **environment):
    """Runs a script in a folder, with no setting of Luff but those given; returns the finished process.

    Ray's workers are not nice, as they are by default: beside another stage's tests they would hardly run at all.
    """
    (folder / name).write_text(textwrap.dedent(text))
    kept = {k: v for k, v in os.environ.items() if not k.startswith("LUFF_") or k == "LUFF_EXECUTABLE"}
    kept["RAY_worker_niceness"] = "0"
    return subprocess.run(
        [sys.executable, name, *map(str, words)], cwd=folder, env=kept | {k: str(v) for k, v in environment.items()},
        capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip


def luff_command():
    return os.environ.get("LUFF_EXECUTABLE") or shutil.which("luff") or "luff"
