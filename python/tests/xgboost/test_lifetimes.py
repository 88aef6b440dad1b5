"""Several trainings in one process: each run gets its own, and nothing is kept."""

from __future__ import annotations

import gc
import weakref

import luff
import luff.xgboost
import xgboost as xgb

BASE = {"nthread": 1, "verbosity": 0, "max_depth": 2}


class Saving(xgb.callback.TrainingCallback):
    def after_iteration(self, model, epoch, evals_log):
        luff.xgboost.save_scalar("mine", epoch)
        return False


def train(sets, hook, rounds=4):
    dtrain, _ = sets
    return xgb.train(
        BASE, dtrain, rounds, evals=[(dtrain, "t")], verbose_eval=False, callbacks=[hook, Saving()]
    )


def test_each_training_saves_into_its_own_run(sets, tmp_path):
    kept = []
    for name in ("first", "second"):
        kept.append(luff.xgboost.Hook(tmp_path / name))
        train(sets, kept[-1])
    for hook in kept:
        hook.close()
    for name in ("first", "second"):
        with luff.open_trial(tmp_path / name) as trial:
            assert len(trial.steps("TRAIN")) == 4
            assert trial.scalars("scalar/mine")["value"].tolist() == [0, 1, 2, 3]


def test_a_hook_goes_with_its_training(sets, tmp_path):
    for number in range(3):
        hook = luff.xgboost.Hook(tmp_path / str(number))
        model = train(sets, hook)
        references = [weakref.ref(hook), weakref.ref(model)]
        del hook, model
        gc.collect()
        assert [reference() for reference in references] == [None, None]
        with luff.open_trial(tmp_path / str(number)) as trial:
            assert (len(trial.steps("TRAIN")), trial.outcome) == (4, "completed")
    assert luff.xgboost.get_hook() is None
