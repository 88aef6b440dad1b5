"""The cost of watching frameworks other than PyTorch and XGBoost: ./dev bench frameworks [PART ...] [--json FILE].

Parts: keras, jax, lightning, lightgbm, mxnet; each runs in its own environment. Limits: 1.02 on Keras, JAX and
Lightning, 1.03 on LightGBM, with default settings.
"""

from __future__ import annotations

import sys

from _gates import run_parts

PARTS = ("keras", "jax", "lightning", "lightgbm", "mxnet")

if __name__ == "__main__":
    sys.exit(run_parts(__doc__, PARTS, "_frameworks"))
