"""Writes the tables of a run as Parquet; started by ``luff export --to parquet``.

The output directory holds ``summaries/part-*.parquet``, ``scalars/part-*.parquet`` and ``findings.parquet``; DuckDB,
pandas and polars read a folder of parts as one table. A part is written whole or not at all, so repeating the command
writes the missing ones.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import luff
from luff import _core
from luff._bounded import parse_json, read_regular
from luff._codes import Mode

if TYPE_CHECKING:
    from collections.abc import Iterator

_PART_ROWS = 1 << 20  # a part has at least as many, unless it is the last
_STATE = "luff-export.json"
_MAX_FINDINGS = 256 << 20  # bytes of one file
_COUNTS = ("count", "zero_count", "nan_count", "inf_count")
_NUMBERS = ("min", "max", "mean", "std", "sum", "abs_mean", "l2")
_MODES = [m.name for m in sorted(Mode, key=int)]
_FINDING_TEXTS = ("id", "rule", "cause", "severity", "tensor", "mode", "what", "why", "remedy")
_FINDING_NUMBERS = ("worker", "step", "global_step", "update", "since_step", "last_step")


def _dictionary(codes: Any, names: list[str]) -> Any:
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(names, pa.string()))


def _table(name: str, worker: int, modes: Any, columns: dict[str, Any], numbers: tuple[str, ...]) -> Any:
    """Returns the rows of one tensor of one worker."""
    import pyarrow as pa

    made: dict[str, Any] = {
        "tensor": _dictionary(np.zeros(len(modes), np.int32), [_core.valid_text(name)]),
        "worker": pa.array(np.full(len(modes), worker, np.uint32)),
        "mode": _dictionary(np.asarray(modes, np.int32) - 1, _MODES),
    }
    for column in ("step", "mode_step", *numbers):
        made[column] = pa.array(np.ascontiguousarray(columns[column]))
    return pa.table(made)


def _tables(
    trial: luff.Trial, names: list[str], workers: list[int], kind: str, mode: str
) -> Iterator[tuple[int, Any]]:
    """Yields a tensor's place in `names` with some of its rows, and with None after the last of them."""
    for place, name in enumerate(names):
        tensor = trial.tensor(name)
        for worker in workers:
            if kind == "summaries":
                columns = tensor.summaries(mode, worker)
                if len(columns["mode"]):
                    yield (
                        place,
                        _table(name, worker, columns["mode"], columns, ("update", *_COUNTS, *_NUMBERS)),
                    )
                continue
            for one in (trial.modes() or ["GLOBAL"]) if mode == "GLOBAL" else [mode]:
                scalars = trial.scalars(name, one, worker)
                modes = np.full(len(scalars["step"]), int(Mode[one]))
                if len(modes):
                    yield place, _table(name, worker, modes, scalars, ("value",))
        yield place, None


def _write(table: Any, folder: _core.OutputFolder, name: str) -> int:
    import pyarrow.parquet as pq

    content = io.BytesIO()
    pq.write_table(table, content, compression="zstd")
    folder.write(name, content.getvalue())
    return content.tell()


def _findings(run: str) -> Any:
    """Returns the findings of all evaluators, each in its latest form."""
    import pyarrow as pa

    found: dict[str, dict[str, Any]] = {}
    for file in sorted(Path(run).glob("rules/*/findings.jsonl")):
        try:
            lines = read_regular(run, str(file.relative_to(run)), _MAX_FINDINGS)
        except (OSError, ValueError):
            continue  # `luff show` reports what is wrong with it
        for line in lines.decode(errors="replace").split("\n"):
            try:
                finding = parse_json(line)
                found[str(finding["id"])] = finding
            except (ValueError, KeyError, TypeError):
                continue  # not a finding; `luff show` counts such lines
    rows = list(found.values())
    columns: dict[str, Any] = {
        key: pa.array([_core.valid_text(str(row.get(key, ""))) for row in rows], pa.string())
        for key in _FINDING_TEXTS
    }
    for key in _FINDING_NUMBERS:
        values = [row.get(key) for row in rows]
        columns[key] = pa.array([v if isinstance(v, int) else None for v in values], pa.int64())
    columns["healed"] = pa.array([bool(row.get("healed", False)) for row in rows], pa.bool_())
    return pa.table(columns)


class _Progress:
    """A progress line on a terminal."""

    def __init__(self, total: int) -> None:
        self.shown = sys.stderr.isatty()
        self.total = total
        self.last = 0.0

    def tell(self, what: str, place: int, size: int) -> None:
        if self.shown and time.monotonic() - self.last > 0.2:
            self.last = time.monotonic()
            text = f"\r\033[K{what}: tensor {place + 1} of {self.total}, {size / 2**20:.1f} MiB"
            print(text, end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self.shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _prepare(trial: luff.Trial, out: Path, what: dict[str, Any]) -> _core.OutputFolder:
    """Opens an output directory that is new, or holds the same export of the same run."""
    stale: list[str] = []
    state = out / _STATE
    if state.exists():
        try:
            known = parse_json(state.read_text(encoding="utf-8"))
        except ValueError as error:
            raise luff.errors.CorruptionError(
                f"cannot be read ({error}); remove the directory: {state}"
            ) from None
        if known.get("what") != what:
            raise luff.errors.FailedPreconditionError(
                f"the output directory holds an export of another run, format or choice; give another one: {out}"
            )
        if known.get("steps") != len(trial.steps()):  # the run has grown: its tables are written again
            stale = [f"{part.parent.name}/{part.name}" for part in out.glob("*/part-*.parquet")]
    elif out.exists() and any(out.iterdir()):
        raise luff.errors.AlreadyExistsError(
            f"the output directory is not empty and holds no export of luff's; give another one: {out}"
        )
    folder = _core.OutputFolder(str(out))
    for name in stale:
        folder.remove(name)
    folder.write(_STATE, json.dumps({"what": what, "steps": len(trial.steps())}).encode() + b"\n")
    return folder


def export(
    run: str,
    out: str,
    *,
    tensors: str | None = None,
    collection: str | None = None,
    mode: str = "GLOBAL",
    worker: int | None = None,
) -> tuple[int, int]:
    """Writes the tables of a run. Returns the rows and bytes that this call wrote.

    Parameters
    ----------
    tensors, collection, mode, worker
        Writes only tensors whose names match the expression, of this collection; only steps of this mode; only this
        worker.
    """
    import pyarrow as pa

    with luff.open_trial(run) as trial:
        names = trial.tensors(tensors, collection=collection)
        workers = [worker] if worker is not None else sorted(w["worker"] for w in trial.workers())
        target = Path(out)
        what = {
            "format": "parquet",
            "run": str(Path(run).resolve()),
            "tensors": tensors,
            "collection": collection,
            "mode": mode,
            "worker": worker,
        }
        output = _prepare(trial, target, what)
        progress = _Progress(len(names))
        rows = size = 0
        for kind in ("summaries", "scalars"):
            # Parts are named by their first tensor and the one after their last; existing ones are skipped.
            done = {
                int(p.stem.split("-")[1]): int(p.stem.split("-")[2])
                for p in (target / kind).glob("part-*-*.parquet")
            }
            first = 0
            while first < len(names):
                if first in done:
                    first = done[first]
                    continue
                held: list[Any] = []
                count, last = 0, first
                for place, table in _tables(trial, names[first:], workers, kind, mode):
                    if table is not None:
                        held.append(table)
                        count += table.num_rows
                        continue
                    last = first + place + 1
                    progress.tell(kind, last - 1, size)
                    if count >= _PART_ROWS:
                        break
                if held:
                    joined = pa.concat_tables(held).unify_dictionaries()
                    size += _write(joined, output, f"{kind}/part-{first:08d}-{last:08d}.parquet")
                    rows += count
                first = last
        progress.end()
        size += _write(_findings(trial.path), output, "findings.parquet")
        return rows, size


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="luff export")
    parser.add_argument("run")
    parser.add_argument("out")
    parser.add_argument("--to", choices=["parquet"], required=True)
    parser.add_argument("--tensors")
    parser.add_argument("--collection")
    parser.add_argument("--mode", default="GLOBAL")
    parser.add_argument("--worker", type=int)
    args = parser.parse_args(arguments)
    try:
        rows, size = export(
            args.run,
            args.out,
            tensors=args.tensors,
            collection=args.collection,
            mode=args.mode,
            worker=args.worker,
        )
    except ImportError as error:
        print(f"luff: {error}; Parquet needs pyarrow: pip install pyarrow", file=sys.stderr)
        return 2
    except (luff.LuffError, OSError, ValueError) as error:
        print(f"luff: {_core.escaped(str(error))}", file=sys.stderr)
        return 2
    print(f"{rows} rows, {size / 2**20:.1f} MiB written to {_core.escaped(os.path.abspath(args.out))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
