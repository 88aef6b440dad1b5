"""Trains with the same unchanged script twice under ``luff run``: healthy, and with a mistyped learning rate.

./dev demo                                     # or:
python examples/digits/demo.py --out demo-output
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
MISTAKE = ["--learning-rate", "3.0"]  # even a tenth of it would be too high
HEALTHY = ["--learning-rate", "0.05"]
STOPPED = 76


def luff_command() -> str:
    beside = Path(sys.executable).parent / "luff"
    found = str(beside) if beside.exists() else shutil.which("luff")
    if found is None:
        sys.exit(
            "demo: the luff command is neither beside this Python nor on PATH; run ./dev setup, or pip install luff"
        )
    return found


def train(
    luff: str, name: str, out: Path, settings: list[str], epochs: int
) -> tuple[int, list[float], Path, Path]:
    run, findings, log = out / name, out / f"{name}-findings.jsonl", out / f"{name}-loss.json"
    for old in (findings, log):
        old.unlink(missing_ok=True)
    if run.exists():
        shutil.rmtree(run)
    script = ["python", "train.py", "--epochs", str(epochs), *settings]
    print(f"\n── {name}: luff run --on-finding stop -- {' '.join(script)}\n", flush=True)
    command = [luff, "run", "--run", str(run), "--on-finding", "stop", "--findings", str(findings), "--"]
    command += [sys.executable, str(HERE / "train.py"), *script[2:], "--log", str(log)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=False, env=environment)
    losses = json.loads(log.read_text()) if log.exists() else []
    return done.returncode, losses, run, findings


def read_findings(path: Path) -> list[dict]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def gradient_norms(run: Path, name: str = "gradient/DigitNet_conv1.weight") -> tuple[list[int], list[float]]:
    """Reads steps and gradient norms that Luff recorded, one norm for each step."""
    import luff

    columns = luff.open_trial(run).tensor(name).summaries()
    return [int(step) for step in columns["mode_step"]], [float(norm) for norm in columns["l2"]]


def draw(
    path: Path, healthy: list[float], faulty: list[float], runs: tuple[Path, Path], findings: list[dict]
) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    left.plot(healthy, color="#2a9d8f", label="healthy, ran to its end")
    left.plot(faulty, color="#e76f51", label=f"faulty, stopped after step {len(faulty) - 1}")
    left.axvspan(len(faulty), len(healthy), color="#e76f51", alpha=0.08, lw=0)
    left.text(
        (len(faulty) + len(healthy)) / 2,
        0.93,
        "steps saved",
        ha="center",
        transform=left.get_xaxis_transform(),
    )
    left.set(title="Loss of every batch", xlabel="TRAIN step", ylabel="loss")
    left.set_ylim(0, min(max(*healthy, *[loss for loss in faulty if loss == loss], 1.0) * 1.1, 12))
    left.legend(loc="center right")
    for run, color, label in zip(runs, ("#2a9d8f", "#e76f51"), ("healthy", "faulty"), strict=True):
        right.plot(*gradient_norms(run), color=color, label=label)
    right.set(
        title="Gradient of conv1, as recorded by Luff", xlabel="TRAIN step", ylabel="L2 norm", yscale="log"
    )
    for finding in findings[:1]:
        right.axvline(finding["step"], color="black", lw=0.8, ls=":")
        right.text(
            finding["step"], 0.02, f" {finding['rule']}", transform=right.get_xaxis_transform(), fontsize=9
        )
    right.legend()
    figure.savefig(path, dpi=130)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", default="demo-output", help="folder for runs and the picture (default: demo-output)"
    )
    parser.add_argument("--epochs", type=int, default=12)
    args = parser.parse_args()
    out = Path(args.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    luff = luff_command()

    code, healthy, healthy_run, healthy_findings = train(luff, "healthy", out, HEALTHY, args.epochs)
    alarms = read_findings(healthy_findings)
    if code != 0 or alarms:
        print(
            f"demo: the healthy training ended with {code} and {len(alarms)} findings; neither was expected",
            file=sys.stderr,
        )
        return 1
    code, faulty, faulty_run, faulty_findings = train(luff, "faulty", out, MISTAKE, args.epochs)
    findings = read_findings(faulty_findings)
    if code != STOPPED or not findings:
        print(
            f"demo: the faulty training ended with {code} and {len(findings)} findings; 76 was expected",
            file=sys.stderr,
        )
        return 1

    saved = len(healthy) - len(faulty)
    first = findings[0]
    print(
        f"\nThe faulty training was stopped after {len(faulty)} of {len(healthy)} steps: "
        f"{saved} steps ({saved / len(healthy):.0%}) were saved. {first['rule']} saw it at step {first['step']}."
    )
    picture = out / "digits.png"
    draw(picture, healthy, faulty, (healthy_run, faulty_run), findings)
    shown = {path: os.path.relpath(path) for path in (picture, healthy_run, faulty_run)}
    command = os.path.relpath(luff)
    print(
        f"\n── where the time of the healthy training went: luff profile {shown[healthy_run]}\n", flush=True
    )
    subprocess.run([luff, "profile", str(healthy_run)], check=True)
    print(f"\nPicture: {shown[picture]}\n\nTry next:")
    print(f"  {command} serve {os.path.relpath(out)}")
    print(f"  {command} show {shown[faulty_run]}")
    print(f"  {command} tensors {shown[healthy_run]}")
    print(f"  {command} summary {shown[healthy_run]} gradient/DigitNet_conv1.weight")
    return 0


if __name__ == "__main__":
    sys.exit(main())
