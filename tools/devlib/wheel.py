"""./dev wheel: a wheel for this Python, repaired so that it runs on any Linux of that age or newer, and its SBOM."""

import shutil

from devlib import sbom, setup, stamp
from devlib.build import PRODUCT, product_environment
from devlib.term import ROOT, VENV, Failed, run, say

DIST = ROOT / "dist"


def wheel_arguments(parser):
    parser.add_argument(
        "--python", metavar="PYTHON", help="interpreter to build for (default: the 3.11 of .venv)"
    )


def wheel_main(args):
    setup.ensure_packages(optional=False)
    setup.ensure_venv()
    say(f"  {build_wheel(args.python).relative_to(ROOT)}")


def build_wheel(python=None):
    """Builds and repairs; returns the file in dist/. Nothing is done when no input changed."""
    if python is not None:
        return _build(_builder(python))
    value = stamp.digest([*PRODUCT, "tools/devlib/sbom.py"])
    mark = ROOT / "build" / "stamps" / "wheel"
    ready = sorted(DIST.glob("luff-*-cp311-*manylinux*.whl"))
    if ready and stamp.fresh(mark, value):
        return ready[-1]
    wheel = _build(VENV / "bin" / "python", "--config-settings=build-dir=build/product")
    stamp.write(mark, value)
    return wheel


def _builder(python):
    """The interpreter of a new environment that holds what builds the wheel: pip would fetch that unchecked."""
    if not setup.python_version(python):
        raise Failed(f"not a Python: {python}")
    folder = ROOT / "build" / "wheel-env"
    run("environment of the build", [python, "-m", "venv", "--clear", folder], log="wheel/venv")
    setup.install(folder / "bin" / "python", setup.REQUIREMENTS / "build.txt", "build/wheel-env")
    return folder / "bin" / "python"


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
