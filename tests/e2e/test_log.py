"""`luff run --log`: the streams of a job in the run, shown by following, whatever becomes of who follows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import luff as package
import pytest

from tests.serve.conftest import Server, executable

LIMIT_S = 60
SCRIPT = """
import sys
print("one")
print("two", file=sys.stderr)
print(sys.stdout.isatty(), input())
sys.exit(3)
"""


def environment(home: Path) -> dict[str, str]:
    return os.environ | {
        "LUFF_HOME": str(home),
        "LUFF_PYTHON": sys.executable,
        "LUFF_BOOTSTRAP": str(Path(package.__file__).parent / "_bootstrap"),
    }


def start(folder: Path, script: str, *options: str, **more: Any) -> subprocess.Popen[str]:
    (folder / "train.py").write_text(script)
    return subprocess.Popen(
        [executable(), "run", "--log", *options, "--run", str(folder / "job"), "--rules", "none", "--",
         sys.executable, str(folder / "train.py")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(folder),
        **more,
    )  # fmt: skip


def log(folder: Path, *options: str) -> list[dict[str, Any]]:
    text = subprocess.run(
        [executable(), "log", str(folder / "job"), "--json", *options], capture_output=True, text=True, check=True,
        env=environment(folder),
    ).stdout  # fmt: skip
    return [json.loads(line) for line in text.splitlines()]


def until(what: str, ask: Callable[[], Any]) -> Any:
    end = time.monotonic() + LIMIT_S
    while not (found := ask()):
        assert time.monotonic() < end, what
        time.sleep(0.05)
    return found


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_both_streams_are_shown_and_kept(tmp_path: Path) -> None:
    job = start(tmp_path, SCRIPT)
    out, err = job.communicate("hello\n", timeout=LIMIT_S)
    assert job.returncode == 3
    assert out == "one\nFalse hello\n"
    assert err.startswith("two\n")  # luff's own lines come after it
    folder = tmp_path / "job" / "log"
    assert (folder / "stdout").read_text() == out
    assert (folder / "stderr").read_text() == "two\n"
    assert folder.stat().st_mode & 0o777 == 0o700 and (folder / "stdout").stat().st_mode & 0o777 == 0o600
    lines = log(tmp_path)
    assert sorted((line["stream"], line["text"]) for line in lines) == [
        ("err", "two"), ("out", "False hello"), ("out", "one")
    ]  # fmt: skip
    now = time.time()
    assert all(now - LIMIT_S < line["unix_ns"] / 1e9 <= now for line in lines)
    assert [line["text"] for line in log(tmp_path, "--find", "^o", "--stream", "out")] == ["one"]


def test_lines_arrive_while_the_job_runs(tmp_path: Path) -> None:
    job = start(tmp_path, SCRIPT)
    assert job.stdout and job.stdin
    assert job.stdout.readline() == "one\n"
    assert job.poll() is None
    job.communicate("x\n", timeout=LIMIT_S)


@pytest.mark.parametrize("victim", ["supervisor", "keeper"])
def test_who_follows_may_die(tmp_path: Path, victim: str) -> None:
    script = """
import sys, os
print(os.getpid())
while not os.path.exists(sys.argv[0] + ".go"):
    pass
for i in range(20000):
    print(i)
print("the end", file=sys.stderr)
open(sys.argv[0] + ".done", "w").close()
"""
    job = start(tmp_path, script)
    assert job.stdout
    pid = int(job.stdout.readline())
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    keeper = next(
        int(child) for child in children if b"--keep" in Path(f"/proc/{child}/cmdline").read_bytes()
    )
    os.kill(job.pid if victim == "supervisor" else keeper, signal.SIGKILL)
    (tmp_path / "train.py.go").touch()
    until("the job did not end", (tmp_path / "train.py.done").exists)
    until("the job's process is left", lambda: gone(pid))
    out = job.communicate(timeout=LIMIT_S)[0]
    expected = "".join(f"{i}\n" for i in range(20000))
    assert (tmp_path / "job" / "log" / "stdout").read_text() == f"{pid}\n{expected}"
    assert (tmp_path / "job" / "log" / "stderr").read_text() == "the end\n"
    if victim == "supervisor":
        assert out == expected  # the keeper has shown the rest
        until("the keeper is left", lambda: gone(keeper))


def test_a_reader_that_leaves_does_not_reach_the_job(tmp_path: Path) -> None:
    job = start(tmp_path, "for i in range(100000): print(i)")
    assert job.stdout and job.stderr and job.stdin
    job.stdout.close()
    job.stderr.read()
    job.stdin.close()
    job.stderr.close()
    assert job.wait(timeout=LIMIT_S) == 0
    assert (tmp_path / "job" / "log" / "stdout").read_text().endswith("\n99999\n")


def test_the_log_is_bounded_and_says_what_is_gone(tmp_path: Path) -> None:
    script = """
import time
line = "x" * 99
for part in range(30):
    for i in range(1000):
        print(line)
    time.sleep(0.15)
print("last")
"""
    job = start(tmp_path, script, "--log-bytes", "1MB")
    out = job.communicate("", timeout=LIMIT_S)[0]
    assert out.endswith("last\n")
    file = tmp_path / "job" / "log" / "stdout"
    assert file.stat().st_size == 30 * 1000 * 100 + 5  # offsets stay
    first = int((tmp_path / "job" / "log" / "dropped").read_text().split()[0])
    assert 3_000_005 - first < 1.5e6
    assert file.stat().st_blocks * 512 < 1.6e6
    lines = log(tmp_path)
    assert lines[0]["offset"] >= first and lines[0]["text"] == "x" * 99
    assert lines[-1]["text"] == "last"


def test_the_server_shows_it(tmp_path: Path) -> None:
    script = """
import sys
import luff.numpy
hook = luff.numpy.attach({})
with hook.step() as step:
    step.loss(1.0)
hook.close()
print("<script>alert(1)</script>\\x1b[31mred", file=sys.stderr)
print("é" * 3000)
"""
    job = start(tmp_path, script)
    job.communicate("", timeout=LIMIT_S)
    server = Server(tmp_path, tmp_path / "job")
    try:
        run = server.get("/api/v1/runs")["runs"][0]["id"]
        answer = server.get(f"/api/v1/runs/{run}/log")
        texts = {line["stream"]: line["text"] for line in answer["lines"]}
        assert texts["err"] == "<script>alert(1)</script>red"
        assert texts["out"].startswith("éé") and len(texts["out"].encode()) <= 4096
        assert answer["next"] == answer["size"] and answer["dropped"] == [0, 0]
        assert (
            server.get(f"/api/v1/runs/{run}/log?offset={answer['next'][0]},{answer['next'][1]}")["lines"]
            == []
        )
        for bad in ("offset=1", "offset=-1,0", "offset=1,2&before=1,2", "bytes=x"):
            assert server.ask("GET", f"/api/v1/runs/{run}/log?{bad}").status == 400
    finally:
        server.end()


def test_a_run_without_a_log_says_how_to_record_one(tmp_path: Path) -> None:
    import luff.numpy

    luff.numpy.attach({}, run=tmp_path / "job").close()
    done = subprocess.run(
        [executable(), "log", str(tmp_path / "job")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "luff run --log" in done.stderr
