"""./dev build: the C++ tree by presets, and Luff installed into .venv."""

import os

from devlib import setup, stamp
from devlib.term import ROOT, VENV, Failed, output_of, run, say

# What the installed product is made of.
PRODUCT = [
    "CMakeLists.txt",
    "pyproject.toml",
    "cmake",
    "include",
    "src",
    "python/src",
    "python/luff",
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
    """(whether a preset can be built here, why not)."""
    return setup.has("sanitizers-and-fuzzing") if preset in CLANG_PRESETS else (True, "")


def jobs():
    return len(os.sched_getaffinity(0))


def configure(preset):
    """Configures build/PRESET when it never was, or when a file of CMake's changed."""
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
    with stamp.lock(f"build-{preset}"):
        folder = configure(preset)
        command = ["cmake", "--build", folder, "-j", jobs()]
        run(
            f"build {preset}", [*command, *(["--target", *targets] if targets else [])], log=f"build/{preset}"
        )
    return folder


def product_environment():
    """For pip's builds."""
    return {
        "CMAKE_CXX_COMPILER_LAUNCHER": "ccache",
        "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs()),
    }


def ensure_product():
    """Installs Luff into .venv as `pip install .` does; nothing is done when no input changed."""
    value = stamp.digest(PRODUCT, setup.python_version(VENV / "bin" / "python"))
    mark = VENV / "luff-product.stamp"
    if stamp.fresh(mark, value) and output_of([VENV / "bin/python", "-c", "import luff._core"]) is not None:
        return
    with stamp.lock("product"):
        if stamp.fresh(mark, value):
            return
        pip = [
            VENV / "bin/python",
            "-m",
            "pip",
            "install",
            "--disable-pip-version-check",
            "--no-build-isolation",
        ]
        options = ["--no-deps", "--force-reinstall", "--config-settings=build-dir=build/product"]
        env = product_environment()
        run("install Luff into .venv", [*pip, *options, "."], log="build/product", env=env)
        stamp.write(mark, value)
    say("  installed: .venv/bin/luff, import luff")
