"""./dev test: runs every stage and sums them up in the last line."""

import concurrent.futures
import dataclasses
import errno
import os
import shutil
import threading
import time
from typing import Any, Callable

from devlib import azurite, build, fuzz, results, setup, times, web
from devlib.term import (
    LOGS,
    ROOT,
    VENV,
    Failed,
    cpu_seconds,
    disk_is_full,
    end_all,
    free_gb,
    held,
    run,
    say,
    seconds,
)

PROGRAM_LIMIT_S = 600
PYTEST_LIMIT_S = 1800
#: So many failed cases of a stage are tried a second time: more are no accident of a busy machine.
SECOND_TRIES = 3


def test_arguments(parser):
    parser.add_argument(
        "--only", action="append", default=[], metavar="STAGE[,STAGE]", help="stages: " + ", ".join(STAGES)
    )
    parser.add_argument(
        "-k", dest="filter", default="", metavar="TEXT", help="only cases whose name contains TEXT"
    )
    parser.add_argument(
        "--thorough",
        action="store_true",
        help="also what is too slow for each change; run whole before a release",
    )
    parser.add_argument("--fuzz-seconds", type=int, default=5, help="time for each fuzz target (default: 5)")
    parser.add_argument("--kills", type=int, default=200, help="kills of a writing process (default: 200)")


def test_main(args):
    chosen = [s for part in args.only for s in part.split(",") if s]
    chosen = chosen or list(STAGES)
    unknown = [s for s in chosen if s not in STAGES]
    if unknown:
        raise Failed(f"no stage {unknown[0]!r}; there are: {', '.join(STAGES)}")
    setup.ensure_packages()
    setup.ensure_venv(meanwhile=build.prepare_product)
    _make_environments([name for stage in chosen for name in STAGES[stage].environments])
    total, start = results.Tally(), time.monotonic()
    took = times.Times()
    for group in _groups(chosen):
        for tally in _all_of(group, args, took):
            total.add(tally)
    say(f"\nwhole time {seconds(time.monotonic() - start)}; logs: {LOGS.relative_to(ROOT)}/test")
    took.show()
    if len(chosen) > 1:
        results.show(total)
    say(total.line())
    return 1 if total.failures else 0


@dataclasses.dataclass
class Stage:
    """One part of the test run. Stages with `beside` leave a core idle, so two of them run at a time.

    `waits`: it waits most of its time, so it runs beside as many others as there are cores.
    """

    run: Callable[[Any], results.Tally]
    what: str
    beside: bool = False
    waits: bool = False
    environments: tuple = ()  # names of those in .venvs


def _make_environments(names):
    """Makes environments while the compiler works; a stage that needs one waits for it, and reports a failure."""

    def make():
        for name in dict.fromkeys(names):
            with held():
                try:
                    setup.environment(name)
                except (Failed, OSError):
                    continue

    threading.Thread(target=make, daemon=True).start()


def _groups(chosen):
    """Groups the stages: groups run one after the other, stages of a group may run in parallel."""
    groups = []
    for name in chosen:
        if groups and STAGES[name].beside and STAGES[groups[-1][-1]].beside:
            groups[-1].append(name)
        else:
            groups.append([name])
    return groups


def _all_of(group, args, took):
    """Yields the tallies of stages as they end."""
    if len(group) == 1:
        yield _one(group[0], args, took)
        return
    build.ensure_product()
    lanes = concurrent.futures.ThreadPoolExecutor
    with lanes(max_workers=build.jobs()) as busy, lanes(max_workers=1) as idle:
        waiting = [(idle if STAGES[name].waits else busy).submit(_held, name, args, took) for name in group]
        try:
            for future in concurrent.futures.as_completed(waiting):
                yield future.result()
        except BaseException:
            for pool in (busy, idle):
                pool.shutdown(wait=False, cancel_futures=True)
            end_all()
            raise


def _held(name, args, took):
    with held():
        return _one(name, args, took)


def _one(name, args, took):
    """Runs a stage; whatever happens in it, the others still count."""
    began = time.monotonic()
    say(f"\n== {name}: {STAGES[name].what}")
    with cpu_seconds() as used:
        try:
            tally = STAGES[name].run(args)
        except Failed as failure:
            tally = results.failed(name, str(failure))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            tally = results.failed(name, disk_is_full())  # what was found before is still reported
    duration = time.monotonic() - began
    took.add(name, duration, used[0], tally)
    results.show(tally)
    say(f"  {name}: {tally.line()} in {seconds(duration)}")
    return tally


#: Targets of presets. Sanitizers build only the tests: the preset dev builds the command, with warnings as errors.
_TESTS = {"dev": (), "asan": ("luff_tests",), "tsan": ("luff_thread_tests",)}


def _ctest(preset):
    """Builds a preset and runs its C++ tests."""

    def stage(args):
        ok, why = build.available(preset)
        if not ok:
            return results.skipped(preset, why)
        folder = build.build(preset, *_TESTS[preset])
        name = "cpp" if preset == "dev" else preset
        logs = LOGS / "test"
        xml = logs / f"{name}-xml"
        shutil.rmtree(xml, ignore_errors=True)
        xml.mkdir(parents=True)
        junit = logs / f"{name}-ctest.xml"
        junit.unlink(missing_ok=True)
        command = ["ctest", "--test-dir", folder, "-j", build.jobs(), "--timeout", PROGRAM_LIMIT_S]
        command += ["-L", "threads"] if preset == "tsan" else []
        env = {
            "GTEST_OUTPUT": f"xml:{xml}/",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "TSAN_OPTIONS": "second_deadlock_stack=1",
        }
        if preset != "dev" and not args.thorough:
            env["LUFF_FEWER_CASES"] = "1"  # src/base/test_effort.h
        if preset == "dev" and args.thorough:
            env["LUFF_ALL_CASES"] = "1"
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


def _headers(args):
    """Checks that each public header compiles alone; with --thorough, each source too."""
    build.build("dev", "all_verify_interface_header_sets")
    folder = ROOT / "build" / "dev"
    count = sum(1 for _ in folder.glob("src/*/CMakeFiles/*verify_interface_header_sets.dir/**/*.o"))
    if args.thorough:
        folder = build.build("alone")
        count += sum(1 for _ in folder.rglob("*.cc.o"))
    return results.Tally(passed=count)


def _pytest(name, *paths, ignore=(), environment=None, others=(), before=()):
    """Returns a stage that runs pytest over `paths`, in .venv or in another environment; skipped if that cannot be
    made.

    `others`: environments that some of the tests use; without them, those tests are skipped and say so. `before`: what
    makes something else that some of them use, and says so if it cannot.
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
        for make in before:
            make()
        existing = [p for p in paths if any((ROOT / p).rglob("test_*.py"))]
        if not existing:
            return results.Tally()
        command = [python, "-m", "pytest", "-q", "-o", f"cache_dir={LOGS}/test/{name}-cache", *existing]
        command += [f"--ignore={p}" for p in ignore]
        command += [] if args.thorough else ["-m", "not thorough"]
        command += ["-k", args.filter] if args.filter else []
        tally = _pytest_once(name, f"pytest {' '.join(existing)}", command)
        if 0 < len(tally.failures) <= SECOND_TRIES and tally.cases:
            again = [*command, "--last-failed", "--last-failed-no-failures", "none"]
            tally.try_again(_pytest_once(f"{name}-again", f"{name}: what failed, alone", again))
        return tally

    return stage


def _pytest_once(name, what, command):
    xml = LOGS / "test" / f"{name}.xml"
    xml.unlink(missing_ok=True)
    code, _ = run(
        what,
        [*command, "--junitxml", xml],
        log=f"test/{name}",
        env={"PATH": f"{VENV}/bin:{os.environ.get('PATH', '/usr/bin:/bin')}"},
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


def _fuzz(args):
    ok, why = build.available("asan")
    if not ok:
        return results.skipped("fuzz", why)
    tally = results.Tally()
    with concurrent.futures.ThreadPoolExecutor(max_workers=build.jobs()) as pool:
        runs = [(target, pool.submit(_fuzz_one, target, args.fuzz_seconds)) for target in fuzz.targets()]
        for target, future in runs:
            ok, what = future.result()
            tally.add(results.Tally(passed=1) if ok else results.failed(f"fuzz/{target.name}", what))
    return tally


def _fuzz_one(target, limit_s):
    with held():
        return fuzz.run_target(target, limit_s)


def _crash(args):
    kills, wrong, what = fuzz.run_crash(args.kills)
    if wrong == 0:
        return results.Tally(passed=1)
    return results.failed("crash", what or f"{kills} kills, {wrong} wrong values")


def _compat(_args):
    from devlib import compat

    return compat.suite(os.environ.get("LUFF_COMPAT_SUITE"))


#: Folders of python/tests that have environments of their own.
FRAMEWORKS = {
    "remote": "remote",
    "sweeps": "sweeps",
    "keras": "tensorflow",
    "jax": "tensorflow",
    "xgboost": "xgboost3",
    "lightning": "lightning",
    "mxnet": "mxnet",
    "sklearn": "lightgbm",
    "lightgbm": "lightgbm",
}


def _framework(name, environment, what, folder=""):
    """Returns the stage of one framework's tests."""
    before = [azurite.ensure] if name == "remote" else []
    return Stage(
        _pytest(name, f"python/tests/{folder or name}", environment=environment, before=before),
        what,
        True,
        waits=name == "remote",  # for servers on loopback, two thirds of its time
        environments=(environment,),
    )


#: Of those that run beside each other, the longest come first, after those that may have to compile.
STAGES = {
    "cpp": Stage(_ctest("dev"), "C++ tests, optimised"),
    "headers": Stage(_headers, "public headers compile alone; with --thorough, every source"),
    "page": Stage(web.check, "the page of `luff serve`: types, and what it computes", True),
    "package": Stage(
        _pytest("package", "tests/package", others=["tensorflow"]),
        "wheel, pip install, find_package, stubs",
        True,
    ),
    "e2e": Stage(
        _pytest("e2e", "tests", ignore=["tests/package", "tests/formats", "tests/serve"]),
        "the command, end to end",
        True,
    ),
    "python": Stage(
        _pytest("python", "python/tests", ignore=[f"python/tests/{name}" for name in FRAMEWORKS]),
        "the package and PyTorch",
        True,
    ),
    **{name: _framework(name, where, f"{name}, and the hook on it") for name, where in FRAMEWORKS.items()},
    "serve": Stage(_pytest("serve", "tests/serve"), "`luff serve` and reports, in a real browser too", True),
    "xgboost2": _framework("xgboost2", "xgboost2", "XGBoost 2", "xgboost"),
    "crash": Stage(_crash, "random SIGKILLs of a writing process", True),
    "formats": Stage(
        _pytest("formats", "tests/formats", environment="formats", others=["peers"]),
        "what Luff exports, read by others",
        True,
        environments=("formats", "peers"),
    ),
    "compat": Stage(_compat, "smdebug's own tests, of the clone that LUFF_COMPAT_SUITE names", True),
    "fuzz": Stage(_fuzz, "every fuzz target for a short while"),
    "asan": Stage(_ctest("asan"), "C++ tests under address and undefined behaviour sanitizers"),
    "tsan": Stage(_ctest("tsan"), "C++ tests under the thread sanitizer, where there are threads"),
}
