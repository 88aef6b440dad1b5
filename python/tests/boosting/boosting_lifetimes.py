"""Lifetimes of hooks that all boosting libraries have in common; each library's own test derives from it."""

from __future__ import annotations

import gc
import os
import warnings
import weakref

import luff


class Lifetimes:
    """Several trainings in one process: each run gets its own, and nothing is kept."""

    library = None  # module of luff

    def train(self, sets, *hooks):
        """Trains four rounds, each of which saves its number; returns the model."""
        raise NotImplementedError

    def test_each_training_saves_into_its_own_run(self, sets, tmp_path):
        kept = []
        for name in ("first", "second"):
            kept.append(self.library.Hook(tmp_path / name))
            self.train(sets, kept[-1])
        for hook in kept:
            hook.close()
        for name in ("first", "second"):
            with luff.open_trial(tmp_path / name) as trial:
                assert len(trial.steps("TRAIN")) == 4
                assert trial.scalars("scalar/mine")["value"].tolist() == [0, 1, 2, 3]

    def test_a_hook_goes_with_its_training(self, sets, tmp_path):
        for number in range(3):
            hook = self.library.Hook(tmp_path / str(number))
            model = self.train(sets, hook)
            references = [weakref.ref(hook), weakref.ref(model)]
            del hook, model
            gc.collect()
            assert [reference() for reference in references] == [None, None]
            with luff.open_trial(tmp_path / str(number)) as trial:
                assert (len(trial.steps("TRAIN")), trial.outcome) == (4, "completed")
        assert self.library.get_hook() is None

    def test_a_model_keeps_the_hook_that_saw_it_trained(self, sets, tmp_path):
        model = self.train(sets, self.library.Hook(tmp_path / "run"))
        assert self.library.get_hook().run == str(tmp_path / "run")
        self.library.save_scalar("of the test set", 0.5)
        del model
        gc.collect()
        assert self.library.get_hook() is None
        with luff.open_trial(tmp_path / "run") as trial:
            assert trial.outcome == "completed"
            assert trial.scalars("scalar/of the test set")["value"].tolist() == [0.5]

    def test_two_hooks_of_one_training_record_both(self, sets, tmp_path):
        hooks = [self.library.Hook(tmp_path / name) for name in ("first", "second")]
        self.train(sets, *hooks)
        for hook in hooks:
            hook.close()
        for name in ("first", "second"):
            with luff.open_trial(tmp_path / name) as trial:
                assert (len(trial.steps("TRAIN")), trial.outcome_reason) == (4, "")

    def test_a_forked_child_drops_the_training_of_its_parent(self, sets, tmp_path):
        with self.library.Hook(tmp_path / "run") as hook:
            model = self.train(sets, hook)
            hook.trainings.begins(model, model, 4, None)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns about other threads
                child = os.fork()
            if child == 0:
                try:
                    os._exit(0 if hook.trainings.watched(model) is None else 1)
                finally:
                    os._exit(2)
            assert os.waitpid(child, 0)[1] == 0
            assert hook.trainings.watched(model) is not None
