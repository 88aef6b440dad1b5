"""./dev bench: runs benchmarks/NAME.py in the environment that also has the peers."""

import argparse
import os

from devlib import build, setup
from devlib.term import ROOT, VENV, Failed, passthrough, say

#: Benchmarks that use XGBoost if it can be installed.
WITH_XGBOOST = ("compat", "detect")
#: Parts of benchmarks/frameworks.py, and their environments.
FRAMEWORKS = {
    "keras": "tensorflow",
    "jax": "tensorflow",
    "lightning": "lightning",
    "lightgbm": "lightgbm",
    "mxnet": "mxnet",
}
#: Benchmarks whose files have another name: profile.py would stand in the way of Python's own module.
FILES = {"profile": "_profile"}
#: Programs of benchmarks/cpp that a benchmark runs.
PROGRAMS = {
    "bucket": "luff_bench_store",
    "read": "luff_bench_store",
    "store": "luff_bench_store",
    "kernels": "luff_kernel_count",
    "scale": "luff_bench_live",
}


def bench_arguments(parser):
    parser.add_argument("name", nargs="?", help=f"one of: {', '.join(names()) or 'none yet'}")
    parser.add_argument(
        "rest", nargs=argparse.REMAINDER, help="options of the benchmark, e.g. --json FILE; -h lists them"
    )
    parser.add_argument("--no-peers", action="store_true", help="without smdebug and TraceML (before NAME)")


def names():
    """Returns the names of the benchmarks."""
    files = (p.stem for p in (ROOT / "benchmarks").glob("*.py"))
    return sorted({*FILES, *(name for name in files if not name.startswith("_"))})


def bench_main(args):
    if args.name is None:
        say("benchmarks: " + (", ".join(names()) or "none"))
        return 0
    if args.name not in names():
        raise Failed(f"no benchmark {args.name!r}; there are: {', '.join(names()) or 'none'}")
    setup.ensure_packages(optional=False)
    build.ensure_all()
    if args.name == "frameworks":
        return _frameworks(args.rest)
    if args.name == "bucket":  # its peer is the same training without an upload
        programs = build.build("dev", PROGRAMS["bucket"]) / "benchmarks" / "cpp"
        return passthrough(
            [setup.environment("remote"), ROOT / "benchmarks" / "bucket.py", *args.rest],
            env={
                "PYTHONPATH": str(ROOT / "benchmarks"),
                "LUFF_BENCH_ROOT": str(ROOT),
                "LUFF_BENCH_PROGRAMS": str(programs),
            },
        )
    python, reason = VENV / "bin" / "python", "--no-peers given"
    if not args.no_peers:
        try:
            python, reason = setup.environment("peers"), ""
        except Failed as failure:
            reason = f"they can't be installed: {str(failure).splitlines()[0]}"
    if reason:
        say(f"  peers skipped: {reason}")
    env = {
        "LUFF_BENCH_NO_PEERS": reason,
        "PYTHONPATH": str(ROOT / "benchmarks"),
        "LUFF_BENCH_ROOT": str(ROOT),
        "LUFF_EXECUTABLE": str(VENV / "bin" / "luff"),  # the peers' environment has no command
    }
    if args.name in WITH_XGBOOST:
        try:
            site = setup.environment("xgboost3").parents[1] / "lib" / "python3.11" / "site-packages"
            env["PYTHONPATH"] += f"{os.pathsep}{site}"
        except Failed as failure:
            say(f"  XGBoost skipped: {str(failure).splitlines()[0]}")
    if args.name == "studio":
        for peer, name in (("TensorBoard", "formats"), ("trainscope", "trainscope")):
            try:
                env[f"LUFF_BENCH_{peer.upper()}"] = str(setup.environment(name))
            except Failed as failure:
                say(f"  {peer} skipped: {str(failure).splitlines()[0]}")
    if args.rest[:1] == ["--mutants"] and "train" in args.rest:
        for name in (
            "lightning",
            "tensorflow",
            "xgboost3",
        ):  # of some programs; the bench skips what is not there
            try:
                setup.environment(name)
            except Failed as failure:
                say(f"  {name} skipped: {str(failure).splitlines()[0]}")
    if args.name == "scale" and (not args.rest or "stop" in args.rest):
        try:
            env["LUFF_BENCH_REMOTE"] = str(setup.environment("remote"))
        except Failed as failure:
            say(f"  moto skipped: {str(failure).splitlines()[0]}")
    if args.name in PROGRAMS:
        folder = build.build("dev", PROGRAMS[args.name])
        env["LUFF_BENCH_PROGRAMS"] = str(folder / "benchmarks" / "cpp")
    return passthrough(
        [python, ROOT / "benchmarks" / f"{FILES.get(args.name, args.name)}.py", *args.rest], env=env
    )


def _frameworks(rest):
    """Runs each part in the environment of its framework, with its own JSON file; the exit code is the worst."""
    parts = [word for word in rest if word in FRAMEWORKS] or list(FRAMEWORKS)
    rest = [word for word in rest if word not in FRAMEWORKS]
    worst = 0
    for part in parts:
        try:
            python = setup.environment(FRAMEWORKS[part])
        except Failed as failure:
            say(f"  {part} skipped: {str(failure).splitlines()[0]}")
            continue
        program = ROOT / "benchmarks" / "frameworks.py"
        own = list(rest)
        if "--json" in own[:-1] and len(parts) > 1:
            at = own.index("--json") + 1
            own[at] = f"{own[at].removesuffix('.json')}-{part}.json"
        worst = max(
            worst, passthrough([python, program, part, *own], env={"PYTHONPATH": str(ROOT / "benchmarks")})
        )
    return worst
