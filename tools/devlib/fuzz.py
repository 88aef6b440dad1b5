"""./dev fuzz and ./dev crash."""

import dataclasses
import re
from pathlib import Path

from devlib import build, setup
from devlib.term import ROOT, Failed, passthrough, run, say

CORPUS = ROOT / "build" / "fuzz-corpus"  # grows from run to run
FOUND = ROOT / "build" / "fuzz-found"  # inputs that break a target


@dataclasses.dataclass
class Target:
    name: str
    program: Path
    seeds: list


def fuzz_arguments(parser):
    parser.add_argument("names", nargs="*", metavar="NAME", help="targets (default: all)")
    parser.add_argument("--seconds", type=int, default=60, help="time for each target (default: 60)")
    parser.add_argument("--list", action="store_true", help="only list the targets")


def fuzz_main(args):
    setup.ensure_packages()
    ok, why = build.available("asan")
    if not ok:
        raise Failed(f"fuzz targets need clang: {why}")
    known = targets()
    if args.list:
        for target in known:
            say(target.name)
        return 0
    unknown = sorted(set(args.names) - {t.name for t in known})
    if unknown:
        raise Failed(
            f"no fuzz target {unknown[0]!r}; there are: {', '.join(t.name for t in known) or 'none'}"
        )
    bad = 0
    for target in known:
        if not args.names or target.name in args.names:
            ok, what = run_target(target, args.seconds)
            bad += not ok
            say(f"  {target.name}: {what}")
    return 1 if bad else 0


def targets():
    """Builds all fuzz targets and lists them."""
    folder = build.configure("asan")
    if (folder / "fuzzers.txt").read_text().strip():
        build.build("asan", "luff_fuzzers")
    rows = [line.split("|") for line in (folder / "fuzzers.txt").read_text().splitlines() if line]
    return [
        Target(
            name,
            Path(program),
            [
                Path(s)
                for s in (*seeds.split(";"), ROOT / "testdata" / "fuzz" / name)
                if s and Path(s).is_dir()
            ],
        )
        for name, program, seeds in rows
    ]


def run_target(target, seconds):
    """Runs one target for a while; returns (survived, message)."""
    corpus = CORPUS / target.name
    corpus.mkdir(parents=True, exist_ok=True)
    FOUND.mkdir(parents=True, exist_ok=True)
    command = [
        target.program,
        f"-max_total_time={seconds}",
        "-timeout=20",
        "-rss_limit_mb=4096",
        "-print_final_stats=1",
    ]
    command += [f"-artifact_prefix={FOUND}/{target.name}-", corpus, *target.seeds]
    code, text = run(
        f"fuzz {target.name}", command, log=f"fuzz/{target.name}", check=False, timeout_s=seconds + 300
    )
    runs = re.search(r"stat::number_of_executed_units:\s*(\d+)", text)
    if code == 0:
        return True, f"{runs.group(1) if runs else '?'} inputs, none broke it"
    found = re.search(r"Test unit written to (\S+)", text)
    reason = re.search(r"^(?:.*ERROR: |.*runtime error: )(.*)$", text, re.MULTILINE)
    return (
        False,
        f"{reason.group(1) if reason else f'exit code {code}'}; input: {found.group(1) if found else 'none kept'}",
    )


def crash_arguments(parser):
    parser.add_argument(
        "--kills", type=int, default=200, help="how often the writing process is killed (default: 200)"
    )
    parser.add_argument("--seed", type=int, help="seed of the random instants")


def crash_main(args):
    setup.ensure_packages()
    setup.ensure_venv()
    program = crash_program()
    extra = ["--seed", args.seed] if args.seed is not None else []
    return passthrough([program, "--kills", args.kills, *extra])


def crash_program():
    folder = build.build("dev", "luff_crash")
    found = [p for p in folder.rglob("luff_crash") if p.is_file()]
    if not found:
        raise Failed("the target luff_crash left no program in build/dev")
    return found[0]


def run_crash(kills):
    """Returns (kills, wrong values, why it failed or '')."""
    code, text = run(
        "crash", [crash_program(), "--kills", kills], log="test/crash", check=False, timeout_s=1200
    )
    match = re.search(r"(\d+) kills, (\d+) wrong values\s*$", text)
    if not match:
        return 0, -1, f"ended with {code} without its last line; log: build/logs/test/crash.log"
    done, wrong = int(match.group(1)), int(match.group(2))
    if code != 0 or done < kills:
        return done, wrong or -1, f"exit code {code} after {done} of {kills} kills, {wrong} wrong values"
    return done, wrong, ""
