"""Trains a classifier on scikit-learn's breast-cancer data; does not use Luff.

    luff run -- python examples/xgboost/train.py           no findings
    luff run -- python examples/xgboost/train.py --leak    a column that was filled after the outcome was known
    luff report RUN                                        curves, importance, findings

For the confusion matrix and the ROC curve, add `--config examples/xgboost/report.toml`.
"""

from __future__ import annotations

import argparse

import numpy as np
import xgboost as xgb
from sklearn.datasets import load_breast_cancer


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--leak", action="store_true", help="adds a copy of the target to the features")
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    x, y = load_breast_cancer(return_X_y=True)
    random = np.random.RandomState(0)
    if options.leak:
        x = np.column_stack([x, y + 0.05 * random.randn(len(y))])
    order = random.permutation(len(y))
    train, validation = order[:400], order[400:]
    dtrain = xgb.DMatrix(x[train], label=y[train])
    dval = xgb.DMatrix(x[validation], label=y[validation])
    parameters = {"objective": "binary:logistic", "max_depth": 3, "eta": 0.15, "subsample": 0.8}
    xgb.train(
        parameters, dtrain, options.rounds, evals=[(dtrain, "train"), (dval, "validation")], verbose_eval=20
    )


if __name__ == "__main__":
    main()
