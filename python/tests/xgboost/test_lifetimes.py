from __future__ import annotations

import luff.xgboost
import xgboost as xgb
from boosting_lifetimes import Lifetimes

BASE = {"nthread": 1, "verbosity": 0, "max_depth": 2}


class Saving(xgb.callback.TrainingCallback):
    def after_iteration(self, model, epoch, evals_log):
        luff.xgboost.save_scalar("mine", epoch)
        return False


class TestXGBoost(Lifetimes):
    library = luff.xgboost

    def train(self, sets, *hooks):
        dtrain, _ = sets
        return xgb.train(
            BASE, dtrain, 4, evals=[(dtrain, "t")], verbose_eval=False, callbacks=[*hooks, Saving()]
        )
