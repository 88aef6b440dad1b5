"""Trains a network on scikit-learn's digits; does not use Luff.

luff run -- python examples/sklearn/train.py             no findings
luff run -- python examples/sklearn/train.py --raw       features that are not scaled
luff run -- python examples/sklearn/train.py --sorted    data sorted by class, and no shuffling
"""

from __future__ import annotations

import argparse

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--raw", action="store_true", help="multiplies the features by a thousand")
    parser.add_argument("--sorted", action="store_true", help="sorts the data by class")
    parser.add_argument("--epochs", type=int, default=60)
    options = parser.parse_args()
    x, y = load_digits(return_X_y=True)
    x = x * 1000 if options.raw else x / 16
    x_train, x_test, y_train, y_test = train_test_split(x, y, random_state=0)
    if options.sorted:
        order = np.argsort(y_train, kind="stable")
        x_train, y_train = x_train[order], y_train[order]
    model = MLPClassifier(
        (64,), batch_size=32, max_iter=options.epochs, early_stopping=not options.sorted,
        shuffle=not options.sorted, random_state=0,
    )  # fmt: skip
    model.fit(x_train, y_train)
    print(f"accuracy {model.score(x_test, y_test):.3f}")


if __name__ == "__main__":
    main()
