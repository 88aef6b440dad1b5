"""A writer thread that gets no memory: the training continues, and the verdict says what is missing from the run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import luff as library
import pytest

from .conftest import Luff

_SCRIPT = Path(__file__).parent / "scripts" / "starved.py"

# Uses no thread-local variable: the loader would allocate it with malloc.
_LIBRARY = r"""
#define _GNU_SOURCE
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>
extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);
static volatile long starving, count;
void starve(long thread) { starving = thread; }
long refused(void) { return count; }
static int no(void) {
  if (starving == 0 || syscall(SYS_gettid) != starving) return 0;
  ++count;
  return 1;
}
void* malloc(size_t n) { return no() ? NULL : __libc_malloc(n); }
void* calloc(size_t n, size_t m) { return no() ? NULL : __libc_calloc(n, m); }
void* realloc(void* p, size_t n) { return no() ? NULL : __libc_realloc(p, n); }
void* memalign(size_t a, size_t n) { return no() ? NULL : __libc_memalign(a, n); }
void* aligned_alloc(size_t a, size_t n) { return no() ? NULL : __libc_memalign(a, n); }
int posix_memalign(void** p, size_t a, size_t n) {
  *p = no() ? NULL : __libc_memalign(a, n);
  return *p == NULL ? 12 : 0;
}
"""


@pytest.fixture
def starving(tmp_path: Path) -> Path:
    """A library whose malloc refuses the requests of one thread."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, made = tmp_path / "starving.c", tmp_path / "starving.so"
    source.write_text(_LIBRARY)
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", made, source], check=True)
    return made


def test_training_goes_on_and_the_verdict_tells_what_is_missing(luff: Luff, starving: Path) -> None:
    run, config = luff.tmp / "run", luff.tmp / "luff.toml"
    config.write_text("[capture]\nsave_all = true\nsave_interval = 1\nmax_overhead = 0\n")
    script = [sys.executable, str(_SCRIPT), str(starving)]
    code, out, err = luff(
        "run", "--run", str(run), "--config", str(config), "--", *script, LD_PRELOAD=str(starving)
    )
    assert (code, out) == (0, "refused True places {}\n"), err
    lost = re.search(
        r"luff: steps (\d+) to 299 are not in the run, and no rule saw them: recording failed", err
    )
    assert lost, err
    first = int(lost[1])
    assert 100 < first <= 201
    assert f"luff: done: {first} steps" in err, err

    shown = json.loads(luff("show", str(run), "--json")[1])
    assert shown["outcome"] == "completed"
    assert library.open_trial(run).tensor("loss").steps() == list(range(first))


def test_a_thread_that_first_records_without_memory_does_not_end_the_training(
    luff: Luff, starving: Path
) -> None:
    run, script = luff.tmp / "run", _SCRIPT.with_name("starved_thread.py")
    code, out, err = luff(
        "run", "--run", str(run), "--", sys.executable, str(script), str(starving), LD_PRELOAD=str(starving)
    )
    assert (code, out) == (0, "refused True\n"), err
    assert "luff: steps 20 to 24 are not in the run, and no rule saw them: recording failed" in err
    assert library.open_trial(run).tensor("loss").steps() == list(range(20))
