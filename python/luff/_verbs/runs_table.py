"""``luff runs … --parquet FILE``: the cards of runs as one table, for DuckDB, pandas, Polars and spreadsheets."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Any

from luff._verbs.made_file import WRONG_USAGE, make_file, whole_file

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_PARAMETERS = 500  # that have columns; all are in `parameters`
_TEXTS = (
    "run",
    "run_id",
    "name",
    "sweep",
    "trial",
    "verdict",
    "outcome",
    "why",
    "framework",
    "host",
    "title",
    "note",
)
_NAMED = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _number(value: object) -> float | None:
    if isinstance(value, str):
        return _NAMED.get(value)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63 else None


def _parameter(values: list[Any]) -> Any:
    """A column of numbers, truth values, or of texts where a parameter is of several kinds."""
    import pyarrow as pa

    known = [value for value in values if value is not None]
    if all(isinstance(value, bool) for value in known):
        return pa.array(values, pa.bool_())
    if known and all(_whole(value) is not None for value in known):  # seeds have more digits than a double
        return pa.array(values, pa.int64())
    if all(_number(value) is not None for value in known):
        return pa.array([_number(value) for value in values], pa.float64())
    return pa.array(
        [None if v is None else v if isinstance(v, str) else json.dumps(v) for v in values], pa.string()
    )


def table_of(cards: list[dict[str, Any]]) -> Any:
    """A row for each card (docs/spec/catalog.md, section 1)."""
    import pyarrow as pa

    columns: dict[str, Any] = {
        name: pa.array([str(card.get(name, "")) for card in cards], pa.string()) for name in _TEXTS
    }
    begun = [_whole(card.get("begun_unix_ns")) or None for card in cards]
    columns["begun"] = pa.array(begun, pa.timestamp("ns", "UTC"))
    columns["took_s"] = pa.array([_number(card.get("took_s")) for card in cards], pa.float64())
    for mode in ("TRAIN", "EVAL", "PREDICT"):
        steps = [_whole(card.get("steps", {}).get(mode, 0)) for card in cards]
        columns[f"steps_{mode.lower()}"] = pa.array(steps, pa.int64())
    columns["workers"] = pa.array([_whole(card.get("workers")) for card in cards], pa.int64())
    for name in ("command", "tags", "problems"):
        columns[name] = pa.array(
            [[str(one) for one in card.get(name, [])] for card in cards], pa.list_(pa.string())
        )
    found = [card.get("findings", {}) for card in cards]
    columns["findings"] = pa.array([_whole(one.get("count", 0)) for one in found], pa.int64())
    columns["rules"] = pa.array(
        [[str(rule) for rule in one.get("rules", [])] for one in found], pa.list_(pa.string())
    )
    columns["first_rule"] = pa.array([one.get("first", {}).get("rule") for one in found], pa.string())
    columns["first_since_step"] = pa.array(
        [_whole(one.get("first", {}).get("since_step")) for one in found], pa.int64()
    )
    for name, mode in (("loss", "TRAIN"), ("eval_loss", "EVAL")):
        of = [_scalar(card, str(card.get(name, "")), mode) for card in cards]
        columns[f"{name}_name"] = pa.array([card.get(name) or None for card in cards], pa.string())
        for value in ("last", "min"):
            columns[f"{name}_{value}"] = pa.array([_number(one.get(value)) for one in of], pa.float64())
    scalar = pa.struct(
        [("name", pa.string()), ("mode", pa.string()), ("count", pa.int64()), ("last_step", pa.int64())]
        + [(name, pa.float64()) for name in ("first", "last", "min", "max")]
    )
    columns["scalars"] = pa.array(
        [[_struct(one) for one in card.get("scalars", [])] for card in cards], pa.list_(scalar)
    )
    parameters = [card.get("parameters", {}) for card in cards]
    columns["parameters"] = pa.array([json.dumps(one) for one in parameters], pa.string())
    for name in sorted({name for one in parameters for name in one})[:MAX_PARAMETERS]:
        columns[f"param.{name}"] = _parameter([one.get(name) for one in parameters])
    return pa.table(columns)


def _scalar(card: dict[str, Any], name: str, mode: str) -> dict[str, Any]:
    return next((s for s in card.get("scalars", []) if (s.get("name"), s.get("mode")) == (name, mode)), {})


def _struct(one: dict[str, Any]) -> dict[str, Any]:
    numbers = {name: _number(one.get(name)) for name in ("first", "last", "min", "max")}
    counts = {name: _whole(one.get(name)) for name in ("count", "last_step")}
    return {"name": str(one.get("name", "")), "mode": str(one.get("mode", "")), **counts, **numbers}


def _write(table: Any, path: str) -> None:
    import pyarrow.parquet as pq

    with whole_file(path) as file:
        pq.write_table(table, file, compression="zstd")


def main(words: Sequence[str] | None = None) -> int:
    """Takes FILE, then the words for `luff runs`."""
    path, *rest = sys.argv[1:] if words is None else words
    try:
        import pyarrow.parquet as _  # noqa: F401
    except ImportError:
        print("luff: runs: --parquet needs pyarrow; install it: pip install pyarrow", file=sys.stderr)
        return WRONG_USAGE

    def write(printed: bytes) -> str:
        cards = [json.loads(line) for line in printed.splitlines() if line.strip()]
        _write(table_of(cards), path)
        return f": {len(cards)} runs"

    return make_file(path, "table", ["runs", "--json", *rest], write)


if __name__ == "__main__":
    sys.exit(main())
