"""`luff run --log`: the streams of a job in the run, shown by following, whatever becomes of who follows."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
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


def keeper_of(supervisor: int) -> int:
    for child in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split():
        with contextlib.suppress(OSError):  # it has ended
            if b"--keep" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    raise AssertionError("nobody keeps the log")


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
    keeper = keeper_of(job.pid)
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


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)], ids=str)
def test_streams_that_are_closed_stay_out_of_the_log(tmp_path: Path, closed: tuple[int, ...]) -> None:
    (tmp_path / "train.py").write_text('import sys; print("out"); print("err", file=sys.stderr)')

    def close() -> None:
        for fd in closed:
            os.close(fd)

    done = subprocess.run(
        [executable(), "run", "--log", "--run", str(tmp_path / "job"), "--rules", "none", "--", sys.executable,
         str(tmp_path / "train.py")],
        preexec_fn=close, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0
    assert (tmp_path / "job" / "log" / "stdout").read_text() == "out\n"
    assert (tmp_path / "job" / "log" / "stderr").read_text() == "err\n"
    assert done.stdout == ("" if 1 in closed else "out\n")
    assert done.stderr.startswith("" if 2 in closed else "err\n")


def test_what_a_left_process_prints_is_not_cut_off(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    # Between a look at the size of a file and the cut there is a moment; here it lasts long enough to be met.
    (tmp_path / "slow.c").write_text("""
#include <sys/syscall.h>
#include <unistd.h>
int ftruncate(int fd, off_t size) { usleep(500000); return (int)syscall(SYS_ftruncate, fd, size); }
int ftruncate64(int fd, off_t size) { return ftruncate(fd, size); }
""")
    slow = tmp_path / "slow.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(slow), str(tmp_path / "slow.c")], check=True, timeout=LIMIT_S
    )
    script = """
import os, sys, time
print("begin")
if os.fork() == 0:
    os.setsid()
    for i in range(300):
        print(i)
        time.sleep(0.01)
    open(sys.argv[0] + ".done", "w").close()
    os._exit(0)
"""
    (tmp_path / "train.py").write_text(script)
    subprocess.run(
        [executable(), "run", "--log", "--run", str(tmp_path / "job"), "--rules", "none", "--", sys.executable,
         str(tmp_path / "train.py")],
        capture_output=True, timeout=LIMIT_S, check=True, env=environment(tmp_path) | {"LD_PRELOAD": str(slow)},
    )  # fmt: skip
    until("the process that is left did not end", (tmp_path / "train.py.done").exists)
    expected = "begin\n" + "".join(f"{i}\n" for i in range(300))
    assert (tmp_path / "job" / "log" / "stdout").read_text() == expected


def test_following_shows_a_last_line_without_an_end(tmp_path: Path) -> None:
    script = """
import luff.numpy
hook = luff.numpy.attach({})
with hook.step() as step:
    step.loss(1.0)
print("first")
print(input(), end="", flush=True)
hook.close()
"""
    job = start(tmp_path, script)
    assert job.stdout and job.stdin
    assert job.stdout.readline() == "first\n"
    follows = subprocess.Popen(
        [executable(), "log", str(tmp_path / "job"), "--follow"], stdout=subprocess.PIPE, text=True,
        env=environment(tmp_path),
    )  # fmt: skip
    assert follows.stdout and follows.stdout.readline() == "first\n"
    job.communicate("last", timeout=LIMIT_S)
    assert follows.communicate(timeout=LIMIT_S)[0] == "last\n"
    assert [line["text"] for line in log(tmp_path, "--follow", "--stream", "out")] == ["first", "last"]


def test_following_survives_a_log_that_is_cut(tmp_path: Path) -> None:
    script = """
import luff.numpy
hook = luff.numpy.attach({})
with hook.step() as step:
    step.loss(1.0)
print("first")
print(input())
hook.close()
"""
    job = start(tmp_path, script)
    assert job.stdout and job.stdin
    assert job.stdout.readline() == "first\n"
    follows = subprocess.Popen(
        [executable(), "log", str(tmp_path / "job"), "--follow"], stdout=subprocess.PIPE, text=True,
        env=environment(tmp_path),
    )  # fmt: skip
    assert follows.stdout and follows.stdout.readline() == "first\n"
    os.truncate(tmp_path / "job" / "log" / "stdout", 0)
    time.sleep(0.5)  # it looks four times a second
    job.communicate("second\n", timeout=LIMIT_S)
    assert follows.communicate(timeout=LIMIT_S)[0] == "second\n"
    assert job.returncode == 0
    assert (tmp_path / "job" / "log" / "stdout").read_text() == "second\n"


def test_who_shows_the_log_is_missed(tmp_path: Path) -> None:
    job = start(tmp_path, SCRIPT)
    assert job.stdout and job.stdout.readline() == "one\n"
    keeper = keeper_of(job.pid)
    os.kill(keeper, signal.SIGKILL)
    until("the keeper is left", lambda: gone(keeper))
    _, err = job.communicate("x\n", timeout=LIMIT_S)
    assert job.returncode == 3
    assert "is not shown any more" in err and str(tmp_path / "job" / "log") in err
    assert (tmp_path / "job" / "log" / "stdout").read_text() == "one\nFalse x\n"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MiB in memory."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )  # fmt: skip
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def test_a_disk_that_fills_up_does_not_reach_what_prints(tmp_path: Path, small_disk: Path) -> None:
    (tmp_path / "train.py").write_text("""
import time
line = "x" * 99
for part in range(200):
    for i in range(1000):
        print(line)
    time.sleep(0.02)
print("last")
""")
    done = subprocess.run(
        [executable(), "run", "--log", "--run", str(small_disk / "job"), "--rules", "none", "--", sys.executable,
         str(tmp_path / "train.py")],
        capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.endswith("last\n") and len(done.stdout) == 200 * 1000 * 100 + 5
    file = small_disk / "job" / "log" / "stdout"
    assert file.stat().st_size == len(done.stdout)
    kept = file.read_bytes()[int((small_disk / "job" / "log" / "dropped").read_text().split()[0]) :]
    assert len(kept) > 1 << 20 and b"\0" not in kept


def test_a_disk_that_is_full_keeps_no_log(tmp_path: Path, small_disk: Path) -> None:
    (tmp_path / "train.py").write_text("print('out')")
    (small_disk / "others").write_bytes(b"x" * (10 << 20))
    done = subprocess.run(
        [executable(), "run", "--log", "--run", str(small_disk / "job"), "--rules", "none", "--", sys.executable,
         str(tmp_path / "train.py")],
        capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment(tmp_path),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "out\n")
    assert "the disk has no room for what the job prints" in done.stderr


def under_log(folder: Path, command: str, *options: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
    """Runs a shell command under `luff run --log` through another shell, which `{run}` stands for."""
    ours = (
        f"{executable()} run --log {' '.join(options)} --run {folder}/job --rules none -- sh -c '{command}'"
    )
    outer = more.pop("outer", "{run}").replace("{run}", ours)
    return subprocess.run(
        ["bash", "-c", outer],
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
        env=environment(folder),
        **more,
    )


def test_what_is_printed_at_once_is_shown(tmp_path: Path) -> None:
    assert under_log(tmp_path, "echo first; echo warning >&2").stdout == b"first\n"


def test_a_slow_reader_gets_all(tmp_path: Path) -> None:
    lines = b"".join(b"%015d\n" % i for i in range(400_000))
    done = under_log(
        tmp_path, "seq -f %015.0f 0 399999", "--log-bytes 1MB", outer="{run} | (sleep 1; cat)"
    )  # fmt: skip
    assert done.stdout == lines
    dropped = int((tmp_path / "job" / "log" / "dropped").read_text().split()[0])
    assert dropped > 3 << 20, "what was shown is given up at the end"


def test_a_job_that_opens_its_streams_anew_is_shown(tmp_path: Path) -> None:
    command = "seq 1000; sleep 1; echo WARN > /dev/stdout; echo A; sleep 1; seq 2000 2005; echo last"
    assert under_log(tmp_path, command).stdout.split()[1000:] == (
        [b"WARN", b"A"] + [b"%d" % i for i in range(2000, 2006)] + [b"last"]
    )
    assert [line["text"] for line in log(tmp_path)][-1] == "last"


def test_streams_that_are_shown_in_one_place_keep_their_order(tmp_path: Path) -> None:
    command = "for i in 1 2 3 4 5 6 7 8; do echo o$i; sleep 0.05; echo e$i >&2; sleep 0.05; done"
    shown = under_log(tmp_path, "sleep 1; " + command, outer="{run} 2>&1").stdout.split()
    expected = [f"{stream}{i}".encode() for i in range(1, 9) for stream in "oe"]
    assert shown[: len(expected)] == expected


def test_a_bound_of_files_keeps_no_log(tmp_path: Path) -> None:
    done = under_log(tmp_path, "seq 400000", outer="ulimit -f 1024; {run}")
    assert (done.returncode, len(done.stdout.split())) == (0, 400_000)
    assert b"ulimit -f" in done.stderr


def test_a_keeper_that_was_stopped_goes_on_at_the_end(tmp_path: Path) -> None:
    job = start(tmp_path, SCRIPT)
    assert job.stdout and job.stdout.readline() == "one\n"
    keeper = keeper_of(job.pid)
    os.kill(keeper, signal.SIGSTOP)
    out, _ = job.communicate("x\n", timeout=LIMIT_S)
    assert (job.returncode, out) == (3, "False x\n")


@pytest.mark.parametrize("log", ["--log", ""])
@pytest.mark.parametrize("where", ["2>/dev/full", "2>&1 >/dev/null | true; exit ${PIPESTATUS[0]}", "2>&-"])
def test_messages_that_nobody_takes_cost_nothing(tmp_path: Path, log: str, where: str) -> None:
    ours = f"{executable()} run {log} --run {tmp_path}/job --rules none -- sh -c 'sleep 0.3; exit 7'"
    done = subprocess.run(
        ["bash", "-c", f"{ours} {where}"], timeout=LIMIT_S, check=False, env=environment(tmp_path)
    )
    assert done.returncode == 7
