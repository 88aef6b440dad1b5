from __future__ import annotations

import luff.xgboost
import pytest
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

    def test_a_model_keeps_the_hook_that_saw_it_trained(self, sets, tmp_path):
        if int(xgb.__version__.split(".")[0]) < 3:
            pytest.skip("XGBoost 2 gives a copy of the model that was trained, which keeps no hook")
        super().test_a_model_keeps_the_hook_that_saw_it_trained(sets, tmp_path)
