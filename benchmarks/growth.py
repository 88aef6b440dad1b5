"""Measures the growth of memory, descriptors and threads in the training, the supervisor and the rule worker.

    ./dev bench growth [steps] [tensors] [trainings] [--steps N] [--tensors N] [--trainings N] [--json FILE]

Three jobs, each a plain PyTorch script under `luff run` with default settings, and each also trained bare:

- `steps`: one small model for a million steps;
- `tensors`: a model of 50,000 parameters' tensors for a few steps;
- `trainings`: a hundred trainings in one process, a hook attached to each and never closed.

Every process is sampled while the job runs. The slope is the median of the slopes of all pairs of samples (Theil-Sen)
in the last two thirds, so that neither start-up nor a single outlier counts. The hashes of the weights must be equal
with and without Luff. Exit code 1: a limit was exceeded.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from _gates import luff_command

#: Bytes that one more step or training may cost permanently, by process. A million steps at 64 bytes are 64 MB: a
#: reader's list of steps and the smoothed curves of rules are of that order; a row kept by mistake costs thousands.
LIMITS = {
    "steps": {"training": 16.0, "supervisor": 16.0, "rules": 256.0},
    "trainings": {"training": 256 * 1024.0, "supervisor": 16 * 1024.0, "rules": 1024 * 1024.0},
}
#: Additional descriptors and threads allowed at the end. A reader of a run keeps up to 256 of its segments open.
LEFT_OVER = 8
KEPT_OPEN = {"supervisor": 256, "rules": 256}
#: `tensors`: bytes that one more parameter may cost each process, beyond the needs of the bare training. A parameter
#: has two or three recorded tensors (weight, gradient, difference). A reader of a run keeps for each of them, at any
#: number of steps, its definition and its entry in the trial (176 and 136 bytes, doubled by growing lists), three
#: copies of its name and four entries of hash tables: about 1.2 KB.
PER_TENSOR = {"training": 16 * 1024.0, "supervisor": 4 * 1024.0, "rules": 64 * 1024.0}

COMMON = """
import hashlib, os, sys, torch
torch.manual_seed(0)
torch.set_num_threads(1)
progress = os.open(os.environ["GROWTH_PROGRESS"], os.O_WRONLY | os.O_CREAT, 0o600)
def at(n):
    os.pwrite(progress, b"%d %d\\n" % (os.getpid(), n), 0)
def weights(model):
    sha = hashlib.sha256()
    for p in model.parameters():
        sha.update(p.detach().numpy().tobytes())
    return sha.hexdigest()
count = int(sys.argv[1])
"""

SCRIPTS = {
    "steps": COMMON
    + """
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(4096, 16, 4)
target = data.sum(2, keepdim=True).tanh()
for step in range(count):
    at(step) if step % 256 == 0 else None
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(data[step % 4096]), target[step % 4096])
    loss.backward()
    optimizer.step()
print(weights(model))
""",
    "tensors": COMMON
    + """
class Many(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(4)) for _ in range(count)])
    def forward(self, x):
        return torch.stack(list(self.parts)).mul(x).sum(1)
model = Many()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    at(step)
    optimizer.zero_grad()
    model(torch.randn(4)).square().mean().backward()
    optimizer.step()
print(weights(model))
""",
    "trainings": COMMON
    + """
hashes = hashlib.sha256()
for training in range(count):
    at(training)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if os.environ.get("GROWTH_RUNS"):
        import luff.torch
        luff.torch.attach(model, optimizer=optimizer, run=f"{os.environ['GROWTH_RUNS']}/{training}")
    for step in range(20):
        optimizer.zero_grad()
        x = torch.randn(16, 4)
        torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()
    hashes.update(weights(model).encode())
print(hashes.hexdigest())
""",
}


@dataclass
class Series:
    """Samples of one process."""

    at: list[int] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)

    def late(self, name: str) -> list[tuple[int, int]]:
        """Returns (progress, value) of the last two thirds."""
        rows = list(zip(self.at, getattr(self, name), strict=True))
        return [row for row in rows if row[0] * 3 >= self.at[-1]]

    def slope(self, name: str) -> float:
        """Returns the median slope over all pairs of about 300 late samples."""
        rows = self.late(name)
        rows = rows[:: max(1, len(rows) // 300)]
        slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.combinations(rows, 2) if b[0] != a[0]]
        return statistics.median(slopes) if slopes else 0.0


def processes() -> dict[int, tuple[int, str]]:
    """Returns parent and command line of every process."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                found[int(entry.name)] = (
                    parent,
                    (entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " "),
                )
            except OSError:
                continue
    return found


def sample(series: Series, pid: int, at: int) -> None:
    """Adds one sample of a process, unless it has ended."""
    try:
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
        )
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        memory = int(status["VmRSS"].split()[0]) * 1024
    except (OSError, KeyError):
        return
    series.at.append(at)
    series.memory.append(memory)
    series.descriptors.append(descriptors)
    series.threads.append(int(status["Threads"]))


def watched(luff: str | None, job: str, count: int, folder: Path) -> tuple[dict[str, Series], str]:
    """Runs a job, bare if `luff` is None. Returns samples by process, and the script's output."""
    script, progress = folder / f"{job}.py", folder / "progress"
    script.write_text(SCRIPTS[job])
    progress.unlink(missing_ok=True)
    environment = os.environ | {"GROWTH_PROGRESS": str(progress), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), str(count)]
    by_hand = job == "trainings"
    if luff and by_hand:
        environment["GROWTH_RUNS"] = str(folder / "runs")
    elif luff:
        command = [luff, "run", "--run", str(folder / "run"), "--", *command]
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, env=environment)
        series = {"training": Series(), "supervisor": Series(), "rules": Series()}
        while process.poll() is None:
            time.sleep(0.05 if by_hand or job == "tensors" else 0.25)
            try:
                training, at = (int(word) for word in progress.read_text().split())
            except (OSError, ValueError):
                continue
            sample(series["training"], training, at)
            if luff and not by_hand:
                sample(series["supervisor"], process.pid, at)
                for pid, (_, line) in processes().items():
                    if " _evaluate " in line and str(folder / "run") in line:
                        sample(series["rules"], pid, at)
    if process.returncode != 0:
        raise SystemExit(f"{job} ended with {process.returncode}:\n{(folder / 'err').read_text()[-2000:]}")
    return {name: one for name, one in series.items() if one.at}, (folder / "out").read_text().strip()


class Table:
    """Prints rows and remembers whether a limit was exceeded."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []

    def row(self, job: str, process: str, what: str, value: float, limit: float) -> None:
        """Prints and keeps one measured figure with its limit."""
        ok = value <= limit
        self.rows.append(
            {"job": job, "process": process, "what": what, "value": value, "limit": limit, "ok": ok}
        )
        print(
            f"{job:<10} {process:<11} {what:<34} {value:>14,.1f}  limit {limit:>12,.1f}  {'ok' if ok else 'EXCEEDED'}",
            flush=True,
        )


def measure(luff: str, job: str, count: int, table: Table) -> None:
    """Measures one job, bare and watched."""
    folder = Path(tempfile.mkdtemp(prefix="luff-growth-"))
    try:
        bare, bare_hash = watched(None, job, count, folder)
        series, luff_hash = watched(luff, job, count, folder)
        table.row(job, "training", "weights differ from bare", float(bare_hash != luff_hash), 0)
        for process, one in series.items():
            peak = max(one.memory)
            if job == "tensors":
                base = max(bare["training"].memory) if process == "training" else min(one.memory)
                table.row(job, process, "bytes a tensor", (peak - base) / count, PER_TENSOR[process])
            else:
                slope, unit = one.slope("memory"), job.removesuffix("s")
                own = slope - bare["training"].slope("memory") if process == "training" else slope
                table.row(job, process, f"bytes a {unit}, for good", own, LIMITS[job][process])
            table.row(job, process, "peak MB", peak / 1e6, 4000)
            for what in ("descriptors", "threads"):
                late = [value for _, value in one.late(what)]
                kept = KEPT_OPEN.get(process, 0) if what == "descriptors" else 0
                table.row(job, process, f"more {what} at the end", late[-1] - late[0], LEFT_OVER + kept)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Measures all jobs, or those that are named."""
    counts = {"steps": 1_000_000, "tensors": 50_000, "trainings": 100}
    parser = argparse.ArgumentParser(prog="./dev bench growth", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("jobs", nargs="*", metavar="JOB", help="default: all")
    for name, count in counts.items():
        parser.add_argument(f"--{name}", type=int, default=count, metavar="N", help=f"default {count:,}")
    parser.add_argument("--luff", default=luff_command(), help="the command")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    unknown = [job for job in args.jobs if job not in counts]
    if unknown:
        parser.error(f"no job {unknown[0]!r}; there are: {', '.join(counts)}")
    table = Table()
    for job in args.jobs or counts:
        measure(args.luff, job, getattr(args, job), table)
    if args.json:
        args.json.write_text(json.dumps(table.rows, indent=1) + "\n")
    exceeded = sum(not row["ok"] for row in table.rows)
    print(f"{len(table.rows)} figures, {exceeded} beyond their limit")
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
