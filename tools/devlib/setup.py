"""./dev setup: Debian packages, Python environments, and the product in .venv."""

import concurrent.futures
import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

from devlib import stamp
from devlib.term import ROOT, VENV, Failed, output_of, passthrough, run, say

REQUIREMENTS = ROOT / "requirements"
PYTHON = "3.11"  # of .venv
BUILD = REQUIREMENTS / "build.txt"
TORCH = REQUIREMENTS / "torch.txt"
TORCH_CUDA = REQUIREMENTS / "torch-cuda.txt"

ENVIRONMENTS = {
    "tensorflow": "TensorFlow, Keras, JAX, Flax and Optax",
    "lightning": "Lightning, Hugging Face Transformers and Accelerate",
    "lightgbm": "LightGBM",
    "mxnet": "MXNet, with the NumPy that it needs",
    "peers": "peers of the benchmarks",
    "xgboost2": "XGBoost 2",
    "xgboost3": "XGBoost 3",
    "compat": "what smdebug's own tests import",
    "sweeps": "Optuna, Ray Tune and Hydra",
    "remote": "obstore, an S3 server for tests, and a second implementation of its encryption",
    "trainscope": "trainscope, a peer of the page",
    "formats": "what reads the formats that luff export writes",
}


def setup_arguments(parser):
    parser.add_argument(
        "--with", dest="extra", action="append", default=[], choices=sorted(ENVIRONMENTS), metavar="ENVIRONMENT",
        help="also make .venvs/ENVIRONMENT: " + "; ".join(f"{k} ({v})" for k, v in ENVIRONMENTS.items()),
    )  # fmt: skip


def setup_main(args):
    from devlib import build

    ensure_packages(verbose=True)
    build.ensure_all()
    for name in args.extra:
        environment(name)
    say(f"ready: .venv/bin/luff and .venv/bin/python ({python_version(VENV / 'bin/python')})")


# --- Debian packages ---


@functools.lru_cache(maxsize=None)
def packages():
    """Returns {package: part that needs it} from system-packages.txt."""
    rows = [line.split("#")[0].split() for line in (ROOT / "system-packages.txt").read_text().splitlines()]
    return {row[0]: row[1] for row in rows if row}


@functools.lru_cache(maxsize=None)
def missing_packages():
    """Returns packages of system-packages.txt that are not installed; None if this is not Debian."""
    if not shutil.which("dpkg-query"):
        return None
    done = subprocess.run(
        ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\n", *packages()],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    installed = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("installed ")}
    return [p for p in packages() if p not in installed]


def ensure_packages(verbose=False, optional=True):
    """Installs what is missing, as root or with sudo; raises Failed, with the exact command, if a required one is
    missing.

    Without `optional`, installs only what the product itself needs: the first demo should not wait for compilers of
    tests.
    """
    missing = missing_packages()
    if missing and not optional:
        missing = [p for p in missing if packages()[p] == "required"]
    if missing is None:
        if verbose:
            say("no dpkg here: system-packages.txt names what must be there by other means")
        return
    if not missing:
        return
    attempted = ROOT / "build" / "stamps" / "packages"
    required = [p for p in missing if packages()[p] == "required"]
    if not required and not verbose and stamp.fresh(attempted, " ".join(missing)):
        return  # optional packages that could not be installed the last time
    prefix = [] if os.geteuid() == 0 else ["sudo"]
    command = ["apt-get", "install", "-y", "--no-install-recommends"]
    if prefix and not _sudo_works():
        if required:
            raise Failed(
                f"{len(required)} Debian packages are missing, and there is neither root nor sudo to install them.\n"
                f"As root:  apt-get update && apt-get install -y --no-install-recommends {' '.join(missing)}"
            )
    else:
        env = {"DEBIAN_FRONTEND": "noninteractive", "SYSTEMD_OFFLINE": "1"}  # no package starts a service
        run("apt-get update", [*prefix, "apt-get", "update"], log="setup/apt-update", env=env, check=False)
        available = [p for p in missing if _candidate(p)]
        run("Debian packages", [*prefix, *command, *available], log="setup/apt-install", env=env, check=False)
        missing_packages.cache_clear()
        missing = [p for p in missing_packages() if p in missing]
        required = [p for p in missing if packages()[p] == "required"]
        if required:
            raise Failed(
                f"Debian packages could not be installed: {' '.join(required)}; log: build/logs/setup/apt-install.log"
            )
    for part in sorted({packages()[p] for p in missing}):
        say(f"  without {part}: {' '.join(p for p in missing if packages()[p] == part)} not installed")
    stamp.write(attempted, " ".join(missing))


def _sudo_works():
    if not shutil.which("sudo"):
        return False
    if sys.stdin.isatty():
        return passthrough(["sudo", "-v"]) == 0
    return output_of(["sudo", "-n", "true"]) is not None


def _candidate(package):
    text = output_of(["apt-cache", "policy", package]) or ""
    return "Candidate:" in text and "Candidate: (none)" not in text


def has(part):
    """Returns (True, "") if every package of an optional part is installed, else (False, reason)."""
    absent = [p for p in missing_packages() or [] if packages()[p] == part]
    return (False, f"not installed: {' '.join(absent)}") if absent else (True, "")


# --- Python ---


def python_version(python):
    text = output_of([python, "-c", "import sys; print('%d.%d.%d' % sys.version_info[:3])"])
    return text.strip() if text else None


@functools.lru_cache(maxsize=None)
def find_python(version=PYTHON):
    """Returns a Python of this version that can make environments and has its headers."""
    home, name = Path.home(), f"python{version}"
    candidates = [sys.executable, shutil.which(name), f"/usr/bin/{name}", f"/usr/local/bin/{name}"]
    candidates += sorted(home.glob(f".pyenv/versions/{version}*/bin/{name}"))
    candidates += sorted(home.glob(f".local/share/uv/python/cpython-{version}*/bin/{name}"))
    probe = (
        "import sys, sysconfig, os, ensurepip, venv; "
        f"ok = '%d.%d' % sys.version_info[:2] == '{version}' and "
        "os.path.exists(sysconfig.get_path('include') + '/Python.h'); "
        "sys.exit(0 if ok else 1)"
    )
    for candidate in candidates:
        if candidate and Path(candidate).exists() and output_of([candidate, "-c", probe]) is not None:
            return str(candidate)
    remedy = (
        " (PyTorch 2.13.0 for CPUs exists for 3.11); on Debian 12, as root: "
        "apt-get install -y python3 python3-venv python3-dev"
    )
    raise Failed(f"no Python {version} with venv and headers found{remedy if version == PYTHON else ''}")


def ensure_venv(meanwhile=None):
    """Makes .venv from requirements/dev.txt and torch.txt, unless it is up to date.

    `meanwhile` is called in a thread as soon as .venv can build Luff, while the other packages are installed.
    """
    make_venv(VENV, [BUILD, REQUIREMENTS / "dev.txt", TORCH], meanwhile=meanwhile)


def make_venv(folder, files, *, path_from=None, meanwhile=None):
    """Makes an environment from requirement files. `path_from`: another environment that it also sees.

    `meanwhile` is called in a thread once the first file is installed; this function waits for it.
    """
    cuda = [TORCH_CUDA] if TORCH in files else []
    value = stamp.digest([*files, *cuda], path_from or "")
    mark = folder / "luff-requirements.stamp"
    if stamp.fresh(mark, value):
        return
    with stamp.lock(folder.name):
        if stamp.fresh(mark, value):
            return
        name = folder.relative_to(ROOT)
        python = folder / "bin" / "python"
        if not (python.exists() and (python_version(python) or "").startswith("3.11.")):
            # An environment that sees another one uses the pip of that one.
            options = ["--clear", *(["--without-pip"] if path_from else [])]
            run(f"{name}", [find_python(), "-m", "venv", *options, folder], log=f"setup/{folder.name}-venv")
        if path_from:
            site = "lib/python3.11/site-packages"
            (folder / site / "zz_base.pth").write_text(f"{path_from / site}\n")
        install(python, files[0], name)
        with concurrent.futures.ThreadPoolExecutor(max_workers=1) as pool:
            other = pool.submit(meanwhile) if meanwhile else None
            for file in files[1:]:
                install(python, file, name)
            if cuda and any("nvidia" in line for line in _needs(python, "torch")):
                install(python, TORCH_CUDA, name)
            if other:
                other.result()
        stamp.write(mark, value)


def install(python, file, name):
    """Installs exactly what a requirement file lists: every file must have its sha256 there, except torch
    (torch.txt).

    The lists are complete, so pip adds nothing to them. Sources are built with what is installed, since nothing
    checks what pip would download for such a build.
    """
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check"]
    pip += ["--no-deps", "--no-build-isolation", "--use-pep517"]
    pip += ["--no-compile"]  # half of pip's CPU time: Python keeps what it compiles of those it imports
    if file != TORCH:
        pip += ["--require-hashes"]
    run(f"{name}: {file.name}", [*pip, "-r", file], log=f"setup/{Path(name).name}-{file.stem}")


def _needs(python, package):
    code = f"import importlib.metadata; print(*importlib.metadata.requires({package!r}) or [], sep='\\n')"
    return (output_of([python, "-c", code]) or "").splitlines()


def environment(name):
    """Makes .venvs/NAME; returns its python, or raises Failed if it cannot be installed."""
    folder = ROOT / ".venvs" / name
    folder.parent.mkdir(exist_ok=True)
    files = [REQUIREMENTS / f"{name}.txt"]
    ensure_venv()
    if name == "peers":
        from devlib import peers

        make_venv(folder, [*files, REQUIREMENTS / "smdebug.txt"], path_from=VENV)
        peers.modernise(folder)
    else:
        make_venv(folder, files, path_from=VENV)
    return folder / "bin" / "python"
