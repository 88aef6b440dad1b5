"""`luff watch DIR` judges 500 live runs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from _gates import luff_command, say

WRITER = Path(os.environ["LUFF_BENCH_PROGRAMS"]) / "luff_bench_live"
RUNS = int(os.environ.get("LUFF_BENCH_RUNS", "500"))
SECONDS = float(os.environ.get("LUFF_BENCH_SECONDS", "60"))
#: Parameters, steps/s of each run, limits: share of a core, GiB.
SHAPES = ((8, 2.0, 0.25, 1.5), (150, 1.0, 1.0, 2.5))
LAG_S = 5.0
LEAVE_S = 10.0
TICKS = os.sysconf("SC_CLK_TCK")


def measure() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    results: list[dict[str, Any]] = []
    gates: list[dict[str, Any]] = []
    for parameters, rate, share, gib in SHAPES:
        with tempfile.TemporaryDirectory(dir=os.environ.get("LUFF_BENCH_FOLDER")) as folder:
            _measure(Path(folder), parameters, rate, share, gib, results, gates)
    return results, gates


def _measure(
    folder: Path,
    parameters: int,
    rate: float,
    share: float,
    gib: float,
    results: list[dict[str, Any]],
    gates: list[dict[str, Any]],
) -> None:
    runs = folder / "runs"
    runs.mkdir()
    nan_at = int(rate * SECONDS / 2)
    writer = subprocess.Popen(
        [WRITER, runs, str(RUNS), str(parameters), str(rate), str(SECONDS), str(nan_at)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    token = folder / "token"
    watch = subprocess.Popen(
        [luff_command(), "watch", runs, "--metrics", "127.0.0.1:0", "--metrics-token", token],
        env=os.environ | {"LUFF_HOME": str(folder / "home")},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert watch.stderr is not None
    url = ""
    while not url:
        line = watch.stderr.readline()
        assert line, "luff watch has ended"
        if match := re.search(r"metrics: (http://\S+)/metrics", line):
            url = match[1]
    drained = subprocess.Popen(["cat"], stdin=watch.stderr, stdout=subprocess.DEVNULL)
    time.sleep(
        min(10.0, SECONDS / 4)
    )  # begun runs are opened; what they cost to open is not what they cost to judge
    before = _buckets(_ask(url, token))
    cpu, begun = _cpu_s(watch.pid), time.monotonic()
    peak = 0.0
    while writer.poll() is None:
        time.sleep(0.5)
        peak = max(peak, _rss_gib(watch.pid))
    used = (_cpu_s(watch.pid) - cpu) / (time.monotonic() - begun)
    said = json.loads(writer.stdout.read())
    until = time.monotonic() + 60
    while (judged := _metric(url, token, "luff_watch_steps_total")) < said[
        "steps"
    ] and time.monotonic() < until:
        time.sleep(0.5)
    p99 = _quantile(before, _buckets(_ask(url, token)), 0.99)
    left = time.monotonic()
    watch.send_signal(signal.SIGTERM)
    code = watch.wait(timeout=30)
    left = time.monotonic() - left
    drained.wait()
    lines = [json.loads(line) for line in (runs / ".luff-watch/all/findings.jsonl").read_text().splitlines()]
    news = [(line["run"], line["id"]) for line in lines if line["event"] == "new"]
    broken = {f"run{i}" for i in range(RUNS) if i % 10 == 3}
    named = {line["run"] for line in lines if line["rule"] == "NonFinite"}
    of = f"{RUNS} runs, {parameters} parameters, {rate:g} steps/s"
    for name, value, limit in (
        (f"{of}: of a core", used, share),
        (f"{of}: GiB", peak, gib),
        (f"{of}: lag p99, s", p99, LAG_S),
        (f"{of}: seconds to leave", left, LEAVE_S),
        (f"{of}: steps not judged", said["steps"] - judged, 0),
        (f"{of}: findings said twice", len(news) - len(set(news)), 0),
        (f"{of}: broken runs not named", len(broken - named), 0),
        (f"{of}: exit code", code, 0),
    ):
        ok = value <= limit
        results.append({"name": name, "value": value})
        gates.append({"name": name, "value": value, "limit": limit, "ok": ok})
        print(f"  {name:<64} {value:10.4g}  limit {limit:g}  {say(ok)}", flush=True)


def _ask(url: str, token: Path) -> str:
    request = urllib.request.Request(
        f"{url}/metrics", headers={"Authorization": f"Bearer {token.read_text().strip()}"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        return str(answer.read().decode())


def _metric(url: str, token: Path, name: str) -> float:
    return next(
        float(line.split()[1]) for line in _ask(url, token).splitlines() if line.startswith(f"{name} ")
    )


def _buckets(metrics: str) -> dict[float, float]:
    """Returns how many steps lagged by at most so many seconds."""
    found = re.finditer(r'luff_watch_lag_seconds_bucket\{le="([^"]+)"\} (\S+)', metrics)
    return {float(match[1].replace("+Inf", "inf")): float(match[2]) for match in found}


def _quantile(before: dict[float, float], after: dict[float, float], q: float) -> float:
    """Returns the upper bound of the bucket that holds the quantile of the lag between two looks."""
    counts = {bound: after[bound] - before[bound] for bound in after}
    return next(bound for bound, below in counts.items() if below >= q * counts[float("inf")])


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _rss_gib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) / 2**20
