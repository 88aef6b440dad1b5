"""./dev demo: goes from a clean clone to two real, watched trainings."""

from devlib import build, setup
from devlib.term import ROOT, VENV, Failed, passthrough

SCRIPT = ROOT / "examples" / "digits" / "demo.py"


def demo_arguments(parser):
    parser.add_argument(
        "--out", metavar="FOLDER", help="where runs and the picture go (default: demo-output)"
    )


def demo_main(args):
    if not SCRIPT.exists():
        raise Failed(f"not in this tree: {SCRIPT.relative_to(ROOT)}")
    setup.ensure_packages(optional=False)
    build.ensure_all()
    return passthrough([VENV / "bin/python", SCRIPT, *(["--out", args.out] if args.out else [])])
