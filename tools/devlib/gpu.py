"""./dev gpu: what only a machine with a GPU can show, with that machine's own Python and torch.

Without a GPU it says so, and everything is skipped.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from devlib.term import ROOT, Failed, say

SCRIPTS = ROOT / "tests" / "gpu"
PARTS = {
    "kernels": "the kernels alone: values of every dtype, and the gates about them",
    "values": "statistics of each dtype against float64, and the same bits twice",
    "forms": "raw values, histograms and other forms against a training on the CPU",
    "samples": "samples and hashes of batches against the tensors of the script",
    "identical": "trainings with and without Luff: same bits, same memory, no synchronisation",
    "memory": "device memory beyond the budget, what is given back, a device that is full",
    "cost": "steps with Luff over steps without, and the host's time",
    "models": "the same of resnet50, and of transformers with 124 M and 1.3 G parameters",
    "peers": "what Luff adds over what smdebug and wandb.watch add, where they can be imported",
    "faults": "four programs with a fault are named as on the CPU, a healthy one is silent",
    "stop": "a loss that becomes NaN stops a job at most three steps later than on the CPU",
    "sanitizer": "the kernels under compute-sanitizer, where it is installed",
}
LIMIT_S = 480
FACTS = (
    "import json, torch; print(json.dumps([torch.__version__, torch.version.cuda, torch.cuda.is_available(),"
    " torch.cuda.get_device_name(0) if torch.cuda.is_available() else '']))"
)


def gpu_arguments(parser):
    parser.add_argument(
        "--only", default="", metavar="PARTS", help=f"parts, with commas between: {', '.join(PARTS)}"
    )
    parser.add_argument(
        "--python", default="", help="a Python with torch for CUDA (default: one that is found)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the outcomes as JSON")


def gpu_main(args):
    wanted = [part for part in args.only.split(",") if part] or list(PARTS)
    unknown = [part for part in wanted if part not in PARTS]
    if unknown:
        raise Failed(f"no part {', '.join(unknown)}; there are: {', '.join(PARTS)}")
    python, facts, why = _python(args.python)
    if python is None:
        rows = [{"part": part, "check": PARTS[part], "status": "skipped", "detail": why} for part in wanted]
    else:
        say(f"{facts[3]}, torch {facts[0]}, CUDA {facts[1]}: {python}")
        rows = _run(python, _built(python), wanted)
    _table(rows)
    if args.out:
        args.out.write_text(
            json.dumps({"device": facts[3] if facts else None, "torch": facts, "rows": rows}, indent=1)
        )
    return 1 if any(row["status"] == "failed" for row in rows) else 0


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


def _built(python):
    """The folder of a Luff built for this Python, without network."""
    folder = ROOT / "build" / "gpu"
    commands = [
        ["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DLUFF_PYTHON=ON",
         f"-DPython_EXECUTABLE={python}"],
        ["cmake", "--build", folder, "--target", "_core", "luff"],
    ]  # fmt: skip
    for command in commands:
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failed(
                f"Luff cannot be built for {python} (it needs the packages of system-packages.txt, and nanobind in"
                f" this Python):\n{(done.stdout + done.stderr)[-2000:]}"
            )
    return folder


def _run(python, folder, parts):
    environment = os.environ | {
        "PYTHONPATH": str(folder / "python"),
        "LUFF_EXECUTABLE": str(folder / "src/cli/luff"),
        "LUFF_BOOTSTRAP": str(folder / "python/luff/_bootstrap"),  # for `luff run`, which stands elsewhere
    }
    rows = []
    until = time.monotonic() + LIMIT_S
    for part in parts:
        command = [SCRIPTS / "kernels.py"] if part == "kernels" else [SCRIPTS / "parts.py", part]
        out, broken = _outcome([python, *map(str, command)], environment, max(until - time.monotonic(), 1))
        found = [{"part": part} | json.loads(line) for line in out.splitlines() if line.startswith("{")]
        if broken or not found:
            detail = broken or "said nothing"
            found.append({"part": part, "check": PARTS[part], "status": "failed", "detail": detail})
        rows += found
    return rows


def _outcome(command, environment, limit_s):
    """What a script printed, and why it did not end well; "" if it did."""
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired as late:
        out = late.stdout or ""
        return out.decode() if isinstance(
            out, bytes
        ) else out, f"not done in time, of {LIMIT_S} s for all parts"
    failed = any('"failed"' in line for line in done.stdout.splitlines())
    return done.stdout, "" if done.returncode == 0 or failed else done.stderr[-500:]


def _table(rows):
    width = max(len(row["check"]) for row in rows)
    for row in rows:
        figure = f"{row['value']:.3f}" if "value" in row else ""
        gate = f"(limit {row['gate']})" if "gate" in row else ""
        detail = row.get("detail", "") if row["status"] != "passed" else ""
        say(
            f"{row['part']:<10} {row['check']:<{width}}  {row['status']:<8} {figure} {gate} {detail}".rstrip()
        )
    counts = {s: sum(row["status"] == s for row in rows) for s in ("passed", "failed", "skipped")}
    say(", ".join(f"{count} {status}" for status, count in counts.items()))
