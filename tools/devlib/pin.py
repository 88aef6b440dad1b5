"""./dev pin: writes requirements/*.txt from requirements/*.in, every package with its version and hashes.

An .in file names what is wanted directly, with versions. The .txt beside it contains that and everything it needs,
with the sha256 of every file published for the version. A version stays as the .txt has it until its .in requires
another, or until the .txt is removed. `azurite` is npm's: its lock file likewise.
"""

import re

from devlib import azurite, setup
from devlib.setup import REQUIREMENTS
from devlib.term import ROOT, Failed, run, say

# Complete by themselves. All other environments see .venv, and their files omit what dev.txt already has.
ALONE = ("base", "build", "dev", "kernels", "pin")
# Needed by the build of PyTorch for CUDA and not by the one for CPUs: installed only with the former.
CUDA = re.compile(r"^(nvidia-(?!ml-py==)|cuda-|triton==)")


def pin_arguments(parser):
    parser.add_argument("names", nargs="*", metavar="NAME", help="files to write, e.g. dev (default: all)")


def pin_main(args):
    of_npm = azurite.SOURCE.name
    known = sorted(file.stem for file in REQUIREMENTS.glob("*.in"))
    unknown = set(args.names) - {*known, of_npm}
    if unknown:
        raise Failed(f"no requirements/{min(unknown)}.in; there are: {' '.join(known)}, and npm's {of_npm}")
    names = [name for name in args.names or known if name != of_npm]
    if names:
        setup.make_venv(ROOT / ".venvs" / "pin", [REQUIREMENTS / "pin.txt"])
    for name in sorted(names, key=lambda n: n != "dev"):  # dev first: the others follow its versions
        _pin(name)
    if not args.names or of_npm in args.names:  # last: it needs npm, the others do not
        azurite.pin()


def blocks(text):
    """Returns {"name==version": the lines of that requirement} for a .txt file."""
    parts = re.split(r"^(?=[\w.-]+==)", text, flags=re.MULTILINE)[1:]
    return {part.split()[0]: part for part in parts}


def _pin(name):
    source, target = REQUIREMENTS / f"{name}.in", REQUIREMENTS / f"{name}.txt"
    now, dev = _read(target), _read(REQUIREMENTS / "dev.txt")
    named = {pin.split("==")[0] for pin in now}
    scratch = ROOT / "build" / "pin" / target.name
    scratch.parent.mkdir(parents=True, exist_ok=True)
    preferred = [*now, *(pin for pin in dev if pin.split("==")[0] not in named)]
    scratch.write_text("".join(f"{pin}\n" for pin in preferred))
    options = ["--no-config", "--quiet", "--generate-hashes", "--no-header", "--no-emit-index-url"]
    options += ["--no-emit-find-links", "--constraints", "requirements/torch.txt", "--output-file", scratch]
    if name in ("base", "build"):
        # a wheel is built and tried for several Pythons
        options += ["--universal", "--python-version", "3.10"]
    else:
        options += ["--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28"]
    if name == "smdebug":
        options += ["--no-deps"]  # its declared dependencies contradict the others
    uv = ROOT / ".venvs" / "pin" / "bin" / "uv"
    run(f"pin {name}", [uv, "pip", "compile", *options, source.relative_to(ROOT)], log=f"pin/{name}")
    found = {p: block for p, block in blocks(scratch.read_text()).items() if not p.startswith("torch==")}
    direct = {line.split("==")[0] for line in source.read_text().splitlines()}
    if name == "dev":
        _write(REQUIREMENTS / "torch-cuda.txt", [b for p, b in found.items() if CUDA.search(p)], "torch.txt")
    if name not in ALONE:
        found = {p: b for p, b in found.items() if p not in dev or p.split("==")[0] in direct}
    kept = [b for p, b in found.items() if name == "kernels" or not CUDA.search(p)]
    _write(target, kept, source.name)


def _read(file):
    return blocks(file.read_text()) if file.exists() else {}


def _write(file, parts, source):
    file.write_text(f"# Written by ./dev pin from {source}, not to be edited.\n" + "".join(parts))
    say(f"  requirements/{file.name}: {len(parts)} packages")
