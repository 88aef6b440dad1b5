"""Detection: runs faultbench's programs under `luff run` and prints what was found.

    python benchmarks/detect.py                    # the healthy programs; exit 1 if any is not silent
    python benchmarks/detect.py --all --seeds 0,1  # faults too: detected, late, wrong rule or missed
    python benchmarks/detect.py --twins            # and the repaired programs of the faults
    python benchmarks/detect.py pf01 ph14          # these
    python benchmarks/detect.py --all --twins --json R.json && python benchmarks/detect.py --table R.json

The last one prints the table of docs/rules/detection.md. A finding's step counts forward and backward passes; where a
program has several in a batch it is translated by a reference training, as the bench's own score does.

Faults of rules that this version does not have are told apart: "no rule" means that none of the expected names is
one of ours.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def known_rules(luff: str) -> set[str]:
    """Names of the built-in rules."""
    done = subprocess.run([luff, "rules", "--json"], capture_output=True, text=True, check=True)
    return {rule["name"] for rule in json.loads(done.stdout)}


def findings_of(luff: str, program: str, seed: int, fixed: bool) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, findings and stderr of one training under `luff run`."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "findings.jsonl"
        command = [
            luff,
            "run",
            "--run",
            f"{folder}/run",
            "--findings",
            str(out),
            "--",
            sys.executable,
            "-m",
            "faultbench.run",
        ]
        command += [program, "--seed", str(seed)] + (["--fixed"] if fixed else [])
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
        }
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        lines = out.read_text().splitlines() if out.exists() else []
        return done.returncode, [json.loads(line) for line in lines], done.stderr


def batches_of(program: str, seed: int) -> list[int]:
    """The batch of each forward-and-backward pass, from the same training without Luff.

    Passes of a pre-training come before batch 0: `luff run` sees them too.
    """
    sys.path.insert(0, str(HERE))
    from faultbench import adapters, core
    from faultbench.programs import RUNS

    clock = adapters._Clock()
    with clock.watching():
        job = RUNS[program].build(seed, False)
        core.seed_all(seed + 1)
        core.train(job, clock)
    return list(clock.passes)


def verdict(label: dict[str, Any], findings: list[dict[str, Any]], ours: set[str], seed: int) -> str:
    """What the findings are worth on a program with a fault."""
    expected = set(label["expect_any"])
    if any(f["rule"] in expected for f in findings):
        batches = batches_of(label["id"], seed)
        for f in findings:
            f["step"] = batches[f["step"]] if f["step"] < len(batches) else f["step"]
    right = [f for f in findings if f["rule"] in expected and f["step"] >= label["onset_step"]]
    unfair = {f["rule"] for f in findings} - expected - set(label["also_ok"])
    note = f" (unfair: {', '.join(sorted(unfair))})" if unfair else ""
    if right:
        first = min(f["step"] for f in right)
        which = next(f for f in right if f["step"] == first)
        note = f" by {which['rule']}/{which['cause']}" + note
        return ("detected" if first <= label["detect_by_step"] else "late") + f" at {first}" + note
    if unfair:
        return "wrong rule" + note
    if findings:
        return "consequence only: " + ", ".join(sorted({f"{f['rule']}/{f['cause']}" for f in findings}))
    return "missed" if expected & ours else "no rule"


def table(results: list[dict[str, Any]], labels: dict[str, Any]) -> str:
    """Markdown: one row per fault, with what was said about it and about its repaired twin."""
    lines = ["| fault | what | verdict | repaired |", "| --- | --- | --- | --- |"]
    for program in sorted({r["program"] for r in results if labels[r["program"]]["kind"] == "fault"}):
        own = [r for r in results if r["program"] == program]
        faulty = "; ".join(dict.fromkeys(r["verdict"] for r in own if not r["fixed"]))
        fixed = "; ".join(dict.fromkeys(r["verdict"] for r in own if r["fixed"]))
        lines.append(f"| {program} | {labels[program]['title']} | {faulty} | {fixed or '-'} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("programs", nargs="*", help="ids; default: the healthy PyTorch programs")
    parser.add_argument("--all", action="store_true", help="faults too")
    parser.add_argument("--twins", action="store_true", help="repaired programs of the faults too")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--luff", default=str(Path(sys.executable).parent / "luff"))
    parser.add_argument("--json", help="write results to this file")
    parser.add_argument(
        "--table", nargs="+", help="print the table of results that --json has written, and run nothing"
    )
    options = parser.parse_args()
    labels = {
        label["id"]: label for label in json.loads((HERE / "faultbench/public/labels.json").read_text())
    }
    if options.table:
        print(table([r for file in options.table for r in json.loads(Path(file).read_text())], labels))
        return 0
    ours = known_rules(options.luff)
    wanted = options.programs or [
        i for i in labels if options.all or options.twins or labels[i]["kind"] == "healthy"
    ]
    if options.twins and not options.all and not options.programs:
        wanted = [i for i in wanted if labels[i]["kind"] == "fault"]
    results, alarms = [], 0
    for program in wanted:
        label = labels[program]
        for seed in map(int, options.seeds.split(",")):
            for fixed in (False, True) if options.twins and label["kind"] == "fault" else (False,):
                code, findings, err = findings_of(options.luff, program, seed, fixed)
                rules = {f["rule"] for f in findings}
                if label["kind"] == "healthy" or fixed:
                    fair = set(label.get("twin_also_ok" if fixed else "also_ok", []))
                    text = "silent" if not rules - fair else "ALARM"
                else:
                    text = verdict(label, findings, ours, seed)
                if code != 0 or ("luff: ok" not in err and "luff: done" not in err):
                    text = f"ERROR (exit code {code}): {err.strip().splitlines()[-1] if err.strip() else ''}"
                alarms += text.startswith(("ALARM", "ERROR"))
                name = program + (" repaired" if fixed else "")
                print(f"{name:<14} seed {seed}  {text}", flush=True)
                for f in findings:
                    print(
                        f"    {f['rule']}/{f['cause']} {f['severity']} step {f['step']} {f['tensor']}: {f['what']}",
                        flush=True,
                    )
                results.append(
                    {"program": program, "seed": seed, "fixed": fixed, "verdict": text, "findings": findings}
                )
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))
    print(f"{len(results)} trainings, {alarms} alarms or errors")
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main())
