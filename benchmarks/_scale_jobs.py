"""10,000 jobs: `luff watch` in 16 shards, `luff runs`, uploads and cards, each beside a line through fewer jobs."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from _gates import luff_command, say
from _scale_catalogue import _command as runs_cpu_ms
from _scale_watch import WRITER, _cpu_s, _rss_gib
from luff._verbs import cards
from luff.remote._errors import Absent, Conflict
from luff.remote._files import card_key
from luff.remote._store import Listed, Store
from luff.remote._uploader import Uploader

#: The last is what is asked for; the line goes through the others.
SIZES = (100, 1_000, int(os.environ.get("LUFF_BENCH_JOBS", "10000")))
STEPS = 20
PARAMETERS = 8
LIVE = 20  # of so many jobs one is live while `luff watch` is looked at
SHARDS = 16
SETTLE_S, LOOK_S = 10.0, 20.0
_AT_ONCE = 500  # that one process writes: each has files open
_PAGE = 1000
#: Requests of a job that is uploaded once it has ended: luff.json (it is there; what it says; whether the store obeys
#: conditions, and a look at why it refused), run.json, whether there is a head, the first head, the last head, `end`,
#: and the card.
REQUESTS = 10


class CountingStore(Store):
    """A store of objects in memory that counts as S3 does: a request for each object, and for each thousand listed."""

    def __init__(self) -> None:
        super().__init__("s3://counted/team")
        self._objects: dict[str, tuple[bytes, int]] = {}
        self._tags = 0
        self._lock = threading.Lock()

    def get(self, key: str, most: int, unless: str = "") -> tuple[bytes, str] | None:
        self._count()
        if key not in self._objects:
            raise Absent(key)
        data, tag = self._objects[key]
        return None if unless == str(tag) else (data, str(tag))

    def get_range(self, key: str, begin: int, end: int) -> bytes:
        self._count()
        return self._objects[key][0][begin:end]

    def _put(self, key: str, data: bytes, allowed: Any) -> str:
        self._count(sent=len(data), puts=1)
        with self._lock:
            if not allowed(self._objects.get(key)):
                raise Conflict(key)
            self._tags += 1
            self._objects[key] = bytes(data), self._tags
            return str(self._tags)

    def put(self, key: str, data: bytes) -> None:
        self._put(key, data, lambda _: True)

    def put_new(self, key: str, data: bytes) -> str:
        return self._put(key, data, lambda found: found is None)

    def put_if(self, key: str, data: bytes, etag: str) -> str:
        try:
            return self._put(key, data, lambda found: found is not None and str(found[1]) == etag)
        except Conflict:
            self._count()  # a look at whether it has changed (RemoteStore)
            raise

    def delete(self, key: str) -> None:
        self._count()
        self._objects.pop(key, None)

    def delete_all(self, keys: list[str]) -> None:
        for key in keys:
            self.delete(key)

    def children(self, prefix: str) -> list[str]:
        self._count(puts=1)
        return sorted({key[len(prefix) :].split("/")[0] for key in self._objects if key.startswith(prefix)})

    def objects(self, prefix: str, most: int) -> list[Listed]:
        found = [
            Listed(key[len(prefix) :], str(tag), len(data), 1)
            for key, (data, tag) in sorted(self._objects.items())
            if key.startswith(prefix)
        ]
        for _ in range(0, max(len(found), 1), _PAGE):
            self._count(puts=1)
        return found[:most]


class Row(NamedTuple):
    """What was measured of so many jobs. `limit`: of the value, with the largest number of jobs."""

    name: str
    value: float
    wanted: float | None = None  # what a formula says of it, from the number of jobs alone: within 5 %
    limit: float | None = None


def measure() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    results: list[dict[str, Any]] = []
    gates: list[dict[str, Any]] = []
    found: dict[str, list[Row]] = {}
    for jobs in SIZES:
        with tempfile.TemporaryDirectory(dir=os.environ.get("LUFF_BENCH_FOLDER")) as folder:
            for row in _measure(Path(folder), jobs):
                found.setdefault(row.name, []).append(row)
        print(f"  {jobs} jobs are done; load {os.getloadavg()[0]:.1f}", flush=True)
    print(f"  {'':<58} {' '.join(f'{jobs:>10}' for jobs in SIZES)}   the line says")
    for name, rows in found.items():
        line = _line([row.value for row in rows])
        text = f"  {name:<58} {' '.join(f'{row.value:10.4g}' for row in rows)} {line:10.4g}"
        results.append(
            {"name": name, "jobs": list(SIZES), "values": [row.value for row in rows], "line": line}
        )
        last = rows[-1]
        if last.wanted is not None:
            for jobs, row in zip(SIZES, rows, strict=True):
                assert row.wanted is not None
                ok = abs(row.value - row.wanted) <= 0.05 * row.wanted
                gates.append({"name": f"{name}, {jobs}", "value": row.value, "limit": row.wanted, "ok": ok})
                text += f"  formula {row.wanted:g} {say(ok)}"
        if last.limit is not None:
            ok = last.value <= last.limit
            gates.append({"name": f"{name}, {SIZES[-1]}", "value": last.value, "limit": last.limit, "ok": ok})
            text += f"  limit {last.limit:g} {say(ok)}"
        print(text, flush=True)
    return results, gates


def _line(values: list[float]) -> float:
    """What a line through the first two says of the last number of jobs."""
    slope = (values[1] - values[0]) / (SIZES[1] - SIZES[0])
    return values[1] + slope * (SIZES[2] - SIZES[1])


def _measure(folder: Path, jobs: int) -> list[Row]:
    runs = folder / "runs"
    runs.mkdir()
    live = max(1, jobs // LIVE)
    for first in range(0, jobs - live, _AT_ONCE):
        _write(runs, min(_AT_ONCE, jobs - live - first), first)
    rows = _shards(runs, jobs - live)
    rows += _uploads(runs)
    rows += _cards(runs, jobs)
    rows.append(Row("`luff runs`, from nothing: CPU s", runs_cpu_ms(folder) / 1000))
    rows.append(Row("`luff runs`, index kept: CPU s", runs_cpu_ms(folder) / 1000))
    rows += _beside_live(folder, runs, live, jobs - live)
    return rows


def _write(runs: Path, count: int, first: int) -> None:
    words = [count, PARAMETERS, 1000, (STEPS - 1) / 1000, STEPS // 2, first]
    subprocess.run([WRITER, runs, *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def _shards(runs: Path, ended: int) -> list[Row]:
    """Judges all runs, one shard after the other, as 16 processes of as many hosts would."""
    cpu, most = 0.0, 0.0
    news: list[tuple[str, str]] = []
    named = set()
    for shard in range(SHARDS):
        words = ["watch", runs, "--shard", f"{shard}/{SHARDS}", "--earlier", "--drain"]
        child = subprocess.Popen(
            [luff_command(), *words],
            env=os.environ | {"LUFF_HOME": str(runs.parent / "home")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0, f"shard {shard}: exit code {child.returncode}"
        cpu += usage.ru_utime + usage.ru_stime
        most = max(most, usage.ru_maxrss / 1024)
        said = (runs / f".luff-watch/{shard}-of-{SHARDS}/findings.jsonl").read_text().splitlines()
        for line in map(json.loads, said):
            if line["event"] == "new":
                news.append((line["run"], line["id"]))
                named |= {line["run"]} if line["rule"] == "NonFinite" else set()
    broken = {f"run{i}" for i in range(ended) if i % 10 == 3}
    return [
        Row(f"`luff watch`, {SHARDS} shards one by one, all runs judged: CPU s", cpu),
        Row(f"`luff watch`, {SHARDS} shards: memory of the largest, MiB", most),
        Row("findings said twice", len(news) - len(set(news)), limit=0),
        Row("broken runs not named", len(broken - named), limit=0),
        Row("healthy runs named as broken", len(named - broken), limit=0),
    ]


def _uploads(runs: Path) -> list[Row]:
    store = CountingStore()
    begun = time.process_time()
    jobs = sorted(runs.glob("run*"))
    for run in jobs:
        uploader = Uploader(str(run), store)
        uploader.begin()
        uploader.flush("ended")
        uploader.end()
        uploader.put_card(b"{}")
        uploader.close()
    cpu = time.process_time() - begun
    return [
        Row("uploads of ended runs: requests", store.requests, wanted=REQUESTS * len(jobs)),
        Row("uploads of ended runs: MB", store.sent / 1e6),
        Row("uploads of ended runs: CPU s", cpu),
    ]


def _cards(runs: Path, jobs: int) -> list[Row]:
    """Looks of `luff runs URL`: the first, one without news, and one after the cards of the live jobs have changed."""
    store = CountingStore()
    card = json.loads(subprocess.check_output([luff_command(), "card", str(next(runs.glob("run*")))]))
    names = [f"{number:032x}" for number in range(jobs)]
    for name in names:
        store.put(card_key(name), json.dumps(card | {"run_id": name}).encode())
    pages, changed = -(-jobs // _PAGE), max(1, jobs // LIVE)
    rows = []
    known: dict[str, int] = {}
    for what, wanted in (
        ("first look", pages + jobs),
        ("later look", pages),
        ("look, one card in 20 changed", pages + changed),
    ):
        if wanted == pages + changed:
            for name in names[:changed]:
                store.put(card_key(name), json.dumps(card | {"run_id": name, "steps": 21}).encode())
        asked = store.requests
        known |= _look(store, known)
        rows.append(Row(f"`luff runs URL`, {what}: requests", store.requests - asked, wanted=wanted))
    return rows


def _look(store: Store, known: dict[str, int]) -> dict[str, int]:
    """Returns the runs that were told anew, and their stamps."""
    kept, sys.stdout = sys.stdout, io.TextIOWrapper(io.BytesIO())
    try:
        cards.look(store, known)
        sys.stdout.flush()
        told = sys.stdout.buffer.getvalue()  # type: ignore[attr-defined]
    finally:
        sys.stdout = kept
    words = (line.split() for line in told.decode().splitlines() if line.startswith("+ "))
    return {word[1]: int(word[2]) for word in words}


def _beside_live(folder: Path, runs: Path, live: int, ended: int) -> list[Row]:
    """What `luff watch` takes, of whose runs most have ended and are left alone, and the others make a step in 2 s."""
    words = [live, PARAMETERS, 0.5, 3600, 10**9, ended]
    writer = subprocess.Popen([WRITER, runs, *map(str, words)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    try:
        assert writer.stdout.readline() == "ready\n"
        watch = subprocess.Popen(
            [luff_command(), "watch", runs, "--state", folder / "state"],
            env=os.environ | {"LUFF_HOME": str(folder / "home")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            time.sleep(SETTLE_S)
            cpu, begun = _cpu_s(watch.pid), time.monotonic()
            time.sleep(LOOK_S)
            share = (_cpu_s(watch.pid) - cpu) / (time.monotonic() - begun)
            memory = _rss_gib(watch.pid) * 1024
            watch.send_signal(signal.SIGTERM)
            assert watch.wait(timeout=60) == 0
        finally:
            watch.kill()
            watch.wait()
    finally:
        writer.kill()
        writer.wait()
    return [
        Row("`luff watch`, one in 20 live: share of a core", share, limit=0.25),
        Row("`luff watch`, one in 20 live: memory, MiB", memory, limit=1536),
    ]
