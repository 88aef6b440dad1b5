"""`luff runs` finds one run among 10,000, of a directory and of a bucket."""

from __future__ import annotations

import json
import os
import resource
import shutil
import sqlite3
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from _gates import gate_of_best, luff_command, say
from _studio import record

RUNS = 10_000
ROUNDS = 7
LIMITS = {"command, CPU ms": 300, "question, ms": 10}
QUESTIONS = {
    "--text run04242": ["--text", "run04242"],
    "--where name and loss": ["--where", "name ~ run0777 and loss < 0.2"],
    "newest 20": [],
}


def measure() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(dir=os.environ.get("LUFF_BENCH_FOLDER")) as text:
        folder = Path(text)
        record(folder / "one", 8, 20)
        (folder / "runs").mkdir()
        for i in range(RUNS):
            shutil.copytree(folder / "one", folder / "runs" / f"run{i:05}", copy_function=os.link)
        _note(found, f"{RUNS} runs from nothing, CPU s", _command(folder) / 1000)
        for _ in range(ROUNDS):
            for name, words in QUESTIONS.items():
                _note(found, f"command, CPU ms: {name}", _command(folder, *words))
            _note(found, "question, ms: words", _question(folder / "home" / "catalog.sqlite3"))
        bucket = _make_bucket(folder)
        _note(found, f"bucket: {RUNS} cards from nothing, CPU s", _command(folder, runs=bucket) / 1000)
        for _ in range(ROUNDS):
            for name, words in QUESTIONS.items():
                _note(found, f"command, CPU ms: bucket, {name}", _command(folder, *words, runs=bucket))
    gates = []
    for name, values in found.items():
        limit = LIMITS.get(name.split(":")[0])
        tail = ""
        if limit is not None:
            gates.append(gate_of_best(name, values, limit))
            tail = f"limit {limit}  {say(gates[-1]['ok'])}"
        print(f"  {name:<46} {min(values):10.4g}  {tail}", flush=True)
    return [{"name": name, "values": values} for name, values in found.items()], gates


def _note(found: dict[str, list[float]], name: str, value: float) -> None:
    found.setdefault(name, []).append(value)


def _make_bucket(folder: Path) -> str:
    """Makes a folder with the cards of as many runs; returns its URL."""
    card = json.loads(subprocess.check_output([luff_command(), "card", str(folder / "one")]))
    cards = folder / "bucket" / "cards"
    cards.mkdir(parents=True)
    for i in range(RUNS):
        card |= {"run_id": f"{i:032x}", "name": f"run{i:05}"}
        (cards / card["run_id"]).write_text(json.dumps(card))
    return f"file://{folder / 'bucket'}"


def _command(folder: Path, *words: str, runs: str = "") -> float:
    """Returns the CPU time of one `luff runs`, in milliseconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [luff_command(), "runs", runs or str(folder / "runs"), *words],
        env=os.environ | {"LUFF_HOME": str(folder / "home")},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1000


def _question(index: Path) -> float:
    """Returns the time of the question for a word, in milliseconds."""
    with sqlite3.connect(index) as database:
        database.execute("SELECT count(*) FROM run").fetchone()
        begun = time.perf_counter()
        rows = database.execute(
            "SELECT id FROM run r WHERE r.id IN (SELECT rowid FROM words WHERE words MATCH ?) ORDER BY begun DESC",
            ('"run04242"',),
        ).fetchall()
        took = time.perf_counter() - begun
    assert len(rows) == 1
    return took * 1000
