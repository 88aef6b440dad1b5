"""The cost of watching LightGBM with default settings: `lgb.train` with and without `luff.lightgbm.Callback`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from _pairs import compare

LIMIT = 1.03
#: Name, rows, columns, leaves, rounds; a round takes 5 ms or more.
JOBS = (("40k x 30, 31 leaves", 50_000, 30, 31, 400), ("10k x 100, 63 leaves", 12_500, 100, 63, 150))


def measure() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns rows of the table, and their gates."""
    found = [_compared(*job) for job in JOBS]
    return [row for row, _ in found], [held for _, held in found]


def _compared(
    name: str, rows: int, columns: int, leaves: int, rounds: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    import lightgbm as lgb
    import luff.lightgbm

    random = np.random.RandomState(0)
    x = random.rand(rows, columns)
    y = (x[:, 0] * x[:, 1] + x[:, 2] + 0.3 * random.randn(rows) > 0.75).astype(int)
    cut = rows * 4 // 5
    parameters = {"objective": "binary", "num_leaves": leaves, "num_threads": 1, "verbosity": -1}
    train = lgb.Dataset(x[:cut], y[:cut]).construct()
    validation = lgb.Dataset(x[cut:], y[cut:], reference=train).construct()

    def bare(callbacks: Any = None) -> None:
        lgb.train(parameters, train, rounds, valid_sets=[train, validation], callbacks=callbacks)

    def watched(run: Path) -> None:
        with luff.lightgbm.Callback(run) as hook:
            bare([hook])
        if hook.guard.count:
            raise RuntimeError(f"Luff's hook failed: {hook.guard.first}")

    return compare(f"LightGBM, {name}", bare, watched, LIMIT, pairs=16)
