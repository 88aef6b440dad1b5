"""Detection quality on the fault bench: `./dev bench detect [--seeds 0,1,7] [--program ID]... [--json FILE]`.

Every program of benchmarks/faultbench runs as an ordinary script under `luff run`, faulty ones also in their repaired
form ("twin"), and the bench's own scorer judges the findings (in its command mode, `--unit pass`). Several trainings
run side by side, since findings do not depend on time.

    ./dev bench detect --program pf16 --program ph14     # only these
    ./dev bench detect --keep DIR                        # keeps the runs
    ./dev bench detect --replay DIR                      # applies today's rules to kept runs, without training
    ./dev bench detect --table FILE.json                 # prints the tables of docs/detection.md from --json's file
    ./dev bench detect --cost                            # measures the cost of the default rules' needs
    ./dev bench detect --mutants COMMAND                 # programs not used to develop the rules: mutants/README.md

Programs of gradient boosting (px01, ...) take part where xgboost is installed; their unit is the boosting round.

A finding's step counts forward and backward passes of the whole process. Passes that a program makes while it is
being built (a pre-training) come before batch 0 and are subtracted. A finding about an evaluation gets the TRAIN step
before it. A finding that follows from another one (`leader`) is reported under that one, and is not an alert.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _detect_cost import capture, cost
from _detect_table import per_rule_table, tables, write_docs
from _gates import luff_command
from _remedies import mark_remedies

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 300


@dataclass(frozen=True)
class Training:
    """One training of one program."""

    program: str
    seed: int
    fixed: bool

    @property
    def key(self) -> str:
        """The name of its folder."""
        return f"{self.program}-{self.seed}{'-fixed' if self.fixed else ''}"


def search_path() -> str:
    """Returns the PYTHONPATH for a process that needs the packages of this folder."""
    return os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])


def run(luff: str, training: Training, folder: Path, extra: list[str]) -> int:
    """Trains under `luff run`, with the run and its findings in `folder`. Returns the exit code."""
    folder.mkdir(parents=True)
    command = [
        luff,
        "run",
        "--run",
        str(folder / "run"),
        "--findings",
        str(folder / "raw.jsonl"),
        *extra,
        "--",
    ]
    command += [sys.executable, "-m", "faultbench.run", training.program, "--seed", str(training.seed)]
    command += ["--fixed"] if training.fixed else []
    environment = os.environ | {"PYTHONPATH": search_path(), "OMP_NUM_THREADS": "1"}
    with open(folder / "output.txt", "wb") as output:
        done = subprocess.run(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, timeout=TIMEOUT_S, check=False
        )
    (folder / "raw.jsonl").touch()
    return done.returncode


def check(luff: str, folder: Path, extra: list[str]) -> int:
    """Checks the kept runs of a training with today's rules. Returns 0, or the exit code of a check that failed."""
    found, code = b"", 0
    for run_path in sorted(path for path in folder.glob("run*") if (path / "run.json").exists()):
        done = subprocess.run(
            [luff, "check", str(run_path), "--json", *extra],
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        found += done.stdout
        code = code if done.returncode in (0, 1, 3) else done.returncode
    (folder / "raw.jsonl").write_bytes(found)
    return code


_BUILDING = threading.Lock()


def boosting() -> dict[str, Any]:
    """Returns the gradient boosting programs by id; none if xgboost is not installed."""
    if importlib.util.find_spec("xgboost") is None:
        return {}
    found: dict[str, Any] = importlib.import_module("faultbench.xgb").load()
    return found


def passes_of(training: Training, train: bool) -> tuple[int, list[int] | None]:
    """Returns the number of passes during the build, and the batch of each later pass (None if not `train`)."""
    from faultbench import adapters, core
    from faultbench.programs import RUNS

    if training.program not in RUNS:  # a boosting round counts as a step
        job = boosting()[training.program].build(training.seed, training.fixed)
        return 0, list(range(int(job["rounds"])))
    with _BUILDING:  # seeds are global to the process
        building = adapters._Clock()
        with building.watching():
            job = RUNS[training.program].build(training.seed, training.fixed)
        if not train:
            return len(building.passes), None
        clock = adapters._Clock()
        core.seed_all(training.seed + 1)
        with clock.watching():
            core.train(job, clock)
        return len(building.passes), list(clock.passes)


def train_step(run_path: Path, finding: dict[str, Any]) -> int:
    """Returns the TRAIN step at which a finding was made."""
    if finding["mode"] == "TRAIN":
        return int(finding["step"])
    import luff

    with luff.open_trial(run_path) as trial:
        steps = trial.steps("TRAIN")
        before = [s for s in steps if trial.global_step(s, "TRAIN") <= finding["global_step"]]
        return before[-1] if before else 0


def translate(folder: Path, built: int, batches: list[int] | None) -> None:
    """Writes alerts.jsonl in the scorer's format."""
    lines = []
    found = [json.loads(line) for line in (folder / "raw.jsonl").read_text().splitlines()]
    newest = {finding["id"]: finding for finding in found}
    for finding in found:
        if finding.get("leader"):
            continue
        step = train_step(folder / "run", finding) - built
        unit = "pass"
        if batches is not None and 0 <= step < len(batches):
            step, unit = batches[step], "batch"
        alert = {"rule": finding["rule"], "step": max(0, step), "severity": finding["severity"], "unit": unit}
        alert |= {"tensor": finding["tensor"], "cause": finding["cause"], "what": finding["what"]}
        alert["remedy"] = newest[finding["id"]]["remedy"]
        lines.append(json.dumps(alert))
    (folder / "alerts.jsonl").write_text("".join(f"{line}\n" for line in lines))


def watch(training: Training, root: Path, options: argparse.Namespace) -> None:
    """Trains or replays one training, and leaves the scorer's input in its folder."""
    folder = root / training.key
    extra = ["--rules", options.rules] if options.rules else []
    meta = folder / "meta.json"
    if options.replay:
        if not meta.exists():
            return
        known = json.loads(meta.read_text())
        known["exit"] = check(options.luff, folder, extra)
    else:
        shutil.rmtree(folder, ignore_errors=True)
        code = run(options.luff, training, folder, extra)
        built, batches = passes_of(training, bool(options.keep))
        known = {"exit": code, "built": built, "batches": batches}
    translate(folder, known["built"], known["batches"])
    meta.write_text(json.dumps(known))
    if not options.keep and not options.replay:
        shutil.rmtree(folder / "run", ignore_errors=True)


def answer(root: str, program: str, seed: str, *rest: str) -> int:
    """Stands in for the tool that the scorer calls: hands out the alerts found before."""
    fixed, out = rest[:-1] == ("--fixed",), rest[-1]
    folder = Path(root) / Training(program, int(seed), fixed).key
    if not (folder / "meta.json").exists():
        print("this training was not kept")
        return 2
    shutil.copy(folder / "alerts.jsonl", out)
    return int(json.loads((folder / "meta.json").read_text())["exit"])


def trainings_of(options: argparse.Namespace) -> list[Training]:
    """Returns the requested trainings; each faulty program is followed by its twin."""
    from faultbench.programs import RUNS

    known = {**RUNS, **boosting()}
    unknown = [p for p in options.program if p not in known]
    if unknown:
        sys.exit(f"no program is called {unknown[0]!r}; there are {' '.join(known)}")
    chosen = options.program or list(known)
    found = []
    for seed in options.seed_list:
        for program in chosen:
            found.append(Training(program, seed, False))
            if known[program].kind == "fault":
                found.append(Training(program, seed, True))
    return found


def score(root: Path, options: argparse.Namespace, out: Path) -> None:
    """Runs the bench's scorer."""
    from faultbench import score as scorer

    command = f"{sys.executable} {HERE / 'detect.py'} _answer {root} {{program}} {{seed}} {{fixed}} {{out}}"
    arguments = [
        "--command",
        command,
        "--unit",
        "pass",
        *([] if boosting() else ["--no-xgb"]),
        "--seeds",
        options.seeds,
        "--json",
        str(out),
    ]
    if options.program:
        arguments += ["--only", ",".join(options.program)]
    scorer.main(arguments)


def main() -> int:
    """Runs the command line."""
    if sys.argv[1:2] == ["_answer"]:
        return answer(*sys.argv[2:])
    if sys.argv[1:2] == ["--mutants"]:
        command = [sys.executable, "-m", "mutants", *sys.argv[2:]]
        return subprocess.run(command, env=os.environ | {"PYTHONPATH": search_path()}, check=False).returncode
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--program", action="append", default=[], help="id, may be given several times")
    parser.add_argument("--seeds", default="0", help="comma list")
    parser.add_argument("--keep", metavar="DIR", help="keeps runs and findings there")
    parser.add_argument("--replay", metavar="DIR", help="judges the runs that --keep has left there")
    parser.add_argument("--rules", help="as `luff run --rules`; default: all")
    parser.add_argument("--json", metavar="FILE", help="the scorer's results")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="trainings side by side")
    parser.add_argument("--luff", default=luff_command())
    parser.add_argument(
        "--table", metavar="FILE", help="prints Markdown tables of --json's file, runs nothing"
    )
    parser.add_argument(
        "--cost", action="store_true", help="measures the cost of the rules' needs, nothing else"
    )
    parser.add_argument("--write", action="store_true", help="with --table: into docs/ instead")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    options = parser.parse_args()
    sys.path.insert(0, str(HERE))
    if options.table:
        results = json.loads(Path(options.table).read_text())
        if options.write:
            listed = subprocess.run([options.luff, "rules", "--json"], capture_output=True, check=True)
            write_docs(results, {rule["name"]: rule["page"] for rule in json.loads(listed.stdout)})
        else:
            print(tables(results))
        return 0
    if options.cost:
        table, _ = cost(options.luff)
        print(table, flush=True)
        return capture([])
    options.seed_list = [int(seed) for seed in options.seeds.split(",")]
    with tempfile.TemporaryDirectory(prefix="luff-detect-") as scratch:
        root = Path(options.keep or options.replay or scratch).absolute()
        todo = trainings_of(options)
        with ThreadPoolExecutor(max(1, options.jobs)) as pool:
            for done, _ in enumerate(pool.map(lambda t: watch(t, root, options), todo), 1):
                if not options.quiet and done % 20 == 0:
                    print(f"{done} of {len(todo)} trainings", file=sys.stderr, flush=True)
        out = Path(options.json) if options.json else root / "score.json"
        score(root, options, out)
        results = json.loads(out.read_text())
        mark_remedies(results, root)
        out.write_text(json.dumps(results, indent=1) + "\n")
        right = results["summary"]["faults"]["remedy_right"]
        print(f"remedy names the edit that mends: {'-' if right is None else format(right, '.0%')}")
        for row in results["faults"]:
            if row["rule"] and not row.get("remedy_right", True):
                print(f"  not {row['id']}, seed {row['seed']}: {row['rule']}: {row['remedy']}")
        print(per_rule_table(results))
        alarms = results["summary"]["healthy"]["with_alarm"]
        return 1 if results["summary"]["errors"] or alarms else 0


if __name__ == "__main__":
    sys.exit(main())
