"""Comparisons for users of the original: ./dev bench compat [xgboost] [reader] [--json FILE].

xgboost: the cost of watching XGBoost. reader: opening a million records of smdebug's format.
"""

from __future__ import annotations

import sys

from _gates import run_parts

PARTS = ("xgboost", "reader")

if __name__ == "__main__":
    sys.exit(run_parts(__doc__, PARTS, "_compat"))
