"""./dev test: every stage, summed up in one last line."""

import errno
import os
import shutil
import time

from devlib import build, fuzz, results, setup
from devlib.term import LOGS, ROOT, VENV, Failed, disk_is_full, free_gb, run, say, seconds

PROGRAM_LIMIT_S = 600
PYTEST_LIMIT_S = 1800


def test_arguments(parser):
    parser.add_argument(
        "--only", action="append", default=[], metavar="STAGE[,STAGE]", help="stages: " + ", ".join(STAGES)
    )
    parser.add_argument(
        "-k", dest="filter", default="", metavar="TEXT", help="only cases whose name contains TEXT"
    )
    parser.add_argument(
        "--frameworks",
        action="store_true",
        help="also the thorough tests of the frameworks; by itself only them",
    )
    parser.add_argument("--fuzz-seconds", type=int, default=5, help="time for each fuzz target (default: 5)")
    parser.add_argument("--kills", type=int, default=200, help="kills of a writing process (default: 200)")


def test_main(args):
    chosen = [s for part in args.only for s in part.split(",") if s]
    chosen = chosen or (["xgboost", "frameworks"] if args.frameworks else list(STAGES))
    unknown = [s for s in chosen if s not in STAGES]
    if unknown:
        raise Failed(f"no stage {unknown[0]!r}; there are: {', '.join(STAGES)}")
    setup.ensure_packages()
    setup.ensure_venv()
    total, start = results.Tally(), time.monotonic()
    for name in chosen:
        began = time.monotonic()
        say(f"\n== {name}: {STAGES[name][1]}")
        try:
            tally = STAGES[name][0](args)
        except Failed as failure:
            tally = results.failed(name, str(failure))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            tally = results.failed(name, disk_is_full())  # what was found until here is told all the same
        results.show(tally)
        say(f"  {name}: {tally.line()} in {seconds(time.monotonic() - began)}")
        total.add(tally)
    say(f"\nwhole time {seconds(time.monotonic() - start)}; logs: {LOGS.relative_to(ROOT)}/test")
    if len(chosen) > 1:
        results.show(total)
    say(total.line())
    return 1 if total.failures else 0


def _ctest(preset):
    """Builds a preset and runs its C++ tests."""

    def stage(args):
        ok, why = build.available(preset)
        if not ok:
            return results.skipped(preset, why)
        # Under sanitizers only the tests: the command is built, with warnings as errors, by the preset dev.
        folder = build.build(preset, *([] if preset == "dev" else ["luff_tests"]))
        name = "cpp" if preset == "dev" else preset
        logs = LOGS / "test"
        xml = logs / f"{name}-xml"
        shutil.rmtree(xml, ignore_errors=True)
        xml.mkdir(parents=True)
        junit = logs / f"{name}-ctest.xml"
        junit.unlink(missing_ok=True)
        command = ["ctest", "--test-dir", folder, "-j", build.jobs(), "--timeout", PROGRAM_LIMIT_S]
        env = {
            "GTEST_OUTPUT": f"xml:{xml}/",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "TSAN_OPTIONS": "second_deadlock_stack=1",
        }
        if args.filter:
            env["GTEST_FILTER"] = f"*{args.filter}*"
        run(
            f"C++ tests ({preset})",
            [*command, "--output-on-failure", "--output-junit", junit],
            log=f"test/{name}",
            env=env,
            check=False,
        )
        return results.read_ctest(junit, xml, name)

    return stage


def _headers(_args):
    """Each public header compiles alone."""
    build.build("dev", "all_verify_interface_header_sets")
    folder = ROOT / "build" / "dev"
    count = sum(1 for _ in folder.glob("src/*/CMakeFiles/*verify_interface_header_sets.dir/**/*.o"))
    return results.Tally(passed=count)


def _pytest(name, *paths, ignore=(), environment=None, others=()):
    """pytest over `paths`, in .venv or in another environment; skipped where that cannot be made.

    `others`: environments that some of the tests use; without one these are skipped and say so.
    """

    def stage(args):
        build.ensure_product()
        python = VENV / "bin/python"
        if environment is not None:
            try:
                python = setup.environment(environment)
            except Failed as failure:
                if free_gb() < 0.5:
                    return results.failed(name, disk_is_full())
                return results.skipped(name, f"{environment}: {str(failure).splitlines()[0]}")
        for other in others:
            try:
                setup.environment(other)
            except Failed as failure:
                say(f"  without {other}: {str(failure).splitlines()[0]}")
        existing = [p for p in paths if any((ROOT / p).rglob("test_*.py"))]
        if not existing:
            return results.Tally()
        xml = LOGS / "test" / f"{name}.xml"
        xml.unlink(missing_ok=True)
        command = [python, "-m", "pytest", "-q", "--junitxml", xml, *existing]
        command += [f"--ignore={p}" for p in ignore]
        command += [] if args.frameworks else ["-m", "not thorough"]
        command += ["-k", args.filter] if args.filter else []
        env = {"PATH": f"{VENV}/bin:{os.environ.get('PATH', '/usr/bin:/bin')}"}
        code, _ = run(
            f"pytest {' '.join(existing)}",
            command,
            log=f"test/{name}",
            env=env,
            check=False,
            timeout_s=PYTEST_LIMIT_S,
        )
        tally = results.read_xml(xml)
        if tally is None:
            return results.failed(
                name, f"pytest ended with {code} and left no results; log: build/logs/test/{name}.log"
            )
        if code not in (0, 1, 5) and not tally.failures:
            tally.failures.append(f"{name}: pytest ended with {code}; log: build/logs/test/{name}.log")
        return tally

    return stage


def _stages(*stages):
    """Several stages as one."""

    def stage(args):
        tally = results.Tally()
        for one in stages:
            tally.add(one(args))
        return tally

    return stage


def _fuzz(args):
    ok, why = build.available("asan")
    if not ok:
        return results.skipped("fuzz", why)
    tally = results.Tally()
    for target in fuzz.targets():
        ok, what = fuzz.run_target(target, args.fuzz_seconds)
        tally.add(results.Tally(passed=1) if ok else results.failed(f"fuzz/{target.name}", what))
    return tally


def _crash(args):
    kills, wrong, what = fuzz.run_crash(args.kills)
    if wrong == 0:
        return results.Tally(passed=1)
    return results.failed("crash", what or f"{kills} kills, {wrong} wrong values")


def _compat(_args):
    from devlib import compat

    return compat.suite(os.environ.get("LUFF_COMPAT_SUITE"))


#: Folders of python/tests, and the environments in which they run; PyTorch and XGBoost have stages of their own.
FRAMEWORKS = {
    "keras": "tensorflow",
    "jax": "tensorflow",
    "mxnet": "mxnet",
    "lightning": "lightning",
    "lightgbm": "lightgbm",
    "sklearn": "lightgbm",
}

STAGES = {
    "cpp": (_ctest("dev"), "C++ tests, optimised"),
    "headers": (_headers, "public headers compile alone"),
    "python": (
        _pytest(
            "python",
            "python/tests",
            "tests",
            ignore=[
                "tests/package",
                "tests/formats",
                "python/tests/xgboost",
                *(f"python/tests/{name}" for name in FRAMEWORKS),
            ],
        ),
        "Python, frameworks, end to end",
    ),
    "xgboost": (
        _stages(
            _pytest("xgboost2", "python/tests/xgboost", environment="xgboost2"),
            _pytest("xgboost3", "python/tests/xgboost", environment="xgboost3"),
        ),
        "XGBoost 2 and 3",
    ),
    "frameworks": (
        _stages(
            *(_pytest(name, f"python/tests/{name}", environment=where) for name, where in FRAMEWORKS.items())
        ),
        "Keras, JAX, MXNet, Lightning, LightGBM and others",
    ),
    "compat": (_compat, "smdebug's own tests, of the clone that LUFF_COMPAT_SUITE names"),
    "formats": (
        _pytest("formats", "tests/formats", environment="formats", others=["peers"]),
        "what Luff exports, read by others",
    ),
    "package": (_pytest("package", "tests/package"), "wheel, pip install, find_package, stubs"),
    "crash": (_crash, "random SIGKILLs of a writing process"),
    "fuzz": (_fuzz, "every fuzz target for a short while"),
    "asan": (_ctest("asan"), "C++ tests under address and undefined behaviour sanitizers"),
    "tsan": (_ctest("tsan"), "C++ tests under the thread sanitizer"),
}
