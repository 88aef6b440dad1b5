"""Runs commands: echoes the real command, shows progress, keeps a log and names it on failure."""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "build" / "logs"
VENV = ROOT / ".venv"


class Failed(Exception):
    """A step failed; the message is for people and says what to do or where the log is."""


# .held: output of this thread, printed later at once; .cpu_s: CPU time of its commands
_of_thread = threading.local()
_printing = threading.Lock()
_running = set()  # processes that an interrupt ends


def say(text=""):
    held = getattr(_of_thread, "held", None)
    if held is not None:
        held.append(text)
        return
    with _printing:
        print(text, flush=True)


@contextlib.contextmanager
def held():
    """Holds this thread's output back until the end, so that the output of parallel threads stays readable."""
    _of_thread.held = []
    try:
        yield
    finally:
        said, _of_thread.held = _of_thread.held, None
        say("\n".join(said))


@contextlib.contextmanager
def cpu_seconds():
    """Yields a list that gets one number at the end: CPU seconds of the commands that this thread ran meanwhile."""
    before = getattr(_of_thread, "cpu_s", 0.0)
    used = []
    try:
        yield used
    finally:
        used.append(getattr(_of_thread, "cpu_s", 0.0) - before)


def end_all():
    """Ends every running command, of all threads."""
    for process in list(_running):
        _end_group(process)


def shown(command):
    """Returns the command as one would type it at the repository's root."""
    return " ".join(
        shlex.quote(os.path.relpath(c, ROOT) if str(c).startswith(f"{ROOT}/") else str(c)) for c in command
    )


def free_gb():
    """Returns the free space on the disk of the checkout, in GB."""
    return shutil.disk_usage(ROOT).free / 1e9


def disk_is_full():
    return f"the disk of {ROOT} is full ({free_gb():.1f} GB free); what ./dev makes itself stands in build/ and .venvs/"


def seconds(duration):
    return f"{duration:.1f} s" if duration < 60 else f"{int(duration) // 60} min {int(duration) % 60:02d} s"


class _Ticker:
    """Shows elapsed time and the last line of output while a command runs, on a terminal only."""

    def __init__(self, label):
        self.label, self.line, self.start = label, "", time.monotonic()
        self._stop = threading.Event()
        shown = sys.stdout.isatty() and getattr(_of_thread, "held", None) is None
        self._thread = threading.Thread(target=self._tick, daemon=True) if shown else None
        if self._thread:
            self._thread.start()

    def _tick(self):
        width = os.get_terminal_size().columns if sys.stdout.isatty() else 100
        while not self._stop.wait(0.3):
            text = f"  {self.label}  {seconds(time.monotonic() - self.start)}  {self.line}"
            sys.stdout.write("\r\033[K" + text[: width - 1])
            sys.stdout.flush()

    def stop(self):
        self._stop.set()
        if self._thread:
            self._thread.join()
            sys.stdout.write("\r\033[K")


def run(label, command, *, log, env=None, cwd=ROOT, check=True, timeout_s=None, echo=True):
    """Runs `command` with its output in build/logs/`log`.log; returns (exit code, output). Raises Failed unless that
    is 0.
    """
    path = LOGS / f"{log}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    if echo:
        say(f"$ {shown(command)}")
    ticker = _Ticker(label)
    lines = []
    start = time.monotonic()
    try:
        with path.open("w", errors="replace") as out:
            out.write(f"$ {shown(command)}\n")
            process = subprocess.Popen(
                [str(c) for c in command],
                cwd=cwd,
                env={**os.environ, **(env or {})},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            _running.add(process)
            timer = threading.Timer(timeout_s, _end_group, (process,)) if timeout_s else None
            if timer:
                timer.start()
            try:
                for line in process.stdout:
                    out.write(line)
                    out.flush()
                    lines.append(line)
                    if line.strip():
                        ticker.line = line.strip()
                code = _wait(process)
            except BaseException:
                _end_group(process)
                raise
            finally:
                _running.discard(process)
                process.stdout.close()
                if timer:
                    timer.cancel()
    except FileNotFoundError as error:
        ticker.stop()
        raise Failed(f"{label}: {error.filename} not found; `./dev setup` installs what is needed") from None
    finally:
        ticker.stop()
    took = time.monotonic() - start
    if code != 0 and timeout_s and took >= timeout_s:
        lines.append(f"ended after the limit of {seconds(timeout_s)}\n")
    if code == 0:
        say(f"  {label}: {seconds(took)}")
    elif check:
        say("".join(lines[-40:]).rstrip())
        raise Failed(
            f"{label} failed with exit code {code} after {seconds(took)}; log: {path.relative_to(ROOT)}"
        )
    return code, "".join(lines)


def _wait(process):
    """Returns the exit code; adds up the CPU time of the process and of all children that it has waited for."""
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except ChildProcessError:  # timed out: the code that ended it has waited for it
        return process.wait()
    process.returncode = os.waitstatus_to_exitcode(status)
    _of_thread.cpu_s = getattr(_of_thread, "cpu_s", 0.0) + usage.ru_utime + usage.ru_stime
    return process.returncode


def _end_group(process):
    """Ends a command and everything that it started: asks first, then kills."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=5)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def passthrough(command, *, env=None, cwd=ROOT):
    """Runs `command` on this terminal; returns its exit code."""
    say(f"$ {shown(command)}")
    return subprocess.call([str(c) for c in command], cwd=cwd, env={**os.environ, **(env or {})})


def output_of(command, *, cwd=ROOT):
    """Returns the standard output of a quick command, or None if it fails or does not exist."""
    try:
        done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None
