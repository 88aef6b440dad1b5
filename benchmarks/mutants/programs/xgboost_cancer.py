"""Malignant or benign, with boosted trees: xgb.train, two watched sets, early stopping."""
# environment: xgboost3

import os

import numpy as np
import xgboost as xgb
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

SEED = int(os.environ.get("SEED", "0"))

data = load_breast_cancer()
train_x, test_x, train_y, test_y = train_test_split(
    data.data, data.target, test_size=0.3, stratify=data.target, random_state=SEED
)
names = [name.replace(" ", "_") for name in data.feature_names]
dtrain = xgb.DMatrix(train_x, label=train_y, feature_names=names)
dtest = xgb.DMatrix(test_x, label=test_y, feature_names=names)

params = {
    "objective": "binary:logistic",
    "eval_metric": ["error", "logloss"],
    "eta": 0.1,
    "max_depth": 3,
    "min_child_weight": 2,
    "subsample": 0.8,
    "colsample_bytree": 0.5,
    "lambda": 1.0,
    "tree_method": "hist",
    "nthread": 1,
    "seed": SEED,
}
booster = xgb.train(
    params,
    dtrain,
    num_boost_round=150,
    evals=[(dtrain, "train"), (dtest, "test")],
    early_stopping_rounds=15,
    verbose_eval=25,
)
print(f"best round {booster.best_iteration}, log loss {booster.best_score:.4f}")

gains = booster.get_score(importance_type="total_gain")
for name in sorted(gains, key=gains.get, reverse=True)[:5]:
    print(f"{name:24} {gains[name]:8.2f}")

# Share of the held-out labels' entropy that the probabilities explain.
probabilities = booster.predict(dtest, iteration_range=(0, booster.best_iteration + 1))
constant = np.full(len(test_y), train_y.mean())
print("score", 1 - log_loss(test_y, probabilities) / log_loss(test_y, constant))
