"""`luff watch URL` judges 500 live runs of a bucket, which is a folder: what a network adds is not in it.

Two processes upload the runs, each as `luff sync` does (a head every 2 s). CPU time and memory are of `luff watch` and
of the process beside it that asks the bucket. Requests are counted as a store of objects counts them.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

import luff
from _gates import luff_command, say
from _scale_watch import LAG_S, LEAVE_S, RUNS, SHAPES, WRITER, _ask, _buckets, _cpu_s, _quantile, _rss_gib
from luff.remote._commits import read_commit
from luff.remote._files import commits_prefix
from luff.remote._store import open_store

HERE = Path(__file__).resolve().parent
UPLOADERS = 2
BEGIN_S, SETTLE_S = 20.0, 15.0  # until all runs are uploaded; until what was there is judged
WINDOW_S = float(os.environ.get("LUFF_BENCH_SECONDS", "45"))
BACK_S, BACK_LAG_S = 60.0, 30.0  # after the host of `luff watch` was killed
LONGEST_S = 600.0
INF = float("inf")


class Uploads:
    """The processes that upload, and what they have put so far."""

    def __init__(self, runs: Path, base: str) -> None:
        words = [sys.executable, HERE / "_scale_upload.py", runs, base]
        self._all = [
            subprocess.Popen([*words, str(i), str(UPLOADERS)], stdout=subprocess.PIPE, text=True)
            for i in range(UPLOADERS)
        ]
        self._heads = [0] * UPLOADERS
        self.late_s = 0.0  # the latest flush since this was set to 0
        self.flushes: dict[str, list[tuple[float, float]]] = {}  # of a run: begin and end, Unix seconds
        self._readers = [threading.Thread(target=self._read, args=[i], daemon=True) for i in range(UPLOADERS)]
        for reader in self._readers:
            reader.start()

    def _read(self, number: int) -> None:
        stream = self._all[number].stdout
        assert stream is not None
        for line in stream:
            told = json.loads(line)
            self._heads[number] = told["heads"]
            self.late_s = max(self.late_s, told["late_s"])
            for run, begun, ended in told["flushed"]:
                self.flushes.setdefault(run, []).append((begun, ended))

    @property
    def heads(self) -> int:
        return sum(self._heads)

    def wait(self) -> None:
        for one in self._all:
            assert one.wait(LONGEST_S) == 0
        for reader in self._readers:
            reader.join()

    def kill(self) -> None:
        for one in self._all:
            one.kill()
            one.wait()


class Watch:
    """`luff watch` of the bucket, with the process beside it."""

    def __init__(self, base: str, folder: Path, name: str, *options: str) -> None:
        self._token = folder / "token"
        words = ["watch", base, "--state", folder / name, "--metrics", "127.0.0.1:0"]
        self.process = subprocess.Popen(
            [luff_command(), *words, "--metrics-token", self._token, *options],
            env=os.environ | {"LUFF_HOME": str(folder / "home"), "LUFF_PYTHON": sys.executable},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        self._url = ""
        while not self._url:
            line = self.process.stderr.readline()
            assert line, "luff watch has ended"
            if match := re.search(r"metrics: (http://\S+)/metrics", line):
                self._url = match[1]
        self._drained = threading.Thread(target=_drain, args=[self.process.stderr], daemon=True)
        self._drained.start()

    def _pids(self) -> list[int]:
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [pid, *map(int, children)]

    def cpu_s(self) -> float:
        return sum(map(_cpu_s, self._pids()))

    def gib(self) -> float:
        return sum(map(_rss_gib, self._pids()))

    def ask(self) -> str:
        return _ask(self._url, self._token)

    def kill(self) -> None:
        """As the end of its machine does."""
        for pid in self._pids():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()


def _drain(stream: IO[str]) -> None:
    for _ in stream:
        pass


def _metric(text: str, name: str) -> float:
    return next((float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} ")), 0.0)


def measure() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    results: list[dict[str, Any]] = []
    gates: list[dict[str, Any]] = []

    def note(name: str, value: float, limit: float | None = None) -> None:
        results.append({"name": name, "value": value})
        text = f"  {name:<76} {value:10.4g}"
        if limit is not None:
            ok = value <= limit
            gates.append({"name": name, "value": value, "limit": limit, "ok": ok})
            text += f"  limit {limit:g}  {say(ok)}"
        print(text, flush=True)

    for number, (parameters, rate, share, gib) in enumerate(SHAPES):
        with tempfile.TemporaryDirectory(dir=os.environ.get("LUFF_BENCH_FOLDER")) as folder:
            _measure(Path(folder), parameters, rate, (share, gib), number == 0, note)
    return results, gates


def _measure(
    folder: Path, parameters: int, rate: float, limits: tuple[float, float], killed: bool, note: Any
) -> None:
    runs, base = folder / "runs", f"file://{folder}/bucket"
    runs.mkdir()
    seconds = BEGIN_S + SETTLE_S + WINDOW_S + (BACK_S + 10 if killed else 5)
    nan_at = int(rate * (seconds - 10) / 2)
    words = [runs, RUNS, parameters, rate, seconds, nan_at]
    writer = subprocess.Popen([WRITER, *map(str, words)], stdout=subprocess.PIPE, text=True)
    uploads = watch = None
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        open_store(base).put_new("judges/luff", b"{}")  # all of these runs are judged
        uploads = Uploads(runs, base)
        watch = Watch(base, folder, "state")
        time.sleep(BEGIN_S + SETTLE_S)
        of = f"{RUNS} runs, {parameters} parameters, {rate:g} steps/s"
        _look(watch, uploads, of, limits, killed, note)
        if killed:
            watch.kill()
            watch, took = _come_back(base, folder)
            note(f"{of}: host killed, lag of all below {BACK_LAG_S:g} s again after, s", took, BACK_S)
        uploads.wait()
        watch = _end(watch, base, folder, of, note)
        if killed:
            _compare(runs, base, [folder / "state", folder / "other"], of, note)
        _since_flush(folder, uploads.flushes, nan_at, of, note)
    finally:
        writer.kill()
        writer.wait()
        if uploads is not None:
            uploads.kill()
        if watch is not None and watch.process.poll() is None:
            watch.kill()


def _look(
    watch: Watch, uploads: Uploads, of: str, limits: tuple[float, float], in_heads: bool, note: Any
) -> None:
    """What it takes while all runs are live."""
    before, cpu, heads = watch.ask(), watch.cpu_s(), uploads.heads
    begun, peak, uploads.late_s = time.monotonic(), 0.0, 0.0
    while time.monotonic() - begun < WINDOW_S:
        time.sleep(1)
        peak = max(peak, watch.gib())
    after, cpu, heads = watch.ask(), watch.cpu_s() - cpu, uploads.heads - heads
    took = time.monotonic() - begun
    note(f"{of}: of a core", cpu / took, limits[0])
    note(f"{of}: GiB", peak, limits[1])
    # The wait for the next head, up to 2 s, is in it; the gate is about what `_since_flush` measures.
    note(f"{of}: published to judged p99, s", _quantile(_buckets(before), _buckets(after), 0.99))
    counts = {bound: count - _buckets(before)[bound] for bound, count in _buckets(after).items()}
    note(
        f"{of}: share of steps that are judged {LAG_S:g} s after they were published",
        counts[LAG_S] / counts[INF],
    )
    note(f"{of}: runs that are judged", _metric(after, 'luff_watch_runs{state="live"}'))
    asked = [
        _metric(after, name) - _metric(before, name)
        for name in (
            'luff_watch_bucket_requests_total{kind="get"}',
            'luff_watch_bucket_requests_total{kind="put"}',
            'luff_watch_bucket_bytes_total{direction="received"}',
        )
    ]
    # A get for each head that has changed, a list a second for each 1,000 runs; and what findings ask for.
    formula = heads + took * -(-RUNS // 1000)
    found = sum(
        float(line.split()[1]) * sign
        for text, sign in ((after, 1), (before, -1))
        for line in text.splitlines()
        if line.startswith("luff_watch_findings_total{")
    )
    note(f"{of}: heads put a minute", heads / took * 60)
    note(f"{of}: requests a minute (gets, and puts with lists)", sum(asked[:2]) / took * 60)
    note(f"{of}: of these puts and lists a minute", asked[1] / took * 60)
    note(f"{of}: MB received a minute", asked[2] / took * 60 / 1e6)
    note(f"{of}: findings in that time", found)
    # Rows that are more than a head holds are parts, which are got besides.
    limit = 1.05 if in_heads else None
    note(f"{of}: requests per formula (1.05: within 5 %)", sum(asked[:2]) / (formula + 5 * found), limit)
    note(f"{of}: latest flush of the uploads, s too late", uploads.late_s)
    note(f"{of}: load of the machine", os.getloadavg()[0])


def _come_back(base: str, folder: Path) -> tuple[Watch, float]:
    """Another host takes over. Returns after how many seconds it judged all runs, none late."""
    begun = time.monotonic()
    watch = Watch(base, folder, "other", "--drain")
    while time.monotonic() - begun < 4 * BACK_S:
        text = watch.ask()
        live = _metric(text, 'luff_watch_runs{state="live"}')
        waiting = _metric(text, 'luff_watch_runs{state="waiting"}')
        if live >= RUNS and waiting == 0 and _metric(text, "luff_watch_behind_seconds") < BACK_LAG_S:
            return watch, time.monotonic() - begun
        time.sleep(0.25)
    return watch, float("inf")


def _end(watch: Watch, base: str, folder: Path, of: str, note: Any) -> Watch:
    """Lets the runs be judged to their ends."""
    if not (folder / "other").exists():
        left = time.monotonic()
        watch.process.send_signal(signal.SIGTERM)
        code = watch.process.wait(60)
        note(f"{of}: seconds to leave", time.monotonic() - left, LEAVE_S)
        note(f"{of}: exit code", code, 0)
        watch = Watch(base, folder, "state", "--drain")
    code = watch.process.wait(LONGEST_S)
    note(f"{of}: exit code once all runs are judged", code, 0)
    named = set()
    for state in ("state", "other"):
        for line in _said(folder / state):
            named |= {line["run_id"]} if line["rule"] == "NonFinite" else set()
    ids = {
        run.name: json.loads((run / "run.json").read_text())["run_id"] for run in (folder / "runs").iterdir()
    }
    broken = {ids[f"run{i}"] for i in range(RUNS) if i % 10 == 3}
    note(f"{of}: broken runs not named", len(broken - named), 0)
    note(f"{of}: healthy runs named as broken", len(named - broken), 0)
    return watch


def _since_flush(
    folder: Path, flushes: dict[str, list[tuple[float, float]]], nan_at: int, of: str, note: Any
) -> None:
    """From the end of the upload that took the faulty step along, to the commit with its finding."""
    took = []
    for number in range(3, RUNS, 10):
        run = folder / "runs" / f"run{number}"
        with luff.open_trial(run) as trial:
            published = trial.step_info(nan_at, "TRAIN")["wall_unix_ns"] / 1e9
        run_id = json.loads((run / "run.json").read_text())["run_id"]
        flushed = min(end for begin, end in flushes[run.name] if begin >= published)
        commits = sorted((folder / "bucket" / commits_prefix(run_id)).glob("000001"))
        took.append(commits[0].stat().st_mtime - flushed if commits else float("inf"))
    took.sort()
    name = f"{of}: uploaded to judged and committed, of {len(took)} faulty steps"
    note(f"{name}: median, s", took[len(took) // 2])
    note(f"{name}: most, s", took[-1], LAG_S)


def _said(state: Path) -> list[dict[str, Any]]:
    path = state / "findings.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _compare(runs: Path, base: str, states: list[Path], of: str, note: Any) -> None:
    """Findings stand in the bucket byte for byte as a look at the run itself has them, and were said once.

    Of what the first host said, and was killed before it noted that, the second cannot know: it says that once more.
    """
    store, differ = open_store(base), 0
    taken: set[tuple[str, str]] = set()
    for run in sorted(runs.glob("run*")):
        run_id = json.loads((run / "run.json").read_text())["run_id"]
        here = subprocess.run(
            [luff_command(), "check", run, "--json"], capture_output=True, text=True, check=False
        ).stdout.splitlines()
        lines: list[str] = []
        number = 1
        names = store.children(commits_prefix(run_id))
        while (commit := read_commit(store, run_id, number)) is not None:
            lines += commit.lines
            if f"{number:06d}.taken-1" in names:
                taken |= {(run_id, json.loads(line)["id"]) for line in commit.lines}
            number += 1
        differ += lines != here
    said = [line for state in states for line in _said(state)]
    news = [(line["run_id"], line["id"]) for line in said if line["event"] == "new"]
    note(f"{of}: runs whose findings differ from those of the run itself", differ, 0)
    again = {one for one in news if news.count(one) > 1}
    note(f"{of}: findings said twice although that was noted", len(again - taken), 0)
    note(f"{of}: findings said again by the host that took over", len(again & taken))
