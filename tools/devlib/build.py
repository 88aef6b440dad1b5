"""./dev build: the C++ tree by presets, and Luff installed into .venv."""

import contextlib
import os
import platform
import shutil
import tempfile
from pathlib import Path

from devlib import setup, stamp, web
from devlib.term import ROOT, VENV, Failed, held, output_of, run, say

# The files that the installed product is made of.
PRODUCT = [
    "CMakeLists.txt",
    "pyproject.toml",
    "cmake",
    "include",
    "src",
    "python/src",
    "python/luff",
    "web/dist",
    "README.md",
    "LICENSE",
    "THIRD_PARTY_NOTICES.md",
]
CLANG_PRESETS = ("asan", "tsan")


def build_arguments(parser):
    parser.add_argument("presets", nargs="*", metavar="PRESET", help="dev (default), release, asan, tsan")
    parser.add_argument("--product-only", action="store_true", help="only install Luff into .venv")


def build_main(args):
    setup.ensure_packages(optional=any(p in CLANG_PRESETS for p in args.presets))
    setup.ensure_venv()
    if not args.product_only:
        for preset in args.presets or ["dev"]:
            ok, why = available(preset)
            if not ok:
                raise Failed(f"preset {preset} can't be built: {why}")
            build(preset)
    if not args.presets or args.product_only:
        ensure_product()


def available(preset):
    """Returns (whether a preset can be built here, why not)."""
    return setup.has("sanitizers-and-fuzzing") if preset in CLANG_PRESETS else (True, "")


def jobs():
    return len(os.sched_getaffinity(0))


def configure(preset):
    """Configures build/PRESET if it never was, or if a file of CMake's has changed."""
    folder = ROOT / "build" / preset
    lists = [
        p.relative_to(ROOT)
        for top in ("src", "python", "benchmarks", "examples")
        for p in (ROOT / top).rglob("CMakeLists.txt")
    ]
    value = stamp.digest(["CMakeLists.txt", "CMakePresets.json", "cmake", *lists], preset)
    mark = folder / "luff-configure.stamp"
    if not (folder / "build.ninja").exists() or not stamp.fresh(mark, value):
        run(f"configure {preset}", ["cmake", "--preset", preset], log=f"build/{preset}-configure")
        stamp.write(mark, value)
    return folder


def build(preset, *targets):
    """Builds a preset (all of it, or `targets`); returns its folder."""
    web.ensure_page()
    with stamp.lock(f"build-{preset}"):
        folder = configure(preset)
        command = ["cmake", "--build", folder, "-j", jobs()]
        run(
            f"build {preset}", [*command, *(["--target", *targets] if targets else [])], log=f"build/{preset}"
        )
    return folder


def product_environment():
    """Returns the environment for pip's builds."""
    return {
        "CMAKE_CXX_COMPILER_LAUNCHER": "ccache",
        "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs()),
        "SKBUILD_CMAKE_DEFINE": "LUFF_STRICT=ON",  # as in the preset dev: the same objects
    }


def ensure_all():
    """.venv with Luff installed in it. Where both are missing, the compiler works while pip downloads."""
    setup.ensure_venv(meanwhile=prepare_product)
    ensure_product()


def prepare_product():
    """Builds the wheel that ensure_product installs; that also reports what fails here."""
    value = _product_digest()
    if _kept_wheel(value):
        return
    say("  building Luff meanwhile")
    with held(), contextlib.suppress(Failed), stamp.lock("product"):
        _make_wheel(value)


def _product_digest():
    web.ensure_page()
    machine = (platform.machine(), *platform.libc_ver())
    return stamp.digest(PRODUCT, setup.python_version(VENV / "bin" / "python"), *machine)


def ensure_product():
    """Installs Luff into .venv as `pip install .` does; does nothing if no input has changed.

    The wheel is kept beside ccache's results, under a hash of its inputs. Another checkout of the same sources, or
    the same one with a new .venv, then compiles nothing.
    """
    value = _product_digest()
    mark = VENV / "luff-product.stamp"
    if stamp.fresh(mark, value) and output_of([VENV / "bin/python", "-c", "import luff._core"]) is not None:
        return
    with stamp.lock("product"):
        if stamp.fresh(mark, value):
            return
        wheel = _kept_wheel(value) or _make_wheel(value)
        options = ["--disable-pip-version-check", "--no-deps", "--force-reinstall", "--no-index"]
        run(
            "install Luff into .venv",
            [VENV / "bin/python", "-m", "pip", "install", *options, wheel],
            log="build/product-install",
        )
        stamp.write(mark, value)
    say("  installed: .venv/bin/luff, import luff")


KEPT_WHEELS = 3


def _wheels():
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "luff" / "wheels"


def _kept_wheel(value):
    return next(iter((_wheels() / value).glob("luff-*.whl")), None)


def _make_wheel(value):
    """Builds the wheel of these sources and keeps it; removes older ones."""
    made = ROOT / "build" / "product-wheel"
    shutil.rmtree(made, ignore_errors=True)
    pip = [VENV / "bin/python", "-m", "pip", "wheel", "--disable-pip-version-check", "--no-build-isolation"]
    options = ["--no-deps", "--config-settings=build-dir=build/product", "-w", made]
    run("build Luff", [*pip, *options, "."], log="build/product", env=product_environment())
    wheel = next(made.glob("luff-*.whl"))
    try:
        _keep(wheel, _wheels() / value)
    except OSError:  # the home is not writable: the wheel is installed anyway
        pass
    return wheel


def _keep(wheel, folder):
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(dir=folder.parent))
    shutil.copy2(wheel, new)
    try:
        os.rename(new, folder)  # all or nothing
    except OSError:  # another checkout was faster
        shutil.rmtree(new)
    for old in sorted(folder.parent.iterdir(), key=os.path.getmtime)[:-KEPT_WHEELS]:
        shutil.rmtree(old, ignore_errors=True)
