"""Parts of `./dev gpu` that start jobs of their own: programs with a fault, a stop, the kernels under a sanitizer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harm import finished

HERE = Path(__file__).resolve().parent
BENCHMARKS = HERE.parents[1] / "benchmarks"
Row = dict[str, Any]
#: Programs of the public fault bench that rules name by values of tensors, and one that is healthy.
FAULTS = ("pf01", "pf07", "pf09", "pf34")
HEALTHY = ("ph01",)
LATER = 3  # steps by which a stop may come later than on the CPU
WITHIN_S = 120  # a job of its own
AT_ONCE = 4  # jobs


def _row(check: str, good: bool | None, detail: str = "", **more: Any) -> Row:
    status = "skipped" if good is None else "passed" if good else "failed"
    return {"check": check, "status": status, "detail": detail, **more}


def _luff_run(folder: Path, place: str, options: list[str], command: list[str]) -> tuple[int, str]:
    """Runs a job under `luff run`; returns how it ended, and what it printed as errors."""
    settings = folder / "luff.toml"
    settings.write_text(f"[capture]\naccelerators = {'true' if place == 'cuda' else 'false'}\n")
    beside = shutil.which("luff", path=str(Path(sys.executable).parent))
    luff = os.environ.get("LUFF_EXECUTABLE") or beside or shutil.which("luff") or "luff"
    whole = [
        luff,
        "run",
        "--run",
        str(folder / "run"),
        "--config",
        str(settings),
        *options,
        "--",
        sys.executable,
    ]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(BENCHMARKS), os.environ.get("PYTHONPATH", "")])
    }
    done = finished([*whole, *command], folder, environment, WITHIN_S)
    return done.returncode, done.stderr


def _named(folder: Path, place: str, program: str) -> tuple[list[str], int, str]:
    """Returns the rules that said something of a program, how it ended, and what it printed."""
    folder.mkdir(parents=True)
    found = folder / "findings"
    ended, said = _luff_run(
        folder, place, ["--findings", str(found)], [str(HERE / "fault.py"), program, place]
    )
    lines = found.read_text().splitlines() if found.exists() else []
    return sorted({json.loads(line)["rule"] for line in lines if line.startswith("{")}), ended, said


def faults(
    folder: Path, places: tuple[str, str] = ("cpu", "cuda"), programs: tuple[str, ...] = FAULTS + HEALTHY
) -> Iterator[Row]:
    """Programs with a known fault are named on the GPU as on the CPU; a healthy one is silent."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        jobs = {
            program: [
                pool.submit(_named, folder / f"{program}_{i}", place, program)
                for i, place in enumerate(places)
            ]
            for program in programs
        }
        for program, done in jobs.items():
            named = [job.result() for job in done]
            rules = [rules for rules, _, _ in named]
            good = rules[1] == rules[0] and bool(rules[0]) == (program not in HEALTHY)
            good = good and all(ended == 0 for _, ended, _ in named)  # what did not train is silent, too
            detail = f"{places[0]}: {rules[0]}, {places[1]}: {rules[1]}"
            if not good:
                detail += " " + named[1][2][-300:]
            yield _row(
                f"{program} is named as on the CPU" if rules[0] else f"{program} is silent", good, detail
            )


def stop(folder: Path, places: tuple[str, str] = ("cpu", "cuda")) -> Iterator[Row]:
    """A loss that becomes NaN stops the job at most three steps later than on the CPU. A step takes half a second."""

    def job(of: Path, place: str) -> str:
        of.mkdir()
        command = [str(HERE / "nan.py"), place, str(of / "steps")]
        return _luff_run(of, place, ["--on-finding", "stop"], command)[1]

    with ThreadPoolExecutor(len(places)) as pool:
        folders = [folder / str(i) for i in range(len(places))]
        said = list(pool.map(job, folders, places))
    last = []
    for of, place, text in zip(folders, places, said, strict=True):
        if not (of / "steps").exists():
            yield _row(f"a stop on {place}", False, text[-400:])
            return
        last.append(len((of / "steps").read_text().split()))
    good = 0 < last[0] < 60 and last[1] <= last[0] + LATER
    yield _row("steps until the stop", good, f"{places[0]} {last[0]}, {places[1]} {last[1]}")


def _sanitizer() -> str | None:
    places = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]
    tools = [shutil.which("compute-sanitizer")] + [f"{p}/bin/compute-sanitizer" for p in places if p]
    return next((tool for tool in tools if tool and os.access(tool, os.X_OK)), None)


def sanitizer(_: Path, tool: str | None = None, library: str = "libcuda.so.1") -> Iterator[Row]:
    """The kernels under compute-sanitizer: no access out of bounds, no race in shared memory."""
    tool = tool or _sanitizer()
    for check in ("memcheck", "racecheck"):
        if tool is None:
            yield _row(check, None, "compute-sanitizer is not installed")
            continue
        command = [tool, "--tool", check, "--error-exitcode", "86", sys.executable, str(HERE / "kernels.py"),
                   "--gigabytes", "0", "--library", library]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
        except subprocess.TimeoutExpired:
            yield _row(check, None, f"not done in {WITHIN_S} s")
            continue
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        wrong = [row["check"] for row in rows if row["status"] == "failed"]
        ran = any(row["status"] == "passed" for row in rows)
        said = " ".join(line for line in done.stdout.splitlines() if line.startswith("="))
        if not ran and done.returncode == 0:
            yield _row(check, None, rows[0]["detail"] if rows else "the kernels did not run")
        else:
            yield _row(
                check,
                done.returncode == 0 and not wrong,
                f"{said[-300:]} {done.stderr[-200:]} {wrong}".strip(),
            )
