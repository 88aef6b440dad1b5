"""What the graph of a compiled model tells of its layers: pairs of linear ones, masked inputs, what a loss gets."""

from __future__ import annotations

import json

import keras
import luff
import luff.keras
import numpy as np
import pytest
from keras import layers
from luff.keras._linear_layers import linear_layers
from luff.keras._makers import loss_inputs
from luff.keras._masks import masked_inputs
from luff.keras._names import Names


def pairs_of(model):
    names = Names()
    names.learn(model)
    events = linear_layers(model, names)
    if not events:
        return None
    (event,) = events
    json.dumps(event)
    return [tuple(name.partition("/")[0] for name in pair) for pair in event["pairs"]], event["linear"]


def sequential(*inner, inputs=(6,)):
    return keras.Sequential([layers.Input(inputs), *inner])


def dense(units, name, **settings):
    return layers.Dense(units, name=name, **settings)


@pytest.mark.parametrize(
    "between",
    [
        [],
        [layers.Dropout(0.5)],
        [layers.BatchNormalization()],
        [layers.Flatten(), layers.Identity()],
        [layers.Activation("linear")],
    ],
)
def test_two_dense_layers_with_nothing_that_bends_between_them_are_told(between):
    model = sequential(
        dense(8, "a", activation="relu"), dense(8, "b"), *between, dense(3, "c", activation="softmax")
    )
    assert pairs_of(model) == ([("b", "c")], False)


def test_a_model_without_any_activation_is_linear():
    assert pairs_of(sequential(dense(1, "a"), dense(5, "b"), dense(1, "c"))) == (
        [("a", "b"), ("b", "c")],
        True,
    )
    images = sequential(
        layers.Conv2D(2, 3),
        layers.AveragePooling2D(2),
        layers.Flatten(),
        dense(8, "a"),
        dense(3, "b"),
        inputs=(8, 8, 1),
    )
    assert pairs_of(images) == ([("a", "b")], True)
    pooled = sequential(
        layers.Conv2D(2, 3),
        layers.MaxPooling2D(2),
        layers.Flatten(),
        dense(8, "a"),
        dense(3, "b"),
        inputs=(8, 8, 1),
    )
    assert pairs_of(pooled) == ([("a", "b")], False)
    grown = sequential(
        dense(8, "a"),
        dense(64, "b", activation="relu"),
        layers.Reshape((8, 8, 1)),
        layers.Conv2D(1, 3),
    )
    assert pairs_of(grown) == ([("a", "b")], False)
    assert pairs_of(sequential(dense(8, "a"), dense(8, "b"), layers.Lambda(lambda x: x * x))) == (
        [("a", "b")],
        False,
    )
    assert pairs_of(sequential(dense(8, "a"), dense(3, "b"), layers.Softmax())) == ([("a", "b")], True)
    assert pairs_of(sequential(dense(8, "a"), dense(3, "b", activation="softmax"))) == ([("a", "b")], True)


@pytest.mark.parametrize(
    "between",
    [
        [layers.ReLU()],
        [layers.LayerNormalization()],
        [layers.GaussianNoise(0.1)],
        [layers.Lambda(lambda x: x * x)],
        [layers.Reshape((8, 1)), layers.Permute((2, 1)), layers.Flatten()],
    ],
)
def test_layers_with_something_between_them_are_not(between):
    assert pairs_of(sequential(dense(8, "a"), *between, dense(3, "b"))) is None


def test_layers_that_are_meant_are_not():
    assert pairs_of(sequential(dense(8, "a", activation=lambda x: x), dense(3, "b"))) is None
    assert pairs_of(sequential(dense(8, "a", activity_regularizer="l1"), dense(3, "b"))) is None
    assert pairs_of(sequential(dense(8, "a", kernel_constraint="non_neg"), dense(3, "b"))) is None
    inputs = layers.Input((6,))
    code = dense(8, "code")(inputs)
    assert pairs_of(keras.Model(inputs, [code, dense(3, "b")(code)])) is None
    residual = layers.Add()([code, dense(8, "c")(code)])
    assert pairs_of(keras.Model(inputs, dense(3, "d")(residual))) is None
    shared = dense(6, "shared")
    assert pairs_of(keras.Model(inputs, shared(shared(inputs)))) is None

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.a, self.b = dense(8, "a"), dense(3, "b")

        def call(self, x):
            return self.b(self.a(x))

    model = Own()
    model(np.ones((2, 6), np.float32))
    assert pairs_of(model) is None


def test_masks_at_the_inputs_are_told():
    lstm = layers.LSTM(4)
    model = sequential(layers.Masking(mask_value=-1), lstm, inputs=(5, 2))
    told = {"kind": "masked_input", "model": model.name, "input": 0, "value": -1.0, "ids": False}
    assert masked_inputs(model) == [told]
    model = sequential(layers.Embedding(9, 3, mask_zero=True), layers.GRU(4), inputs=(5,))
    assert masked_inputs(model) == [told | {"model": model.name, "value": 0.0, "ids": True}]
    first, second = layers.Input((5, 1)), layers.Input((5, 2))
    joined = layers.Concatenate()([first, layers.Masking()(second)])
    model = keras.Model([first, second], layers.LSTM(3)(joined))
    assert [event["input"] for event in masked_inputs(model)] == [1]


def test_masks_that_no_layer_heeds_are_not():
    nothing = layers.Masking(mask_value=float("nan"))
    assert masked_inputs(sequential(nothing, layers.LSTM(3), inputs=(5, 2))) == []
    assert masked_inputs(sequential(layers.Masking(), layers.Dense(2), inputs=(5, 2))) == []
    assert masked_inputs(sequential(layers.Embedding(9, 3), layers.GRU(4), inputs=(5,))) == []
    behind = sequential(layers.Dense(2), layers.Masking(), layers.LSTM(3), inputs=(5, 2))
    assert masked_inputs(behind) == []


def test_what_is_pooled_of_a_relu_is_told_as_that():
    def ends_in(*inner):
        model = sequential(*inner, inputs=(8, 8, 3))
        model.compile("sgd", "categorical_crossentropy")
        model.fit(np.ones((4, 8, 8, 3)), np.eye(4), verbose=0)
        return [(event["made_by"], event.get("behind")) for event in loss_inputs(model)]

    last = layers.Conv2D(4, 1, activation="relu")
    assert ends_in(last, layers.GlobalAveragePooling2D(), layers.Softmax()) == [("softmax", "pooled_relu")]
    assert ends_in(layers.Conv2D(4, 1), layers.GlobalAveragePooling2D(), layers.Softmax()) == [
        ("softmax", None)
    ]
    assert ends_in(layers.Conv2D(4, 1, activation="relu"), layers.GlobalMaxPooling2D()) == [
        ("pooled_relu", None)
    ]


def test_they_are_recorded_once(tmp_path):
    model = sequential(layers.Masking(), layers.LSTM(4), dense(6, "a"), dense(2, "b"), inputs=(5, 2))
    model.compile("adam", "mse")
    x, y = np.random.default_rng(0).normal(size=(64, 5, 2)), np.zeros((64, 2))
    with luff.keras.Callback(tmp_path / "run") as hook:
        model.fit(x, y, epochs=2, batch_size=16, verbose=0, callbacks=[hook])
    with luff.open_trial(tmp_path / "run") as trial:
        told = [event for event in trial.events() if event.get("kind") in ("linear_layers", "masked_input")]
    assert [event["kind"] for event in told] == ["linear_layers", "masked_input"]
    assert told[0]["pairs"] == [["a/weights/kernel", "b/weights/kernel"]]
    assert told[0]["linear"] is False
