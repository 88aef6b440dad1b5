"""./dev wheel: makes what would be published. Builds a wheel for each Python, repairs it so that it runs on any
Linux of that age or newer, adds its SBOM, and installs and tries it in a new environment.
"""

import shutil

from devlib import sbom, setup, stamp, web
from devlib.build import PRODUCT, product_environment
from devlib.term import ROOT, VENV, Failed, run, say

DIST = ROOT / "dist"
VERSIONS = ("3.10", "3.11", "3.12", "3.13")

# What a user would do first.
_TRIAL = """
import sys
import luff.numpy
import numpy as np

hook = luff.numpy.attach({"dense.weight": np.ones(3)}, run=sys.argv[1])
for _ in range(3):
    with hook.step() as step:
        step.loss(1.0)
hook.close()
with luff.open_trial(sys.argv[1]) as trial:
    assert trial.steps("TRAIN") == [0, 1, 2]
    assert trial.tensor("dense.weight").summaries()["step"].tolist() == [0, 1, 2]
"""


def wheel_arguments(parser):
    parser.add_argument(
        "--only", choices=VERSIONS, action="append", default=[], help="of this Python; not tried"
    )


def wheel_main(args):
    setup.ensure_packages(optional=False)
    setup.ensure_venv()
    for version in args.only or VERSIONS:
        try:
            python = setup.find_python(version)
        except Failed as failure:
            if args.only:
                raise
            say(f"  {tag(version)}: skipped, {failure}")
            continue
        wheel = build_wheel(version)
        if not args.only:
            _try(wheel, python)
        say(f"  {tag(version)}: {wheel.relative_to(ROOT)}{'' if args.only else ', installed and tried'}")


def tag(version):
    return f"cp{version.replace('.', '')}"


def build_wheel(version):
    """Builds and repairs a wheel; returns the file in dist/. Does nothing if no input has changed."""
    web.ensure_page()
    value = stamp.digest([*PRODUCT, "tools/devlib/sbom.py", "tools/devlib/wheel.py"])
    mark = ROOT / "build" / "stamps" / f"wheel-{tag(version)}"
    ready = sorted(DIST.glob(f"luff-*-{tag(version)}-*manylinux*.whl"))
    if ready and stamp.fresh(mark, value):
        return ready[-1]
    if version == setup.PYTHON:
        wheel = _build(VENV / "bin" / "python", "--config-settings=build-dir=build/product")
    else:
        wheel = _build(_builder(setup.find_python(version)))
    stamp.write(mark, value)
    return wheel


def _builder(python):
    """Returns the interpreter of a new environment with what builds the wheel: pip would download that unchecked."""
    python = _environment(python, "wheel-env")
    setup.install(python, setup.REQUIREMENTS / "build.txt", "build/wheel-env")
    return python


def _environment(python, name):
    folder = ROOT / "build" / name
    run(f"build/{name}", [python, "-m", "venv", "--clear", folder], log=f"wheel/{name}")
    return folder / "bin" / "python"


def _try(wheel, python):
    """Installs a wheel without access to this repository, and records a run."""
    python = _environment(python, "wheel-trial")
    setup.install(python, setup.REQUIREMENTS / "base.txt", "build/wheel-trial")
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-deps", "--no-index"]
    run("install the wheel", [*pip, wheel], log="wheel/install")
    out = ROOT / "build" / "wheel-run"
    shutil.rmtree(out, ignore_errors=True)
    run("record a run", [python, "-I", "-c", _TRIAL, out], log="wheel/trial")
    run("luff verify", [python.parent / "luff", "verify", out], log="wheel/verify")


def _build(python, *options):
    raw = ROOT / "build" / "wheel-raw"
    shutil.rmtree(raw, ignore_errors=True)
    command = [
        python,
        "-m",
        "pip",
        "wheel",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-build-isolation",
    ]
    command += [*options, "-w", raw, "."]
    with stamp.lock("product"):
        run("wheel", command, log="wheel/build", env=product_environment())
    made = next(raw.glob("luff-*.whl"))
    repaired = ROOT / "build" / "wheel-repaired"
    shutil.rmtree(repaired, ignore_errors=True)
    path = f"{VENV}/bin:/usr/local/bin:/usr/bin:/bin"
    run(
        "auditwheel",
        [VENV / "bin/auditwheel", "repair", "-w", repaired, made],
        log="wheel/repair",
        env={"PATH": path},
    )
    DIST.mkdir(exist_ok=True)
    result = next(repaired.glob("luff-*.whl"))
    for old in DIST.glob(f"luff-*-{result.name.split('-')[2]}-*"):
        old.unlink()
    placed = shutil.copy2(result, DIST / result.name)
    sbom.write_for(placed)
    return placed
