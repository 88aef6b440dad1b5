"""What a compiled step trains, and in which mode a loop calls its model: events that rules read."""

from __future__ import annotations

import keras
import luff
import luff.keras
import luff.tensorflow
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

KINDS = ("trainable_set", "mode_not_asked")


def told(path):
    with luff.open_trial(path) as trial:
        return [event for event in trial.events() if event.get("kind") in KINDS]


def a_model(*inner):
    base = keras.Sequential(
        [layers.Dense(8, "relu", name="a"), layers.Dense(8, "relu", name="b")], name="base"
    )
    model = keras.Sequential([layers.Input((64,)), base, *inner, layers.Dense(10, "softmax", name="last")])
    model.compile("adam", "sparse_categorical_crossentropy")
    return model, base


@pytest.fixture
def fit(data, tmp_path):
    """Fits a model twice, with a change between; returns what was told."""

    def run(model, change=lambda: None, **settings):
        with luff.keras.Callback(tmp_path / "run") as hook:
            for turn in range(2):
                model.fit(*data, batch_size=64, verbose=0, callbacks=[hook], **settings)
                if turn == 0:
                    change()
            assert hook.health()["hook_errors"] == 0, hook.health()["hook_error_places"]
        return told(tmp_path / "run")

    return run


def test_layers_that_are_unfrozen_without_compile_are_told(fit):
    model, base = a_model()
    base.trainable = False
    before = [value.tobytes() for value in base.get_weights()]
    (event,) = fit(model, lambda: setattr(base, "trainable", True))
    assert (event["trainable"], event["frozen"], event["removed"]) == (6, 0, [])
    assert event["added"] == [f"base/{x}/weights/{y}" for x in "ab" for y in ("bias", "kernel")]
    assert [value.tobytes() for value in base.get_weights()] == before  # Keras does not train them


def test_layers_that_are_frozen_without_compile_are_told_until_it_is_called(fit, data):
    model, base = a_model()
    (event,) = fit(model, lambda: setattr(base, "trainable", False))
    assert (event["trainable"], event["added"], len(event["removed"])) == (2, [], 4)


@pytest.mark.parametrize("frozen", [False, True])
def test_what_is_compiled_again_is_not(fit, frozen):
    model, base = a_model()
    base.trainable = frozen

    def change():
        base.trainable = not frozen
        model.compile("adam", "sparse_categorical_crossentropy")

    assert fit(model, change) == []


def test_it_is_over_with_the_next_compile(fit, data, tmp_path):
    model, base = a_model()
    with luff.keras.Callback(tmp_path / "run") as hook:
        for trainable, again in ((True, False), (False, False), (False, True)):
            base.trainable = trainable
            if again:
                model.compile("adam", "sparse_categorical_crossentropy")
            model.fit(*data, batch_size=64, verbose=0, callbacks=[hook])
    assert [len(event["removed"]) for event in told(tmp_path / "run")] == [4, 0]


@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights")
def test_a_model_that_is_frozen_as_a_whole_is_told_at_once(fit):
    model, _ = a_model()
    model.trainable = False
    (event,) = fit(model)
    assert (event["trainable"], event["frozen"], event["step"]) == (0, 6, 0)


@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights")
def test_models_with_a_step_of_their_own_are_not(fit):
    class Own(keras.Sequential):
        def train_step(self, data):
            return super().train_step(data)

    model = Own([layers.Input((64,)), layers.Dense(10, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy")
    model.trainable = False
    assert fit(model) == []


@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights")
def test_models_that_move_their_weights_by_themselves_are_not(fit):
    class Means(layers.Layer):
        def build(self, shape):
            self.kernel = self.add_weight(shape=(shape[-1],), name="kernel", trainable=False)

        def call(self, x):
            self.kernel.assign(0.9 * self.kernel + 0.1 * keras.ops.mean(x, axis=0))
            return keras.ops.sum((x - self.kernel) ** 2, axis=-1)

    model = keras.Sequential([layers.Input((64,)), Means()])
    model.compile("adam", "mse")
    assert fit(model) == []


@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights")
def test_models_that_are_given_a_step_are_not(fit):
    model, _ = a_model()
    step = model.train_step
    model.train_step = lambda data: step(data)
    model.trainable = False
    assert fit(model) == []


def test_the_same_without_a_difference_in_results(data):
    def weights(callbacks):
        keras.utils.set_random_seed(3)
        model, base = a_model(layers.Dropout(0.2))
        model.fit(*data, batch_size=64, epochs=2, verbose=0, callbacks=callbacks)
        base.trainable = False
        model.fit(*data, batch_size=64, epochs=2, verbose=0, callbacks=callbacks)
        return [value.tobytes() for value in model.get_weights()]

    hook = luff.keras.Callback()
    with hook:
        watched = weights([hook])
    assert watched == weights([])


def loop(path, data, call, model, compiled=False):
    optimizer = keras.optimizers.Adam()
    loss = keras.losses.SparseCategoricalCrossentropy()

    def step(x, y):
        with tf.GradientTape() as tape:
            value = loss(y, call(model, x))
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    step = tf.function(step) if compiled else step
    with luff.tensorflow.attach(run=path) as hook:
        for index in range(4):
            rows = slice(64 * index, 64 * index + 64)
            step(tf.constant(data[0][rows]), tf.constant(data[1][rows]))
            model(data[0][:8])  # an evaluation
        assert hook.health()["hook_errors"] == 0, hook.health()["hook_error_places"]
    return told(path)


def with_dropout():
    return a_model(layers.BatchNormalization(), layers.Dropout(0.3))[0]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_loop_that_does_not_ask_for_training_is_told(tmp_path, data, compiled):
    model = with_dropout()
    (event,) = loop(tmp_path / "run", data, lambda m, x: m(x), model, compiled)
    assert (event["model"], event["dropout"], event["batch_norm"]) == (model.name, 1, 1)


@pytest.mark.parametrize("training", [True, False])
def test_a_loop_that_says_the_mode_is_not(tmp_path, data, training):
    assert loop(tmp_path / "run", data, lambda m, x: m(x, training=training), with_dropout()) == []


def test_models_that_have_no_mode_or_their_own_are_not(tmp_path, data):
    assert loop(tmp_path / "plain", data, lambda m, x: m(x), a_model()[0]) == []
    loaded = with_dropout()
    loaded.layers[1].moving_mean.assign(np.ones(8))
    assert loop(tmp_path / "loaded", data, lambda m, x: m(x), loaded) == []
    inputs = layers.Input((64,))
    hidden = layers.Dropout(0.5)(layers.Dense(8)(inputs), training=True)
    masks = keras.Model(inputs, layers.Dense(10, "softmax")(hidden))
    assert loop(tmp_path / "masks", data, lambda m, x: m(x), masks) == []


def test_a_loop_that_asks_now_and_then_is_told_once(tmp_path, data):
    def call(model, x):
        attacked = x + 0.01 * tf.sign(model(x))  # without dropout
        return model(attacked, training=True)

    model = keras.Sequential([layers.Input((64,)), layers.Dense(64), layers.Dropout(0.3)])
    events = loop(tmp_path / "run", data, call, model)
    assert [event["dropout"] for event in events] == [1, 0]


def test_a_loop_that_begins_to_ask_is_told_as_over(tmp_path, data):
    calls = []

    def call(model, x):
        calls.append(1)
        return model(x, training=True) if len(calls) > 2 else model(x)

    events = loop(tmp_path / "run", data, call, with_dropout())
    assert [event["dropout"] for event in events] == [1, 0]
