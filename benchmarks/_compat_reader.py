"""Opens a million records of smdebug's format with Luff and with smdebug, in turns, each in its own process.

The trial has 10,000 steps of 100 tensors, and each record is a value of 16 floats, written here byte by byte
according to docs/spec/smdebug.md; smdebug itself reads it. Measured is the time until the trial is open, all names
and all steps are known and one value is read, and the resident memory that the process has gained by then.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _gates import gate_of_best, say

STEPS, TENSORS, FLOATS, PAIRS = 10_000, 100, 16, 3
FASTER, MEMORY_SHARE = 20.0, 0.10
_FOOTER = struct.pack("<I", 0x062DC0B3)

_CHILD = """
import json, os, sys, time
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE")
who, path = sys.argv[1], sys.argv[2]
if who == "luff":
    import luff
    before, begun = resident(), time.perf_counter()
    trial = luff.open_trial(path)
    opened = time.perf_counter() - begun
    names, steps = trial.tensors(), trial.steps()
    value = trial.tensor(names[0]).value(steps[-1])
else:
    import logging
    logging.disable(logging.WARNING)
    os.environ["SMDEBUG_TRAINING_END_DELAY_REFRESH"] = "0"
    from smdebug.trials import create_trial
    before, begun = resident(), time.perf_counter()
    trial = create_trial(path)
    opened = time.perf_counter() - begun
    names, steps = trial.tensor_names(), trial.steps()
    value = trial.tensor(names[0]).value(steps[-1])
took = time.perf_counter() - begun
print(json.dumps({"open": opened, "all": took, "bytes": resident() - before, "names": len(names),
                  "steps": len(steps), "sum": float(value.sum())}))
"""


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def _header(length: int, known: dict[int, bytes]) -> bytes:
    if length not in known:
        size = struct.pack("<Q", length)
        crc = _crc32c(size)
        known[length] = size + struct.pack(
            "<I", (((crc >> 15 | crc << 17) & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF
        )
    return known[length]


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def write_trial(out: Path, steps: int = STEPS, tensors: int = TENSORS) -> None:
    """Writes a finished trial of one worker with TRAIN steps only."""
    names = [f"layer{i // 4}/{('weight', 'bias', 'gradient', 'output')[i % 4]}_{i}" for i in range(tensors)]
    known: dict[int, bytes] = {}
    content = struct.pack(f"<{FLOATS}f", *range(FLOATS))
    heads = []
    for name in names:
        dim = _field(2, b"\x08" + _varint(FLOATS) + _field(2, f"{name}_{FLOATS}".encode()))
        heads.append(_field(1, name.encode()) + _field(8, b"\x08\x01" + _field(2, dim) + _field(4, content)))
    mode = _field(1, _field(1, b"mode") + _field(2, b"1"))
    for step in range(steps):
        worker = f"{step:012d}_worker_0"
        metadata = _field(9, _field(1, _field(1, b"mode_step") + _field(2, str(step).encode())) + mode)
        time_and_step = b"\x09" + struct.pack("<d", 1e9 + step) + (b"\x10" + _varint(step) if step else b"")
        records, entries, at = [], [], 0
        for name, head in zip(names, heads, strict=True):
            payload = time_and_step + _field(5, _field(1, head + metadata))
            record = _header(len(payload), known) + payload + _FOOTER
            entries.append({"tensorname": name, "start_idx": at, "length": len(record)})
            records.append(record)
            at += len(record)
        events = out / "events" / f"{step:012d}"
        index = out / "index" / f"{step // 1000:09d}"
        events.mkdir(parents=True)
        index.mkdir(parents=True, exist_ok=True)
        (events / f"{worker}.tfevents").write_bytes(b"".join(records))
        meta = {
            "mode": "TRAIN",
            "mode_step": step,
            "event_file_name": f"events/{step:012d}/{worker}.tfevents",
        }
        content_of = {"meta": meta, "tensor_payload": entries, "shape_payload": []}
        (index / f"{worker}.json").write_text(json.dumps(content_of))
    folder = out / "collections" / "000000000"
    folder.mkdir(parents=True)
    collection = {
        "name": "default",
        "include_regex": [".*"],
        "tensor_names": names,
        "reduction_config": None,
        "save_config": None,
        "save_histogram": False,
    }
    text = json.dumps({"collections": {"default": collection}, "_meta": {"num_workers": 1}})
    (folder / "worker_0_collections.json").write_text(text)
    (out / "training_job_end.ts").touch()


def _open(who: str, path: Path) -> dict[str, Any]:
    ran = subprocess.run(
        [sys.executable, "-c", _CHILD, who, str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    if ran.returncode != 0:
        raise RuntimeError(
            f"{who}: {ran.stderr.strip().splitlines()[-1] if ran.stderr.strip() else ran.returncode}"
        )
    found: dict[str, Any] = json.loads(ran.stdout.strip().splitlines()[-1])
    return found


def measure(pairs: int = PAIRS) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns results and gates."""
    reason = os.environ.get("LUFF_BENCH_NO_PEERS", "")
    if not reason:
        try:
            import smdebug  # type: ignore[import-not-found]  # noqa: F401
        except ImportError as error:
            reason = f"smdebug cannot be imported: {error}"
    folder = Path(tempfile.mkdtemp(prefix="luff-bench-", dir=os.environ.get("LUFF_BENCH_DIR")))
    try:
        trial = folder / "trial"
        begun = time.perf_counter()
        write_trial(trial)
        print(
            f"reader: {STEPS * TENSORS:,} records written in {time.perf_counter() - begun:.0f} s", flush=True
        )
        _open("luff", trial)  # brings the index files into the page cache, for both
        mine: list[dict[str, Any]] = []
        peer: list[dict[str, Any]] = []
        for _ in range(pairs):
            mine.append(_open("luff", trial))
            if not reason:
                peer.append(_open("smdebug", trial))
                if {k: peer[-1][k] for k in ("names", "steps", "sum")} != {
                    k: mine[-1][k] for k in ("names", "steps", "sum")
                }:
                    raise RuntimeError(f"they read different things: {mine[-1]} and {peer[-1]}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    results: list[dict[str, Any]] = []
    for name, runs in (("luff", mine), ("smdebug", peer)):
        if not runs:
            continue
        result = {k: statistics.median(r[k] for r in runs) for k in ("open", "all", "bytes")}
        results.append({"name": f"open 1 M smdebug records, {name}", **result})
        print(f"  {name:8s} open {result['open']:.2f} s, with names, steps and a value {result['all']:.2f} s, "
              f"{result['bytes'] / 1e6:.0f} MB")  # fmt: skip
    if reason:
        print(f"  smdebug skipped: {reason}")
        return results, []
    ratios = [m["all"] / p["all"] for m, p in zip(mine, peer, strict=True)]
    shares = [m["bytes"] / p["bytes"] for m, p in zip(mine, peer, strict=True)]
    gates = [
        gate_of_best("open 1 M smdebug records, time over smdebug's", ratios, 1 / FASTER),
        gate_of_best("open 1 M smdebug records, memory over smdebug's", shares, MEMORY_SHARE),
    ]
    print(f"  {1 / min(ratios):.0f} times as fast (goal {FASTER:.0f}) {say(gates[0]['ok'])}, "
          f"{min(shares):.1%} of the memory (goal {MEMORY_SHARE:.0%}) {say(gates[1]['ok'])}")  # fmt: skip
    return results, gates
