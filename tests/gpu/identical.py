"""The part `identical` of `./dev gpu`: each way to train gives the same bits with and without Luff, takes no more
memory of the framework, and is recorded as it was.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import trainings

HERE = Path(__file__).resolve().parent
Row = dict[str, Any]
Outcomes = dict[str, dict[str, Any]]
WITHIN_S = 150
AT_ONCE = max(2, min(8, (os.cpu_count() or 1) // 2))
OTHERS_S = 15  # that processes of a group have once one has failed


def _row(check: str, good: bool | None, detail: str = "", **more: Any) -> Row:
    status = "skipped" if good is None else "passed" if good else "failed"
    return {"check": check, "status": status, "detail": detail, **more}


def _trained(
    command: list[str], device: str, names: list[str], world: int, folder: Path, watch: bool
) -> Outcomes:
    """Trains in processes of their own; returns what came of each name, or why nothing did."""
    folder.mkdir(parents=True, exist_ok=True)
    options = ["--watch", str(folder / "runs")] if watch else []
    started: list[subprocess.Popen[str]] = []
    files = [(folder / f"out{rank}", folder / f"err{rank}") for rank in range(max(world, 1))]
    for rank, (out_file, said_file) in enumerate(files):
        group = (
            ["--rank", str(rank), "--world", str(world), "--store", str(folder / "store")] if world else []
        )
        whole = [*command, device, *options, *group, *names]
        with out_file.open("w") as out_to, said_file.open("w") as said_to:
            started.append(subprocess.Popen(whole, cwd=folder, text=True, stdout=out_to, stderr=said_to))
    late = _ended(started)
    found: Outcomes = {}
    misuse = ""
    for rank, process in enumerate(started):
        out, said = (file.read_text(errors="replace") for file in files[rank])
        said += f" not done in {WITHIN_S} s" if late else ""
        for line in out.splitlines():
            if not line.startswith("{") or not line.endswith("}"):  # one that was ended may be cut off
                continue
            told = json.loads(line)
            if told.get("misuse"):  # of the double
                misuse += told["misuse"]
            if "name" in told and rank == 0:
                found[told["name"]] = told
            elif "name" in told:  # what the other ranks computed counts, too
                mine = found.setdefault(told["name"], {"error": said[-300:]})
                if "digest" in mine and "digest" in told:
                    mine["digest"] += told["digest"]
                elif "error" in told:
                    mine["error"] = told["error"]
        last = (said.strip().splitlines()[-1:] or [f"ended with {process.returncode}"])[0][-300:]
        if process.returncode != 0:  # those that were done before are as they were
            lost = [name for name in names if not {"digest", "error"} & found.get(name, {}).keys()]
            for name in lost or names[-1:]:
                found.setdefault(name, {})["error"] = last
        elif said.strip() and watch:
            for name in names:
                found.setdefault(name, {})["said"] = last
    for name in names if misuse else []:
        found[name] = {"error": misuse[:300]}
    return found


def _ended(started: list[subprocess.Popen[str]]) -> bool:
    """Waits for processes of which the others may wait for one that has failed; returns whether one had to be ended."""
    until = time.monotonic() + WITHIN_S
    while None in (codes := [process.poll() for process in started]) and time.monotonic() < until:
        if any(codes):
            until = min(until, time.monotonic() + OTHERS_S)
        time.sleep(0.05)
    left = [process for process in started if process.poll() is None]
    for process in left:
        process.kill()
        process.wait()
    return bool(left) and not any(process.returncode for process in started if process not in left)


def _recorded(run: Path, bare: dict[str, Any], losses_too: bool) -> str:
    """Returns how a run differs from what a bare training noted; "" if it does not."""
    import luff

    try:
        trial = luff.open_trial(run)
    except Exception as error:  # the others go on
        return repr(error)[:300]
    names = trial.tensors()
    wrong: list[str] = []
    for full, expected in bare["sums"].items():
        prefix = "gradient/" if full.startswith("gradient/") else ""
        end = "_" + full.removeprefix("gradient/")
        mine = [n for n in names if n.endswith(end) and n.startswith("gradient/") == bool(prefix)]
        if len(mine) != 1:
            wrong.append(f"{full} is {mine}")
            continue
        tensor = trial.tensor(mine[0])
        # In their order; with accumulated gradients weights are recorded between updates, too.
        summaries = iter([tensor.summary(step) for step in tensor.steps()])
        for update, value in enumerate(expected):
            if not any(one and abs(one["sum"] - value) <= 2e-6 * one["l1"] + 1e-9 for one in summaries):
                wrong.append(f"{full} lacks {value}, before update {update}")
                break
    losses = [n for n in names if n.endswith("Loss_output_0")]
    values = [float(v) for n in losses for v in trial.scalars(n)["value"]]
    for loss in bare["losses"] if losses_too else []:
        if not any(abs(v - loss) <= 1e-5 * abs(loss) for v in values):
            wrong.append(f"no loss {loss} in {values[:4]}...")
            break
    if wrong:
        reasons = sorted({f"{gap['reason']}" for gap in trial.gaps()})
        wrong.append(f"gaps: {reasons}")
    return "; ".join(wrong[:4])


def identical(
    folder: Path,
    device: str = "cuda",
    names: list[str] | None = None,
    watched_by: list[str] | None = None,
) -> Iterator[Row]:
    """Trains each way bare and watched. `watched_by`: what trains watched, if not trainings.py."""
    names = names or [n for n in trainings.CASES if device == "cuda" or n not in trainings.ONLY_CUDA]
    groups: list[tuple[list[str], int]] = [([n], trainings.ALONE[n]) for n in names if n in trainings.ALONE]
    together = [n for n in names if n not in trainings.ALONE]
    compiled = [n for n in together if n in trainings.COMPILED]
    groups += [([n], 0) for n in compiled]  # each takes a while
    groups.insert(0, ([n for n in together if n not in compiled], 0))
    plain = [sys.executable, str(HERE / "trainings.py")]
    more: list[str] = []
    compared = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        jobs = [
            [
                pool.submit(_trained, command, device, of, world, folder / kind / str(i), kind == "watched")
                for kind, command in (("bare", plain), ("watched", watched_by or plain))
            ]
            for i, (of, world) in enumerate(groups)
            if of
        ]
        places = [(i, of) for i, (of, _) in enumerate(groups) if of]
        for (i, of), (bare_job, watched_job) in zip(places, jobs, strict=True):
            bare, watched = bare_job.result(), watched_job.result()
            for name in of:
                without, beside = bare.get(name, {}), watched.get(name, {})
                if "digest" not in without or "error" in without:
                    yield _row(f"{name}: same bits", None, f"cannot be trained here: {without.get('error')}")
                    continue
                if "digest" not in beside or "error" in beside:
                    yield _row(f"{name}: same bits", False, f"only watched: {beside.get('error')}")
                    continue
                said = " ".join(filter(None, (beside.get("said"), beside.get("errors"))))
                good = beside["digest"] == without["digest"] and not beside.get("errors")
                yield _row(f"{name}: same bits", good, said)
                if name in trainings.COMPILED:  # what a compiler tries takes memory, more or less of it
                    without["peak"] = beside["peak"] = 0
                compared += 1
                if beside["peak"] > without["peak"]:
                    more.append(f"{name} {beside['peak'] - without['peak']} bytes")
                recorded = trainings.RECORDED[name]
                if recorded != trainings.NOTHING:
                    run = folder / "watched" / str(i) / "runs" / name
                    wrong = _recorded(run, without, recorded == trainings.VALUES)
                    yield _row(f"{name}: recorded as it was", not wrong, wrong)
    if device == "cuda":
        check = f"memory of the framework is as without Luff, in {compared} trainings"
        yield _row(check, not more if compared else None, ", ".join(more))
