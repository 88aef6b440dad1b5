"""The part `harm` of `./dev gpu`: scripts under `luff run` end as they end without it, whatever happens on the device.

Scripts get the device as their only argument; with `cpu` those that need a GPU are left out.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

Row = dict[str, Any]
WITHIN_S = 80  # twice, bare and watched, in the time of the part
AT_ONCE = 3

SETUP = """
import json, os, sys, torch
device = sys.argv[1]
torch.manual_seed(0)
net = torch.nn.Linear(64, 8).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def step(factor=1.0):
    optimizer.zero_grad()
    x, y = torch.randn(32, 64, device=device), torch.randint(0, 8, (32,), device=device)
    loss = torch.nn.functional.cross_entropy(net(x), y)
    (loss * factor).backward()
    optimizer.step()
    return loss
"""

NO_SYNCHRONISATION = """
step()
torch.cuda.synchronize()
torch.cuda.set_sync_debug_mode("error")   # any synchronising operation of torch raises
for _ in range(20):
    step()
torch.cuda.set_sync_debug_mode("default")
print("ok")
"""

#: Prints how many kernels a trace of 20 steps has, and how often the host waited for the device in it, by kind.
TRACE = """
from torch.profiler import ProfilerActivity, _ExperimentalConfig, profile
for _ in range(5):
    step()
torch.cuda.synchronize()
config = _ExperimentalConfig(enable_cuda_sync_events=True)
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], experimental_config=config) as trace:
    for _ in range(20):
        step()
    torch.cuda.synchronize()
trace.export_chrome_trace("trace.json")
events = json.load(open("trace.json"))["traceEvents"]
kernels = sum(event.get("cat") == "kernel" for event in events)
waits = {}
for event in events:
    name = str(event.get("name"))
    waited = "Synchronize" in name or (event.get("cat") == "cuda_sync" and "Wait Event" not in name)
    if waited:
        waits[name] = waits.get(name, 0) + 1
print(json.dumps([kernels, waits]))
"""

NAN = """
forks = []
os.register_at_fork(after_in_parent=lambda: forks.append(1))
for i in range(20):
    step(float("nan") if i >= 10 else 1.0)
print(len(forks))
"""

WORKERS = """
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(256, 64), torch.randint(0, 8, (256,)))
for epoch in range(2):
    for x, y in DataLoader(data, batch_size=32, num_workers=2, pin_memory=device == "cuda"):
        optimizer.zero_grad()
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
print("ok")
"""

#: Ends with values on their way.
LEAVES = """
for _ in range(20):
    step()
if device == "cuda":
    torch.cuda._sleep(1_000_000_000)   # about half a second
step()
sys.exit(3)
"""

ASSERTION = """
for _ in range(10):
    step()
table = torch.zeros(4, device=device)
try:
    table[torch.tensor([7], device=device)]   # on a device an assertion, which breaks its context
    torch.cuda.synchronize()
except RuntimeError as error:
    print("broken", flush=True)
for _ in range(3):
    try:
        step()
    except RuntimeError as error:
        pass
sys.exit(5)
"""

NO_MEMORY = """
for _ in range(5):
    step()
held = []
try:
    while True:
        held.append(torch.empty(64 << 20, dtype=torch.uint8, device=device))
except RuntimeError:   # out of memory, or a library that found none
    pass
blocks = len(held)
for _ in range(3):
    try:
        step()
    except RuntimeError:
        pass
held.clear()
torch.cuda.empty_cache()
for _ in range(5):
    step()
print(blocks)
"""

BLOCKED = """
for _ in range(5):
    step()
torch.cuda.synchronize()
print(os.getpid(), flush=True)
for _ in range(20):
    torch.cuda._sleep(2_000_000_000)   # about a second each
torch.cuda.synchronize()
"""


def _row(check: str, good: bool | None, detail: str = "", **more: Any) -> Row:
    status = "skipped" if good is None else "passed" if good else "failed"
    return {"check": check, "status": status, "detail": detail, **more}


def luff() -> str:
    """The command: that of the environment, of this Python, or of the path."""
    beside = shutil.which("luff", path=str(Path(sys.executable).parent))
    return os.environ.get("LUFF_EXECUTABLE") or beside or shutil.which("luff") or "luff"


def finished(
    command: list[str], folder: Path, environment: Mapping[str, str], within_s: float
) -> subprocess.CompletedProcess[str]:
    """Runs a command; one that takes too long is ended, and what it started with it."""
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, errors="replace",
    )  # fmt: skip
    try:
        out, said = process.communicate(timeout=within_s)
        return subprocess.CompletedProcess(command, process.returncode, out, said)
    except subprocess.TimeoutExpired:
        pass
    end(process)
    return subprocess.CompletedProcess(command, -1, "", f"not done in {within_s:.0f} s")


def end(process: subprocess.Popen[str]) -> None:
    """Ends a process and those that it started: the job of `luff run` is a child of it, in the same group."""
    jobs = below(process.pid)
    process.kill()
    for pid in jobs:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    process.wait()


def below(pid: int) -> list[int]:
    """Returns the processes that a process started, and theirs."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it may end meanwhile
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found + [grandchild for child in found for grandchild in below(child)]


def lives(pid: int) -> bool:
    """False for one that has ended, also before its parent has asked for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


class Scripts:
    """Scripts, bare and under `luff run`, in folders of their own."""

    def __init__(self, folder: Path, device: str) -> None:
        self._folder, self._device, self._numbers = folder, device, itertools.count()

    def command(self, script: str, watched: bool) -> tuple[list[str], Path]:
        """Returns what runs it, and where."""
        folder = self._folder / str(next(self._numbers))
        folder.mkdir(parents=True)
        (folder / "train.py").write_text(SETUP + script)
        bare = [sys.executable, "train.py", self._device]
        if not watched:
            return bare, folder
        (folder / "luff.toml").write_text(
            f"[capture]\naccelerators = {'true' if self._device == 'cuda' else 'false'}\n"
        )
        return [luff(), "run", "--config", "luff.toml", "--run", "run", "--", *bare], folder

    def run(self, script: str, watched: bool) -> tuple[subprocess.CompletedProcess[str], Path]:
        command, folder = self.command(script, watched)
        return finished(command, folder, os.environ, WITHIN_S), folder

    def both(
        self, script: str
    ) -> tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str], Path]:
        """Runs it bare, then watched; returns both, and the folder of the second."""
        bare, _ = self.run(script, watched=False)
        watched, folder = self.run(script, watched=True)
        return bare, watched, folder


def _same(bare: Any, watched: Any) -> tuple[bool, str]:
    ended = (
        bare.returncode if bare.returncode >= 0 else 128 - bare.returncode
    )  # by a signal, as shells say it
    good = (watched.returncode, watched.stdout) == (ended, bare.stdout)
    of = f"{bare.returncode} {bare.stdout[-100:]!r}, watched {watched.returncode} {watched.stdout[-100:]!r}"
    return good, "" if good else f"{of} {watched.stderr[-300:]}"


def harm(folder: Path, device: str = "cuda") -> Iterator[Row]:
    """Every script ends as without Luff."""
    scripts = Scripts(folder, device)
    several = [_workers, _leaves]
    if device == "cuda":
        several += [_forks, _synchronises, _traced, _broken]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for rows in pool.map(lambda one: _all_of(one, scripts), several):
            yield from rows
    if device == "cuda":  # alone: they fill the device, or occupy it
        yield from _no_memory(scripts)
        yield _ended_by_a_signal(scripts)


def _all_of(one: Callable[[Scripts], Iterator[Row]], scripts: Scripts) -> list[Row]:
    rows: list[Row] = []
    try:
        rows += one(scripts)
    except Exception as error:  # the others go on
        rows.append(_row(one.__name__.strip("_"), False, repr(error)[:300]))
    return rows


def _forks(scripts: Scripts) -> Iterator[Row]:
    bare, watched, _ = scripts.both(NAN)
    yield _row("nothing forks once the loss is NaN", *_same(bare, watched))


def _leaves(scripts: Scripts) -> Iterator[Row]:
    bare, watched, _ = scripts.both(LEAVES)
    yield _row("a script that ends with values on their way", *_same(bare, watched))


def _workers(scripts: Scripts) -> Iterator[Row]:
    bare, watched, folder = scripts.both(WORKERS)
    yield _row("loader workers and pinned memory", *_same(bare, watched))
    yield _recorded_of_workers(folder)


def _synchronises(scripts: Scripts) -> Iterator[Row]:
    check = "no operation of torch synchronises"
    bare, watched, _ = scripts.both(NO_SYNCHRONISATION)
    if bare.stdout.strip() != "ok":
        yield _row(check, None, f"one does without Luff: {bare.stderr[-200:]}")
    else:
        yield _row(check, watched.stdout.strip() == "ok", watched.stderr[-300:])


def _recorded_of_workers(folder: Path) -> Row:
    import luff as package

    trial = package.open_trial(folder / "run")
    weights = [
        n for n in trial.tensors() if n.endswith("weight") and not n.startswith(("gradient", "optimizer"))
    ]
    good = len(trial.steps()) == 16 and bool(weights) and all(trial.tensor(n).steps() for n in weights)
    return _row("the same, recorded", good, "" if good else f"steps {trial.steps()}, weights {weights}")


def _traced(scripts: Scripts) -> Iterator[Row]:
    check = "synchronisations that Luff adds, counted in a trace"
    bare, watched, _ = scripts.both(TRACE)
    told = [
        [line for line in one.stdout.splitlines() if line.startswith("[")][-1:] for one in (bare, watched)
    ]
    if bare.returncode != 0 or not told[0]:
        yield _row(check, None, f"there is no trace here: {bare.stderr[-200:]}")
        return
    if watched.returncode != 0 or not told[1]:
        yield _row(check, False, watched.stderr[-300:])
        return
    (kernels, before), (more_kernels, after) = json.loads(told[0][0]), json.loads(told[1][0])
    if not kernels:
        yield _row(check, None, "the trace has no kernels")
        return
    added = {name: n - before.get(name, 0) for name, n in after.items() if n > before.get(name, 0)}
    count = float(sum(added.values()))
    detail = f"{added} beside {before}; {kernels} kernels, {more_kernels} watched"
    yield _row(check, not added, detail, value=count, gate=0)


def _broken(scripts: Scripts) -> Iterator[Row]:
    """The script's own kernel fails an assertion."""
    import luff as package

    bare, watched, folder = scripts.both(ASSERTION)
    yield _row("an assertion of the script's own kernel ends it as without Luff", *_same(bare, watched))
    try:
        trial = package.open_trial(folder / "run")
        told = [e for e in trial.events() if e["kind"] == "device_error"]
        yield _row("the same is an event of the run", bool(told), str(told[:2]))
    except Exception as error:
        yield _row("the same is an event of the run", False, repr(error))


def _no_memory(scripts: Scripts) -> Iterator[Row]:
    """How many blocks of 64 MiB find room: fewer only by what Luff may hold."""
    check = "the script runs out of memory where it does without Luff, MiB earlier"
    bare, watched, _ = scripts.both(NO_MEMORY)
    if not bare.stdout.strip().isdigit():
        yield _row(check, None, f"it does not end well without Luff: {bare.stderr[-200:]}")
        return
    if not watched.stdout.strip().isdigit():
        yield _row(check, False, watched.stderr[-300:])
        return
    fewer = int(bare.stdout) - int(watched.stdout)
    most = (512 >> 6) + 2  # the budget of staging memory, tables, and blocks that are cut differently
    yield _row(
        "the script runs out of memory where it does without Luff, MiB earlier", fewer <= most,
        f"{bare.stdout.strip()} blocks of 64 MiB, {watched.stdout.strip()} watched",
        value=64.0 * fewer, gate=64 * most,
    )  # fmt: skip


def _ended_by_a_signal(scripts: Scripts) -> Row:
    check = "SIGTERM ends a script that waits for the device, s later"
    bare, watched = (seconds_to_end(*scripts.command(BLOCKED, luff_too)) for luff_too in (False, True))
    if bare is None:
        return _row(check, None, "the script does not run without Luff, either")
    if watched is None:
        return _row(check, False, "the script does not run")
    return _row(check, watched - bare < 5, value=watched - bare, gate=5)


def seconds_to_end(command: list[str], folder: Path) -> float | None:
    """Returns how long a script lives after SIGTERM, which it gets once it has printed its number; None: it did not."""
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        if not select.select([process.stdout], [], [], WITHIN_S)[0]:
            return None
        said = process.stdout.readline()
        if not said.strip().isdigit():
            return None
        began = time.monotonic()
        os.kill(int(said), signal.SIGTERM)
        while lives(int(said)) and time.monotonic() - began < 60:
            time.sleep(0.01)
        took = time.monotonic() - began
        with contextlib.suppress(subprocess.TimeoutExpired):  # luff has its last words
            process.wait(timeout=60)
        return took
    finally:
        end(process)
