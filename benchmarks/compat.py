"""What users of the original get: ./dev bench compat [xgboost] [reader] [--json FILE].

xgboost: what watching XGBoost costs. reader: opening a million records of smdebug's format.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

from _gates import finish

PARTS = ("xgboost", "reader")


def main() -> int:
    """Command line; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; there are: {', '.join(PARTS)}")
    results: list[dict[str, Any]] = []
    gates: list[dict[str, Any]] = []
    for part in args.parts or PARTS:
        found, held = importlib.import_module(f"_compat_{part}").measure()
        results += found
        gates += held
    return finish(results, gates, args.json)


if __name__ == "__main__":
    sys.exit(main())
