"""Trains a classifier on scikit-learn's breast-cancer data; does not use Luff.

luff run -- python examples/lightgbm/train.py           no findings
luff run -- python examples/lightgbm/train.py --leak    a column that was filled after the outcome was known
luff run -- python examples/lightgbm/train.py --deep    trees that learn single rows
luff report RUN                                         curves, importance, findings
"""

from __future__ import annotations

import argparse

import lightgbm as lgb
import numpy as np
from sklearn.datasets import load_breast_cancer


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--leak", action="store_true", help="adds a copy of the target to the features")
    parser.add_argument("--deep", action="store_true", help="lets a leaf hold a single row, and flips labels")
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    x, y = load_breast_cancer(return_X_y=True)
    random = np.random.RandomState(0)
    parameters = {"objective": "binary", "learning_rate": 0.1, "num_leaves": 15, "verbosity": -1}
    if options.leak:
        x = np.column_stack([x, y + 0.05 * random.randn(len(y))])
    if options.deep:
        y = np.where(random.rand(len(y)) < 0.2, 1 - y, y)
        parameters |= {"num_leaves": 500, "min_data_in_leaf": 1, "min_sum_hessian_in_leaf": 0.0}
    order = random.permutation(len(y))
    train = lgb.Dataset(x[order[:400]], y[order[:400]])
    validation = lgb.Dataset(x[order[400:]], y[order[400:]], reference=train)
    lgb.train(
        parameters, train, options.rounds, valid_sets=[train, validation], valid_names=["train", "validation"],
        callbacks=[lgb.log_evaluation(20)],
    )  # fmt: skip


if __name__ == "__main__":
    main()
