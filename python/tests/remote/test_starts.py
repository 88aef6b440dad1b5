"""What the pages on runs in buckets, on many runs and on sweeps give to copy and paste works as it stands there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

DOCS = Path(__file__).parents[3] / "docs"
LIMIT_S = 600
# Commands that fail are named, but for those of conditions.
BEGIN = """
trap 'echo "FAILED with $?: $BASH_COMMAND"' ERR
"""


def blocks(page: str) -> list[str]:
    """The indented blocks of a page, one after the other."""
    found: list[str] = []
    inside, blank = False, True
    for line in page.splitlines():
        if line.startswith("    ") and (inside or blank):
            if not inside:
                found.append("")
            inside = True
            found[-1] += line[4:] + "\n"
        elif not line and inside:
            found[-1] += "\n"
        else:
            inside = False
        blank = not line
    return found


class Start(NamedTuple):
    page: str
    begins: tuple[str, ...]  # of its blocks, the first lines
    says: tuple[str, ...]  # expressions, in this order
    failing: tuple[str, ...] = ()  # commands that are to fail, and with which code


BEGINS = 'cd "$(mktemp -d)"'
STARTS = [
    Start(
        "buckets.md",
        (BEGINS,),
        (
            r"luff: sync: this run is file://.*/bucket/[0-9a-f]{32} \(not encrypted\)",
            r"@1 .* 200 .* ok",
            r"outcome +completed",
            r"luff: ok: 200 steps",
        ),
    ),
    Start(
        "watch.md",
        (BEGINS, "mkdir bucket"),
        (
            r"luff: in bad:",
            r"leaving; the next one goes on",
            r"@1 +bad .* WeightUpdateRatio",
            r"@2 +good .* ok",
            r"luff: in [0-9a-f]{32}:",
            r"STOP WeightUpdateRatio .*, since step",
        ),
    ),
    Start(
        "sweeps.md",
        (BEGINS,),
        (
            r"rate 0\.01: loss",
            r"rate 0\.1: loss",
            r"rate 10\.0: [A-Z]\w+: .*; run: ",
            r"first: 3 trials: 1 bad, 2 not",
        ),
    ),
    Start(
        "runs.md",
        (BEGINS,),
        (*4 * (r"luff: ok: 50 steps|@[12] .* 50 .* ok",), r"@2 .* ok", r"parameter  rate  0\.5  0\.1"),
    ),
    Start(
        "security.md",
        (BEGINS, "luff keys new reader.key"),
        (
            r"luff: request: done: the job leaves",
            r"outcome +stopped: asked by .*: the loss is flat",
            r"\(encrypted\)",
            r"no key here opens it",
        ),
        ("76: wait $!", '2: luff show "file://$PWD/secrets/@1"'),
    ),
]


@pytest.mark.parametrize("start", STARTS, ids=lambda start: start.page)
def test_it_works_as_it_stands_there(start, luff, tmp_path, monkeypatch):
    if start.page == "security.md":
        pytest.importorskip("cryptography")
    pytest.importorskip("torch")
    there = blocks((DOCS / start.page).read_text())
    chosen = [block for block in there if block.startswith(start.begins)]
    assert len(chosen) == len(start.begins)
    home, places = tmp_path / "home", tmp_path / "places"
    home.mkdir()
    places.mkdir()
    for name in [name for name in os.environ if name.startswith("LUFF_")]:
        if name not in ("LUFF_CACHE", "LUFF_FETCH_IDLE_S", "LUFF_PYTHON", "LUFF_EXECUTABLE"):
            monkeypatch.delenv(name)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "luff").symlink_to(luff.executable)
    path = ":".join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    env = os.environ | {"HOME": str(home), "TMPDIR": str(places), "PATH": path}
    script = tmp_path / "start.sh"
    script.write_text(BEGIN + "\n".join(chosen))
    with (tmp_path / "said").open("w+") as said:
        shell = subprocess.Popen(
            ["bash", script], cwd=home, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=env,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = shell.wait(LIMIT_S)
        finally:
            try:
                os.killpg(shell.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            shell.wait()
        text = Path(said.name).read_text()
    assert code == 0, text
    assert tuple(re.findall(r"^FAILED with (.*)$", text, re.MULTILINE)) == start.failing, text
    at = 0
    for expression in start.says:
        match = re.compile(expression).search(text, at)
        assert match is not None, f"{expression}:\n{text}"
        at = match.end()
