"""./dev check and ./dev fix."""

import concurrent.futures
import time
from pathlib import Path

from devlib import build, kernels, setup
from devlib.term import LOGS, ROOT, VENV, Failed, output_of, run, say, seconds, shown

CPP = (".h", ".cc", ".cu")
STUB = ROOT / "python" / "luff" / "_core.pyi"
PYTHON_PATHS = ["dev", "tools", "python", "tests", "benchmarks", "examples"]


def check_arguments(parser):
    parser.add_argument("--only", action="append", default=[], metavar="STEP[,STEP]", help=", ".join(STEPS))
    parser.add_argument(
        "--base", metavar="REV", help="clang-tidy: files changed since REV (default: what is not committed)"
    )
    parser.add_argument("--all", action="store_true", help="clang-tidy: all files")


def check_main(args):
    chosen = [s for part in args.only for s in part.split(",") if s] or list(STEPS)
    unknown = [s for s in chosen if s not in STEPS]
    if unknown:
        raise Failed(f"no step {unknown[0]!r}; there are: {', '.join(STEPS)}")
    setup.ensure_packages()
    setup.ensure_venv()
    start, bad, skipped = time.monotonic(), [], 0
    for name in chosen:
        began = time.monotonic()
        try:
            verdict, text = STEPS[name](args)
        except Failed as failure:
            verdict, text = False, str(failure)
        word = {True: "ok", False: "FAILED", None: "skipped"}[verdict]
        note = text.splitlines()[0] if verdict is not False and text else ""
        say(f"{name:<8} {word:<8} {seconds(time.monotonic() - began):>7}  {note}")
        if verdict is False:
            (LOGS / "check").mkdir(parents=True, exist_ok=True)
            (LOGS / "check" / f"{name}.log").write_text(text)
            lines = text.strip().splitlines()
            say("\n".join(f"  {line}" for line in lines[:60]))
            if len(lines) > 60:
                say(f"  ... {len(lines) - 60} more lines: build/logs/check/{name}.log")
            bad.append(name)
        skipped += verdict is None
    took = seconds(time.monotonic() - start)
    say(f"{len(chosen) - len(bad) - skipped} passed, {len(bad)} failed, {skipped} skipped in {took}")
    if bad:
        say("`./dev fix` mends format, lint where it can, and stubs")
    return 1 if bad else 0


def fix_arguments(parser):
    parser.add_argument("paths", nargs="*", help="only these files and folders (default: everything)")


def fix_main(args):
    setup.ensure_packages()
    setup.ensure_venv()
    wanted = [Path(p).resolve() for p in args.paths]

    def inside(name):
        return not wanted or any((ROOT / name) == w or w in (ROOT / name).parents for w in wanted)

    cpp = [f for f in files(CPP) if inside(f)]
    ok, why = setup.has("format-check")
    if not ok:
        say(f"  C++ stays as it is: {why}")
    elif cpp:
        run("clang-format", ["clang-format-19", "-i", *cpp], log="fix/clang-format", echo=False)
    python = [f for f in python_files() if inside(f)]
    if python:
        ruff = VENV / "bin" / "ruff"
        run(
            "ruff check --fix",
            [ruff, "check", "--fix", "-q", *python],
            log="fix/ruff",
            check=False,
            echo=False,
        )
        run("ruff format", [ruff, "format", "-q", *python], log="fix/ruff-format", echo=False)
    if inside(STUB.relative_to(ROOT)):
        build.ensure_product()
        STUB.write_text(generated_stub())
        say(f"  written: {STUB.relative_to(ROOT)}")


def files(suffixes):
    """Returns the files of the repository, committed or not, as paths relative to its root."""
    listed = output_of(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT)
    if listed is None:
        raise Failed("not a git checkout: the list of files comes from `git ls-files`")
    return [f for f in sorted(set(listed.splitlines())) if f.endswith(suffixes) and (ROOT / f).is_file()]


def python_files():
    return ["dev", *(f for f in files((".py",)) if not f.startswith("benchmarks/faultbench/"))]


def changed(base):
    """Returns the C++ sources that differ from `base` (default: from the last commit)."""
    tracked = output_of(["git", "diff", "--name-only", "--diff-filter=d", base or "HEAD"], cwd=ROOT)
    if tracked is None:
        raise Failed(f"git knows no revision {base!r}")
    new = output_of(["git", "ls-files", "--others", "--exclude-standard"], cwd=ROOT) or ""
    return sorted({f for f in (tracked + new).splitlines() if f.endswith(".cc") and (ROOT / f).is_file()})


def _quick(command):
    """Runs a command that takes seconds; returns (succeeded, output)."""
    import subprocess

    done = subprocess.run([str(c) for c in command], cwd=ROOT, capture_output=True, text=True, check=False)
    text = (done.stdout + done.stderr).strip()
    return done.returncode == 0, text if done.returncode == 0 else f"$ {shown(command)[:300]}\n{text}"


def _format(_args):
    ok, why = setup.has("format-check")
    names = files(CPP)
    if not ok:
        return None, why
    ok, text = _quick(["clang-format-19", "--dry-run", "-Werror", "--ferror-limit=1", *names])
    if ok:
        return True, f"{len(names)} files"
    wrong = sorted({line.split(":")[0] for line in text.splitlines() if "clang-format-violations" in line})
    return False, "\n".join(f"{name}: not formatted" for name in wrong) or text


def _layers(_args):
    return _quick([VENV / "bin/python", ROOT / "tools/check_layers.py"])


def _tidy(args):
    ok, why = setup.has("lint")
    if not ok:
        return None, why
    names = files((".cc",)) if args.all else changed(args.base)
    if not names:
        return True, "no C++ file changed"
    build.configure("dev")
    database = (ROOT / "build" / "dev" / "compile_commands.json").read_text()
    names = [f for f in names if f'"{ROOT}/{f}"' in database]
    bad = []
    flags = [
        "-quiet",
        "-p",
        ROOT / "build" / "dev",
        "--extra-arg=-Wno-unknown-warning-option",
        "--extra-arg=-Wno-everything",
    ]
    with concurrent.futures.ThreadPoolExecutor(build.jobs()) as pool:
        for ok, text in pool.map(lambda f: _quick(["clang-tidy-19", *flags, f]), names):
            if not ok:
                bad.append("\n".join(line for line in text.splitlines() if "warnings generated" not in line))
    return not bad, "\n".join(bad) or f"{len(names)} files"


def _ruff(_args):
    ok, text = _quick([VENV / "bin/ruff", "check", "-q", "--output-format=concise", *python_files()])
    good, more = _quick(
        [VENV / "bin/ruff", "format", "--check", "-q", "--output-format=concise", *python_files()]
    )
    return ok and good, "\n".join(t for t, g in ((text, ok), (more, good)) if not g)


def _mypy(_args):
    return _quick([VENV / "bin/mypy"])


def generated_stub():
    """Returns the stub of the installed luff._core, formatted."""
    command = [VENV / "bin/python", "-m", "nanobind.stubgen", "-m", "luff._core", "-o"]
    target = LOGS / "stubs" / "_core.pyi"
    target.parent.mkdir(parents=True, exist_ok=True)
    ok, text = _quick([*command, target])
    if not ok:
        raise Failed(f"no stub could be made: {text}")
    _quick([VENV / "bin/ruff", "format", "-q", "--config", ROOT / "pyproject.toml", target])
    return target.read_text()


def _stubs(_args):
    build.ensure_product()
    if STUB.exists() and STUB.read_text() == generated_stub():
        return True, ""
    return False, f"{STUB.relative_to(ROOT)} is not what luff._core has; `./dev fix` writes it"


def _prose(_args):
    suffixes = (
        ".h",
        ".cc",
        ".cu",
        ".py",
        ".pyi",
        ".md",
        ".cmake",
        ".txt",
        ".toml",
        ".in",
        ".json",
        ".yaml",
        ".yml",
    )
    return _quick([VENV / "bin/python", "tools/check_prose.py", "dev", ".ci/run", *files(suffixes)])


def _kernels(_args):
    return kernels.check()


STEPS = {
    "format": _format,
    "layers": _layers,
    "ruff": _ruff,
    "mypy": _mypy,
    "stubs": _stubs,
    "prose": _prose,
    "kernels": _kernels,
    "tidy": _tidy,
}
