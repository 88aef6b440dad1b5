from __future__ import annotations

import lightgbm as lgb
import luff.lightgbm
from boosting_lifetimes import Lifetimes

BASE = {"num_threads": 1, "verbosity": -1, "num_leaves": 7, "objective": "binary"}


def saving(env):
    luff.lightgbm.save_scalar("mine", env.iteration)


saving.order = 28


class TestLightGBM(Lifetimes):
    library = luff.lightgbm

    def train(self, sets, *hooks):
        data = sets()[0]
        return lgb.train(BASE, data, 4, valid_sets=[data], callbacks=[*hooks, saving])
