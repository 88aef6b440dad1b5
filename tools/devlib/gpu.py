"""./dev gpu: what only a machine with a GPU can show, with that machine's own Python and torch.

Without a GPU it says so, and everything is skipped.
"""

import datetime as dt
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from devlib.term import ROOT, Failed, say

SCRIPTS = ROOT / "tests" / "gpu"
PARTS = {
    "kernels": "the kernels alone: values of every dtype, and the gates about them",
    "values": "statistics of each dtype against float64, and the same bits twice",
    "forms": "raw values, histograms and other forms against a training on the CPU",
    "samples": "samples and hashes of batches against the tensors of the script",
    "identical": "ways to train, with and without Luff: same bits, same memory, recorded as it was",
    "harm": "scripts end as without Luff: synchronisations, forks, signals, broken contexts, no memory",
    "frameworks": "JAX and TensorFlow, where they are installed for the GPU, with and without Luff",
    "memory": "device memory beyond the budget, what is given back, a device that is full",
    "cost": "steps with Luff over steps without, and the host's time",
    "models": "the same of resnet50, and of transformers with 124 M and 1.3 G parameters",
    "peers": "what Luff adds over what other tools add, of those that can be imported",
    "faults": "four programs with a fault are named as on the CPU, a healthy one is silent",
    "stop": "a loss that becomes NaN stops a job at most three steps later than on the CPU",
    "sanitizer": "the kernels under compute-sanitizer, where it is installed",
}
#: Parts that measure no time and fill no memory: several at once.
BESIDE = ("values", "forms", "samples", "identical", "frameworks", "faults", "stop")
LIMIT_S = 480
PART_S = 200  # a part that hangs leaves time for others
#: What an interrupt ends, and whether one came.
_running = set()
_interrupted = threading.Event()
#: What torch says, what Luff needs and this Python lacks, and of which version it is.
FACTS = """
import importlib.util, json, sys, torch
there = torch.cuda.is_available()
missing = [name for name in ("numpy", "ml_dtypes") if importlib.util.find_spec(name) is None]
print(json.dumps([torch.__version__, torch.version.cuda, there, torch.cuda.get_device_name(0) if there else "",
                  missing, "cp%d%d" % sys.version_info[:2]]))
"""


def gpu_arguments(parser):
    parser.add_argument(
        "--only", default="", metavar="PARTS", help=f"parts, with commas between: {', '.join(PARTS)}"
    )
    parser.add_argument(
        "--python", default="", help="a Python with torch for CUDA (default: one that is found)"
    )
    parser.add_argument(
        "--wheel", type=Path, metavar="PATH",
        help="a wheel of Luff for that Python, or a folder of wheels, instead of building here",
    )  # fmt: skip
    parser.add_argument(
        "--minutes",
        type=float,
        default=LIMIT_S / 60,
        help="for the build and all parts (default: %(default)g)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the outcomes as JSON")


def gpu_main(args):
    wanted = [part for part in args.only.split(",") if part] or list(PARTS)
    unknown = [part for part in wanted if part not in PARTS]
    if unknown:
        raise Failed(f"no part {', '.join(unknown)}; there are: {', '.join(PARTS)}")
    until = time.monotonic() + args.minutes * 60
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM)
    )  # as an interrupt: jobs are ended
    python, facts, why = _python(args.python)
    rows = []
    about = {"device": None, "torch": None}
    if python is None:
        rows += [{"part": part, "check": PARTS[part], "status": "skipped", "detail": why} for part in wanted]
        _write(args.out, about, rows)
    else:
        say(f"{facts[3]}, torch {facts[0]}, CUDA {facts[1]}: {python}")
        if facts[4]:
            raise Failed(f"{python} lacks {' and '.join(facts[4])}, which Luff needs: install them there")
        environment = _unpacked(args.wheel, facts[5]) if args.wheel else _built(python, until)
        about = _about(facts)
        try:
            _run(python, environment, wanted, until, rows, lambda: _write(args.out, about, rows))
        finally:  # also of a run that is interrupted
            _write(args.out, about, rows)
    _table(rows)
    return 1 if any(row["status"] == "failed" for row in rows) else 0


def _write(out, about, rows):
    if out:
        out.write_text(json.dumps(about | {"rows": rows}, indent=1))


def _about(facts):
    """What outcomes are worth nothing without."""
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        said = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False).stdout
        driver = said.split("\n")[0].strip()
    except (OSError, subprocess.TimeoutExpired):
        driver = ""
    return {
        "device": facts[3],
        "torch": facts[:4],
        "driver": driver,
        "python": facts[5],
        "date": dt.datetime.now(dt.timezone.utc).date().isoformat(),
    }


def _python(given):
    """A Python whose torch has a GPU, and what torch says; or None, and why not."""
    candidates = (
        [given] if given else [sys.executable, *(filter(None, map(shutil.which, ("python3", "python"))))]
    )
    why = "no Python here has torch"
    for python in dict.fromkeys(candidates):
        try:
            done = subprocess.run(
                [python, "-c", FACTS], capture_output=True, text=True, timeout=120, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            why = str(error)
            continue
        if done.returncode != 0:
            continue
        facts = json.loads(done.stdout.strip().splitlines()[-1])
        if facts[2]:
            return python, facts, ""
        why = f"no GPU: torch {facts[0]} sees no CUDA device"
    return None, None, why


def _built(python, until):
    """Builds Luff for this Python, without network; returns what a process needs to use it."""
    folder = ROOT / "build" / "gpu"
    commands = [
        ["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DLUFF_PYTHON=ON",
         f"-DPython_EXECUTABLE={python}"],
        ["cmake", "--build", folder, "--target", "_core", "luff"],
    ]  # fmt: skip
    for command in commands:
        try:
            code, out, errors = _finished(list(map(str, command)), None, until - time.monotonic())
            said = "" if code == 0 else (out + errors)[-2000:]
        except OSError as error:
            code, said = 1, str(error)
        if code is None:
            raise Failed(f"Luff was not built in the time for all (--minutes); {folder} has what was\n{said}")
        if code != 0:
            raise Failed(
                f"Luff cannot be built for {python}: it needs the packages of system-packages.txt, and nanobind in"
                " this Python. Where they cannot be had, make a wheel elsewhere (./dev wheel --only 3.12), bring it,"
                f" and name it: --wheel FILE\n{said}"
            )
    return _environment(folder / "python", folder / "src/cli/luff")


def _unpacked(path, tag):
    """Unpacks a wheel for a Python; returns what a process needs to use it."""
    wheels = sorted(path.glob("*.whl")) if path.is_dir() else [path]
    fitting = [wheel for wheel in wheels if wheel.name.startswith("luff-") and f"-{tag}-" in wheel.name]
    if not fitting:
        names = ", ".join(wheel.name for wheel in wheels) or "no wheel"
        raise Failed(f"{path}: no wheel of Luff for {tag}, there is {names}: ./dev wheel makes them")
    folder = ROOT / "build" / "gpu-wheel"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with zipfile.ZipFile(fitting[-1]) as wheel:
            wheel.extractall(folder)
    except (OSError, zipfile.BadZipFile) as error:
        raise Failed(f"{fitting[-1]} cannot be unpacked: {error}") from error
    commands = sorted(folder.glob("luff-*.data/scripts/luff"))
    if not commands:
        raise Failed(f"{fitting[-1]} has no command `luff`")
    commands[0].chmod(0o755)
    return _environment(folder, commands[0])


def _environment(package, command):
    path = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH", "")]))
    return os.environ | {
        "PYTHONPATH": path,
        "LUFF_EXECUTABLE": str(command),
        "LUFF_BOOTSTRAP": str(package / "luff/_bootstrap"),  # for `luff run`, which stands elsewhere
    }


def _run(python, environment, parts, until, rows, written):
    """Runs the parts, and adds their outcomes to the rows as they come."""

    def alone(some):
        for part in some:
            rows.extend(_part(python, environment, part, until))
            written()

    try:
        alone([part for part in parts if part == "kernels"])  # all others depend on them
        beside = [part for part in parts if part in BESIDE]
        with ThreadPoolExecutor(min(3, max(1, (os.cpu_count() or 1) // 4))) as pool:
            jobs = [pool.submit(_part, python, environment, part, until) for part in beside]
            try:
                for job in jobs:
                    rows += job.result()
                    written()
            except BaseException:  # before the pool waits for its threads
                _end_all()
                raise
        alone([part for part in parts if part not in (*BESIDE, "kernels")])
    finally:
        rows.sort(key=lambda row: parts.index(row["part"]))


def _part(python, environment, part, until):
    began = time.monotonic()
    if began > until or _interrupted.is_set():
        return [{"part": part, "check": PARTS[part], "status": "skipped", "detail": "no time was left"}]
    command = [SCRIPTS / "kernels.py"] if part == "kernels" else [SCRIPTS / "parts.py", part]
    out, broken = _outcome([python, *map(str, command)], environment, min(until - began, PART_S))
    found = _rows(part, out)
    if broken or not found:
        detail = broken or "said nothing"
        found.append({"part": part, "check": PARTS[part], "status": "failed", "detail": detail})
    say(f"{part}: {len(found)} checks in {time.monotonic() - began:.0f} s")
    return found


def _rows(part, printed):
    """The outcomes among what a part printed; a line that it did not finish is none."""
    found = []
    for line in printed.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and "check" in row and "status" in row:
            found.append({"part": part} | row)
    return found


def _outcome(command, environment, limit_s):
    """What a script printed, and why it did not end well; "" if it did."""
    code, printed, errors = _finished(command, environment, limit_s)
    if code is None:
        return printed, f"not done in {limit_s:.0f} s"
    failed = any('"failed"' in line for line in printed.splitlines())
    if code == 0 or (code == 1 and failed):  # which is how the kernels say that checks failed
        return printed, ""
    return printed, errors[-500:] or f"ended with {code}"


def _finished(command, environment, limit_s):
    """Runs a command; returns its exit code, None if it was not done in time, and what it printed."""
    with (
        tempfile.TemporaryFile("w+", errors="replace") as out,
        tempfile.TemporaryFile("w+", errors="replace") as said,
    ):
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=said,
            start_new_session=True,
        )  # a group of its own: the jobs that it starts end with it
        _running.add(process)
        late = False
        try:
            if _interrupted.is_set():
                _end(process)
            process.wait(timeout=max(limit_s, 1))
        except subprocess.TimeoutExpired:
            late = True
        finally:
            _end(process)
            _running.discard(process)
        out.seek(0)
        said.seek(0)
        return None if late else process.returncode, out.read(), said.read()


def _end(process):
    """Ends what is left of a process's group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _end_all():
    """Ends what runs in other threads, and lets them begin nothing more."""
    _interrupted.set()
    for process in list(_running):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _table(rows):
    width = max(len(row["check"]) for row in rows)
    for row in rows:
        figure = f"{row['value']:.3f}" if "value" in row else ""
        gate = f"(limit {row['gate']})" if "gate" in row else ""
        detail = " ".join(row.get("detail", "").split()) if row["status"] != "passed" else ""
        say(
            f"{row['part']:<10} {row['check']:<{width}}  {row['status']:<8} {figure} {gate} {detail}".rstrip()
        )
    counts = {s: sum(row["status"] == s for row in rows) for s in ("passed", "failed", "skipped")}
    say(", ".join(f"{count} {status}" for status, count in counts.items()))
