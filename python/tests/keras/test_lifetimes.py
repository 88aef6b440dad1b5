"""Several trainings in one process: each run gets its own, and neither hooks nor models are kept."""

from __future__ import annotations

import gc
import threading
import weakref

import keras
import luff
import luff.keras
import pytest
from luff.keras._hook import hooks


def a_model():
    model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(10)])
    model.compile(optimizer="sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def fit(model, data, callbacks=(), rows=96):
    model.fit(data[0][:rows], data[1][:rows], batch_size=32, verbose=0, callbacks=list(callbacks))


def told(path):
    with luff.open_trial(path) as trial:
        return len(trial.steps("TRAIN")), trial.outcome, trial.outcome_reason


def test_a_hook_and_its_model_are_let_go(data, tmp_path):
    model, hook = a_model(), luff.keras.Callback(tmp_path / "run")
    references = [weakref.ref(model), weakref.ref(hook)]
    fit(model, data, [hook])
    del hook
    fit(model, data)  # the model holds the hook
    del model
    gc.collect()
    assert [reference() for reference in references] == [None, None]
    assert not hooks
    assert told(tmp_path / "run") == (6, "completed", "")


@pytest.mark.parametrize("attached", [False, True])
def test_a_cell_that_is_run_twice(data, tmp_path, attached):
    model = a_model()
    for name in ("first", "second"):
        if attached:
            luff.keras.attach(model, run=tmp_path / name)
            fit(model, data)
        else:
            fit(model, data, [luff.keras.Callback(tmp_path / name)])
    steps, outcome, why = told(tmp_path / "first")
    assert (steps, outcome) == (3, "completed")
    assert str(tmp_path / "second") in why
    hooks.living[0].close()
    assert told(tmp_path / "second") == (3, "completed", "")


def test_models_one_after_the_other(data, tmp_path):
    for number in range(4):
        model = a_model()
        luff.keras.attach(model, run=tmp_path / str(number))
        fit(model, data)
    del model
    gc.collect()
    assert [told(tmp_path / str(number)) for number in range(4)] == [(3, "completed", "")] * 4


class Ending(luff.keras.Callback):
    """A call-back that closes itself, as another thread would, at the nth unlocked access to what it holds."""

    left = 0

    def __getattribute__(self, name):
        if name in ("values", "loops", "mode", "live") and self.left and not self.lock._is_owned():
            self.left -= 1
            if not self.left:
                found = super().__getattribute__(name)
                self.close()
                return found
        return super().__getattribute__(name)


def of_fit(model, data):
    model.fit(data[0][:32], data[1][:32], batch_size=32, verbose=0)


def of_a_tape(model, data):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = model.loss(data[1][:32], model(data[0][:32], training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


def of_a_function(model, data):
    import tensorflow as tf

    loop = tf.function(lambda: of_a_tape(model, data))
    for _ in range(2):  # first traced, then called
        loop()


@pytest.mark.parametrize("step", [of_fit, of_a_tape, of_a_function])
def test_a_hook_that_another_thread_closes_anywhere_harms_nothing(data, tmp_path, step):
    model = a_model()
    model.run_eagerly = True
    for number in range(1, 1000):
        hook = Ending(tmp_path / str(number))
        hooks.add(hook, [model], default=True)
        hook.left = number
        step(model, data)
        left, hook.left = hook.left, 0
        assert hook.live == (left > 0)
        if left:  # the step makes no more accesses
            break
    assert number > 5


def test_a_compiled_loop_is_let_go(data, tmp_path):
    import tensorflow as tf

    hook = luff.keras.Callback(tmp_path / "run")
    hooks.add(hook, default=True)

    def train():
        model = a_model()
        loop = tf.function(lambda: of_a_tape(model, data))
        for _ in range(3):
            loop()
        return [weakref.ref(loop), weakref.ref(model)]

    references = train()
    gc.collect()
    assert [reference() for reference in references] == [None, None]
    hook.close()
    assert told(tmp_path / "run")[0] == 3


class Pausing(keras.callbacks.Callback):
    """Makes two threads take turns."""

    def __init__(self, barrier):
        super().__init__()
        self.barrier = barrier

    def on_train_batch_begin(self, batch, logs=None):
        self.barrier.wait(60)

    def on_train_batch_end(self, batch, logs=None):
        self.barrier.wait(60)


@pytest.mark.parametrize("own", [False, True])
def test_threads_do_not_mix(data, tmp_path, own):
    barrier = threading.Barrier(2)
    models = [a_model(), a_model()]
    for model in models:
        fit(model, data, rows=32)  # compiles the model
    if own:
        for number, model in enumerate(models):
            luff.keras.attach(model, run=tmp_path / str(number))
    else:
        hook = luff.keras.Callback(tmp_path / "0")
        hooks.add(hook, default=True)
    threads = [threading.Thread(target=fit, args=(model, data, [Pausing(barrier)])) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for hook in hooks.living:
        assert hook.health()["hook_errors"] == 0, hook.health()
        hook.close()
    if own:
        assert [told(tmp_path / str(number))[0] for number in range(2)] == [3, 3]
        return
    with luff.open_trial(tmp_path / "0") as trial:
        assert len(trial.steps("TRAIN")) == 3  # the steps of one of them
        assert "not seen" in {gap["reason"] for gap in trial.gaps()}
