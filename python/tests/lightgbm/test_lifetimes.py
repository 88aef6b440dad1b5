"""Several trainings in one process: each run gets its own, and nothing is kept."""

from __future__ import annotations

import gc
import weakref

import lightgbm as lgb
import luff
import luff.lightgbm

BASE = {"num_threads": 1, "verbosity": -1, "num_leaves": 7, "objective": "binary"}


def train(sets, hook, rounds=4):
    data = sets()[0]

    def saving(env):
        luff.lightgbm.save_scalar("mine", env.iteration)

    saving.order = 28
    return lgb.train(BASE, data, rounds, valid_sets=[data], callbacks=[hook, saving])


def test_each_training_saves_into_its_own_run(sets, tmp_path):
    kept = []
    for name in ("first", "second"):
        kept.append(luff.lightgbm.Hook(tmp_path / name))
        train(sets, kept[-1])
    for hook in kept:
        hook.close()
    for name, rounds in (("first", [0, 1, 2, 3]), ("second", [0, 1, 2, 3])):
        with luff.open_trial(tmp_path / name) as trial:
            assert len(trial.steps("TRAIN")) == 4
            assert trial.scalars("scalar/mine")["value"].tolist() == rounds


def test_a_hook_goes_with_its_training(sets, tmp_path):
    for number in range(3):
        hook = luff.lightgbm.Hook(tmp_path / str(number))
        model = train(sets, hook)
        references = [weakref.ref(hook), weakref.ref(model)]
        del hook, model
        gc.collect()
        assert [reference() for reference in references] == [None, None]
        with luff.open_trial(tmp_path / str(number)) as trial:
            assert (len(trial.steps("TRAIN")), trial.outcome) == (4, "completed")
    assert luff.lightgbm.get_hook() is None
