"""Mutants of ordinary training scripts: `./dev bench detect --mutants COMMAND`.

    list                        lists operators, and counts programs and mutants
    show PROGRAM OPERATOR       prints the diff of a mutant
    prove [--seeds 0,1,2]       trains all bare and writes proved.json: which mutants do harm
    train DIR                   trains each proved mutant under a plain `luff run`, keeps the runs in DIR
    judge DIR [--apart]         judges kept runs with today's rules; --apart includes the half that is kept apart

`--program`, `--operator` and `--develop` select some of them; `-j` sets how many train at once.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mutants.bare import TIMEOUT_S, environment, score
from mutants.halves import ORIGINAL, all_mutants, half, mutate, programs
from mutants.judge import judge, table
from mutants.operators import OPERATORS

PROVED = Path(__file__).parent / "proved.json"


def verdict(operator: str, base: list[float], own: list[float | None]) -> str:
    """Returns ``fault``, ``healthy``, or why the mutant is dropped."""
    if any(value is None for value in own):
        return "does not run"
    mean = sum(base) / len(base)
    spread = max(max(base) - min(base), 0.02 * abs(mean), 1e-6)
    harm = any(value < mean - 2 * spread for value in own if value is not None)
    if operator == ORIGINAL or not OPERATORS[operator].rules:
        return "does harm" if harm else "healthy"
    return "fault" if harm or OPERATORS[operator].contract else "does no harm"


def prove(chosen: list[tuple[str, str, str]], seeds: list[int], folder: Path, jobs: int) -> None:
    """Trains mutants bare, and writes their scores and verdicts."""
    known: dict[str, Any] = json.loads(PROVED.read_text()) if PROVED.exists() else {}
    scripts = {}
    for program, operator, text in chosen:
        scripts[program, operator] = folder / program / f"{operator}.py"
        scripts[program, operator].parent.mkdir(parents=True, exist_ok=True)
        scripts[program, operator].write_text(text)
    with ThreadPoolExecutor(jobs) as pool:
        tasks = {key: [pool.submit(score, script, seed) for seed in seeds] for key, script in scripts.items()}
        for (program, operator), futures in tasks.items():
            scores = [future.result() for future in futures]
            if operator == ORIGINAL and any(value is None for value in scores):
                raise SystemExit(f"{program} fails by itself: {scripts[program, operator]}")
            row = known.setdefault(program, {})
            if operator != ORIGINAL and ORIGINAL not in row:
                raise SystemExit(f"{program} itself was not trained yet: prove --program {program}")
            base = scores if operator == ORIGINAL else row[ORIGINAL]["scores"]
            row[operator] = {"scores": scores, "verdict": verdict(operator, base, scores)}
            print(f"{program:24} {operator:32} {row[operator]['verdict']:14} {scores}", flush=True)
            PROVED.write_text(
                json.dumps(known, indent=1, sort_keys=True) + "\n"
            )  # an interruption loses nothing


def train(luff: str, folder: Path, program: str, operator: str, seed: int) -> None:
    """Trains a mutant under `luff run`; writes the run, its output and its exit code into `folder`."""
    shutil.rmtree(folder, ignore_errors=True)  # left by an interrupted training
    folder.mkdir(parents=True)
    script = folder / "train.py"
    script.write_text(mutate(program, operator) or "")
    command = [luff, "run", "--run", str(folder / "run"), "--", sys.executable, str(script)]
    with (folder / "output.txt").open("wb") as output:
        done = subprocess.run(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | environment(seed),
            timeout=TIMEOUT_S,
            check=False,
        )
    about = {
        "program": program,
        "operator": operator,
        "half": half(program, operator),
        "exit": done.returncode,
    }
    (folder / "mutant.json").write_text(json.dumps(about))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["list", "show", "prove", "train", "judge"])
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--program", action="append", default=[])
    parser.add_argument("--operator", action="append", default=[])
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--develop", action="store_true", help="only the half to develop on")
    parser.add_argument("--apart", action="store_true", help="reads what is kept apart")
    parser.add_argument("--luff", default=os.environ.get("LUFF_EXECUTABLE", "luff"))
    parser.add_argument("-j", type=int, default=2)
    options = parser.parse_intermixed_args()
    if options.command == "show":
        program, operator = options.rest
        pair = mutate(program, ORIGINAL), mutate(program, operator)
        if pair[1] is None:
            sys.exit(f"{operator} does not apply to {program}")
        sys.stdout.writelines(
            difflib.unified_diff(*[(t or "").splitlines(True) for t in pair], program, operator)
        )
        return
    if options.command == "judge":
        table(judge(options.luff, Path(options.rest[0]), apart=options.apart))
        return
    chosen = all_mutants(options.program or programs(), options.operator or [ORIGINAL, *OPERATORS])
    if options.develop:
        chosen = [m for m in chosen if half(*m[:2]) == "develop"]
    if options.command == "list":
        for name, operator in OPERATORS.items():
            own = [m[0] for m in chosen if m[1] == name]
            print(f"{name:34} {len(own):3}  {'/'.join(operator.rules) or 'healthy'}")
        print(f"{len(programs())} programs, {len(OPERATORS)} operators, {len(chosen)} scripts")
    elif options.command == "prove":
        folder = Path(options.rest[0]) if options.rest else Path("build", "mutants")
        prove(chosen, [int(s) for s in options.seeds.split(",")], folder, options.j)
    else:
        if not PROVED.exists():
            sys.exit(f"{PROVED.name} is missing: nothing was proved yet, `prove` writes it")
        proved = json.loads(PROVED.read_text())
        wanted = [
            m[:2] for m in chosen if proved.get(m[0], {}).get(m[1], {}).get("verdict") in ("fault", "healthy")
        ]
        with ThreadPoolExecutor(options.j) as pool:
            for done in [
                pool.submit(train, options.luff, Path(options.rest[0], f"{p}-{o}"), p, o, 0)
                for p, o in wanted
                if not Path(options.rest[0], f"{p}-{o}", "mutant.json").exists()
            ]:
                done.result()


main()
