"""The cost of watching XGBoost: Luff's hook and smdebug's, each against the bare training.

Whole trainings alternate in one process with one XGBoost thread: bare, Luff, bare, smdebug, bare, and so on. Each
runs between two bare ones and is compared with their mean, by CPU time of the whole process (including background
threads and the wait for the last round). The median ratio of 16 pairs decides. `late` compares the cost of a round in
the last quarter of a long training with that in the first: it must not grow with the number of trees.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from _gates import gate, measured, say

TREES = ["feature_importance", "trees"]
DEFAULT_LIMIT, TREES_LIMIT, PEER_LIMIT = 1.03, 1.10, 1.0
LATE_ROUNDS = 1200


def _data(rows: int, columns: int) -> Any:
    import xgboost as xgb

    random = np.random.RandomState(0)
    x = random.rand(rows, columns).astype(np.float32)
    y = (x[:, 0] * x[:, 1] + x[:, 2] + 0.3 * random.randn(rows) > 0.75).astype(int)
    cut = rows * 4 // 5
    return xgb.DMatrix(x[:cut], label=y[:cut]), xgb.DMatrix(x[cut:], label=y[cut:])


#: Name, rows, columns, depth, rounds. The limits on the ratio to the bare training apply to the first only.
JOBS = (("20k x 30, depth 6", 25_000, 30, 6, 150), ("4k x 20, depth 4", 5_000, 20, 4, 150))


@contextmanager
def _luff(folder: Path, collections: list[str], interval: int) -> Iterator[list[Any]]:
    import luff.xgboost

    with luff.xgboost.Callback(folder / "run", collections=collections, save_interval=interval) as hook:
        yield [hook]
    if hook.guard.count:
        raise RuntimeError(f"Luff's hook failed: {hook.guard.first}")


@contextmanager
def _smdebug(folder: Path, collections: list[str], interval: int) -> Iterator[list[Any]]:
    from smdebug import SaveConfig  # type: ignore[import-not-found]
    from smdebug.xgboost import Hook  # type: ignore[import-not-found]

    hook = Hook(
        out_dir=str(folder / "trial"),
        include_collections=collections or None,
        save_config=SaveConfig(save_interval=interval),
    )
    try:
        yield [hook]
    finally:
        hook.close()


@contextmanager
def _bare(_folder: Path, _collections: list[str], _interval: int) -> Iterator[list[Any]]:
    yield []


def _peer() -> str:
    """Returns the reason why smdebug cannot take part; empty if it can."""
    reason = os.environ.get("LUFF_BENCH_NO_PEERS", "")
    if reason:
        return reason
    try:
        import pkg_resources

        found = pkg_resources.get_distribution

        # smdebug looks up the version of the distribution "xgboost"; the CPU build has another name.
        def get_distribution(name: Any) -> Any:
            return found("xgboost-cpu" if name == "xgboost" else name)

        pkg_resources.get_distribution = get_distribution  # type: ignore[assignment]
        import smdebug.xgboost  # type: ignore[import-not-found]  # noqa: F401
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    logging.getLogger("smdebug").setLevel(logging.ERROR)
    return ""


def _train(job: tuple[Any, Any], depth: int, rounds: int, watch: Callable[..., Any], *how: Any) -> float:
    """Returns the CPU seconds of one training."""
    import xgboost as xgb

    dtrain, dval = job
    parameters = {"objective": "binary:logistic", "max_depth": depth, "nthread": 1, "verbosity": 0}
    folder = Path(tempfile.mkdtemp(prefix="luff-bench-"))
    try:
        start = time.process_time()
        with watch(folder, *how) as callbacks:
            xgb.train(
                parameters, dtrain, rounds, evals=[(dtrain, "train"), (dval, "validation")],
                verbose_eval=False, callbacks=callbacks,
            )  # fmt: skip
        return time.process_time() - start
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _late(job: tuple[Any, Any]) -> tuple[float, float]:
    """Returns microseconds per round in the hook, for the first and the last quarter of a long training."""
    import luff.xgboost
    import xgboost as xgb

    spent: list[float] = []
    original = luff.xgboost.Callback.round

    def timed(self: Any, *arguments: Any) -> None:
        start = time.thread_time()
        original(self, *arguments)
        spent.append(time.thread_time() - start)

    folder = Path(tempfile.mkdtemp(prefix="luff-bench-"))
    luff.xgboost.Callback.round = timed  # type: ignore[method-assign]
    try:
        with luff.xgboost.Callback(folder / "run", collections=TREES, save_interval=1) as hook:
            xgb.train(
                {"objective": "binary:logistic", "max_depth": 4, "nthread": 1, "eta": 0.02, "verbosity": 0},
                job[0], LATE_ROUNDS, verbose_eval=False, callbacks=[hook],
            )  # fmt: skip
    finally:
        luff.xgboost.Callback.round = original  # type: ignore[method-assign]
        shutil.rmtree(folder, ignore_errors=True)
    quarter = len(spent) // 4
    return 1e6 * sum(spent[:quarter]) / quarter, 1e6 * sum(spent[-quarter:]) / quarter


def measure(pairs: int = 16) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns results and gates, and prints the table."""
    try:
        import xgboost
    except ImportError:
        print("XGBoost: skipped, it is not installed")
        return [], []
    no_peer = _peer()
    print(
        f"XGBoost {xgboost.__version__}; smdebug: {no_peer or 'in the same process'}; load {os.getloadavg()[0]:.1f}"
    )
    rows = [("luff, defaults", _luff, [], 10), ("luff, trees and importance every round", _luff, TREES, 1)]
    if not no_peer:
        rows += [
            ("smdebug, defaults", _smdebug, [], 10),
            ("smdebug, trees and importance", _smdebug, TREES, 1),
        ]
    results: list[dict[str, Any]] = []
    gates: list[dict[str, Any]] = []
    for place, (title, count, columns, depth, rounds) in enumerate(JOBS):
        job = _data(count, columns)
        ratios: dict[str, list[float]] = {name: [] for name, *_ in rows}
        _train(job, depth, rounds, _bare, [], 0)
        before = _train(job, depth, rounds, _bare, [], 0)
        for _ in range(pairs):
            for name, watch, collections, interval in rows:
                with_it = _train(job, depth, rounds, watch, collections, interval)
                after = _train(job, depth, rounds, _bare, [], 0)
                ratios[name].append(with_it / ((before + after) / 2))
                before = after
        print(f"{title}, {rounds} rounds of {1e3 * before / rounds:.2f} ms")
        limits = {"luff, defaults": DEFAULT_LIMIT, "luff, trees and importance every round": TREES_LIMIT}
        for name, values in ratios.items():
            value = measured(values)
            line = f"  {name:40s} {value.median:7.3f}  [{value.low:.3f}, {value.high:.3f}]"
            if place == 0 and name in limits:
                gates.append(gate(f"xgboost {name}", value, limits[name]))
                line += f"  <= {limits[name]:.2f} {say(gates[-1]['ok'])}"
            print(line)
            results.append(
                {"job": title, "row": name, "ratio": value.median, "interval": [value.low, value.high]}
            )
        if not no_peer:
            for mine, theirs in (
                ("luff, defaults", "smdebug, defaults"),
                ("luff, trees and importance every round", "smdebug, trees and importance"),
            ):
                value = measured([a / b for a, b in zip(ratios[mine], ratios[theirs], strict=True)])
                gates.append(gate(f"xgboost {mine} / smdebug ({title})", value, PEER_LIMIT))
                print(f"  {mine} / smdebug {value.median:.3f} <= {PEER_LIMIT:.2f} {say(gates[-1]['ok'])}")
    first, last = _late(_data(5_000, 20))
    print(
        f"  a round in the hook: {first:.0f} us in the first quarter of {LATE_ROUNDS}, {last:.0f} us in the last"
    )
    results.append({"job": "late", "row": "hook", "first_us": first, "last_us": last})
    return results, gates


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    measure(int(sys.argv[1]) if len(sys.argv) > 1 else 16)
