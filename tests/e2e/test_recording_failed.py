"""An error inside Luff ends the recording: the training goes on, and the verdict says what is not there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Luff

_SCRIPT = Path(__file__).parent / "scripts" / "no_memory.py"

# The writer thread is the one that makes itself less urgent.
_NO_MEMORY = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
static __thread int is_writer;
void* __libc_malloc(size_t bytes);
int setpriority(__priority_which_t which, id_t who, int priority) {
  if (which == PRIO_PROCESS && who == (id_t)syscall(SYS_gettid)) is_writer = 1;
  return (int)syscall(SYS_setpriority, which, who, priority);
}
void* malloc(size_t bytes) {
  const char* none_left = is_writer ? getenv("NONE_LEFT") : NULL;
  if (none_left != NULL && access(none_left, F_OK) == 0) {
    errno = ENOMEM;
    return NULL;
  }
  return __libc_malloc(bytes);
}
"""


def test_the_verdict_says_that_the_recording_has_failed(luff: Luff, tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    (tmp_path / "none.c").write_text(_NO_MEMORY)
    library, flag, run = tmp_path / "none.so", tmp_path / "none left", tmp_path / "run"
    subprocess.run([compiler, "-shared", "-fPIC", str(tmp_path / "none.c"), "-o", str(library)], check=True)
    code, out, err = luff(
        "run", "--run", str(run), "--", "env", f"LD_PRELOAD={library}", f"NONE_LEFT={flag}",
        sys.executable, str(_SCRIPT), str(flag),
    )  # fmt: skip
    assert (code, out) == (0, "done\n"), err
    print(err)
    lost = re.search(
        r"luff: steps 50 to (\d+) are not in the run, and no rule saw them: recording failed\n", err
    )
    assert lost is not None, err
    assert int(lost[1]) >= 100  # to the last one of the training
    verdict = err.splitlines()[-1]
    assert verdict.startswith("luff: done: 50 steps, "), err
    shown = json.loads(luff("show", str(run), "--json")[1])
    (gap,) = [gap for gap in shown["gaps"] if gap["reason"] == "recording failed"]
    assert (gap["first_step"], gap["last_step"]) == (50, int(lost[1]))
    assert luff("verify", str(run))[0] == 0
