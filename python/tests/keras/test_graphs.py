"""What Luff adds to TensorFlow graphs cannot fail, fixes no shape, and gets into no other graph."""

from __future__ import annotations

import keras
import luff
import luff.keras
import numpy as np
import pytest
import tensorflow as tf
from luff.keras._hook import hooks
from tensorflow.python.framework import config as tf_config

EVERYTHING = {"save_all": True, "save_interval": 1}
WAYS = {
    "graph": {"jit_compile": False},
    "xla": {"jit_compile": True},
    "several steps an execution": {"jit_compile": False, "steps_per_execution": 2},
    "eager": {"run_eagerly": True},
}
SHORT = [
    way if way == "graph" else pytest.param(way, marks=pytest.mark.thorough) for way in WAYS
]  # test_fit covers the other ways, with whole batches


@pytest.fixture
def both(tmp_path):
    """Runs a program without Luff and with a hook that records everything; returns both results and the trial."""

    def run(program, healthy=True, **options):
        found = []
        for watched in (False, True):
            keras.utils.set_random_seed(7)
            keras.backend.clear_session()
            if watched:
                hook = luff.keras.Callback(tmp_path / "run", **(options or EVERYTHING))
                hooks.add(hook, default=True)
            found.append(program())
        hook.close()
        assert not healthy or hook.health()["hook_errors"] == 0, hook.health()["hook_error_places"]
        assert bits(found[1]) == bits(found[0])
        return found[1], luff.open_trial(tmp_path / "run")

    return run


def bits(value):
    """Converts a result to a form that can be compared bit by bit."""
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [bits(item) for item in value]
    if isinstance(value, str | bytes | type(None)):
        return value
    array = np.asarray(value)
    return (array.shape, str(array.dtype), array.tobytes())


class Counting(keras.Model):
    """Counts traces."""

    traces = 0

    def train_step(self, *arguments):
        Counting.traces += 1
        return super().train_step(*arguments)

    def test_step(self, *arguments):
        Counting.traces += 1
        return super().test_step(*arguments)

    def predict_step(self, *arguments):
        Counting.traces += 1
        return super().predict_step(*arguments)


def a_model(columns=12, dtype="float32", **settings):
    inputs = keras.Input((columns,), dtype=dtype)
    hidden = keras.layers.Dense(6, name="first")(inputs)
    hidden = keras.layers.ReLU()(hidden)
    outputs = keras.layers.Dense(3, name="last")(hidden)
    model = Counting(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], **settings)
    Counting.traces = 0
    return model


def rows(count, columns=12, dtype=np.float32):
    random = np.random.default_rng(count)
    return random.normal(size=(count, columns)).astype(dtype), random.integers(0, 3, count).astype(np.int32)


@pytest.mark.parametrize("way", SHORT)
def test_batches_of_any_size(both, way):
    """A graph traced for 32 rows, and one for any number of rows, keep values in the same variable."""

    def program():
        model = a_model(**WAYS[way])
        found = [model.fit(*rows(40), batch_size=16, epochs=2, verbose=0).history]
        if way != "several steps an execution":
            for count in (32, 16, 5, 32, 1):
                found.append(model.train_on_batch(*rows(count)))
                found.append(model.test_on_batch(*rows(count)))
                found.append(model.predict_on_batch(rows(count)[0]))
        found.append(model.evaluate(*rows(40), batch_size=32, verbose=0))
        found.append(model.predict(rows(40)[0], batch_size=32, verbose=0))
        return [found, model.get_weights(), Counting.traces]

    _, trial = both(program)
    with trial:
        if way == "graph":
            inputs = trial.tensor("first/inputs")
            counts = [inputs.shape(step, "TRAIN")[0] for step in trial.steps("TRAIN")]
            assert counts == [16, 16, 8, 16, 16, 8, 32, 16, 5, 32, 1]
            assert {gap["reason"] for gap in trial.gaps()} == {"compiled graph"}  # in EVAL and PREDICT steps


def test_a_model_of_several_inputs_that_is_trained_evaluated_and_asked(both):
    """The functional example of Keras' guide with fewer rows, so that the last batch is smaller."""

    def program():
        title = keras.Input((None,), name="title", dtype="int32")
        body = keras.Input((None,), name="body", dtype="int32")
        tags = keras.Input((12,), name="tags")
        features = [
            keras.layers.LSTM(8)(keras.layers.Embedding(50, 8)(title)),
            keras.layers.LSTM(4)(keras.layers.Embedding(50, 8)(body)),
            tags,
        ]
        both_features = keras.layers.concatenate(features)
        priority = keras.layers.Dense(1, name="priority")(both_features)
        department = keras.layers.Dense(4, name="department")(both_features)
        model = keras.Model([title, body, tags], {"priority": priority, "department": department})
        model.compile(
            keras.optimizers.RMSprop(1e-3),
            {
                "priority": keras.losses.BinaryCrossentropy(from_logits=True),
                "department": keras.losses.CategoricalCrossentropy(from_logits=True),
            },
            loss_weights={"priority": 1.0, "department": 0.2},
        )
        random = np.random.default_rng(0)
        x = {
            "title": random.integers(50, size=(48, 10)),
            "body": random.integers(50, size=(48, 100)),
            "tags": random.integers(2, size=(48, 12)).astype("float32"),
        }
        y = {
            "priority": random.random(size=(48, 1)),
            "department": random.integers(2, size=(48, 4)).astype("float32"),
        }
        whole = {key: value[:32] for key, value in x.items()}, {key: value[:32] for key, value in y.items()}
        return [
            model.train_on_batch(*whole),
            model.fit(x, y, epochs=1, batch_size=32, verbose=0).history,
            model.evaluate(x, y, batch_size=32, verbose=0),
            model.predict(x, batch_size=32, verbose=0),
            model.get_weights(),
        ]

    both(program)[1].close()


def test_batches_that_are_empty_ragged_sparse_or_text(both):
    """They pass; a value that cannot become an array is a gap."""
    x = np.arange(48, dtype=np.float32).reshape(12, 4) % 5

    class Taking(keras.layers.Layer):
        def call(self, inputs):
            if isinstance(inputs, tf.RaggedTensor):
                return tf.reshape(tf.reduce_mean(inputs, axis=1), (-1, 1))
            if isinstance(inputs, tf.SparseTensor):
                return tf.reshape(tf.sparse.reduce_sum(inputs, axis=1), (-1, 1))
            if inputs.dtype == tf.string:
                return tf.cast(tf.strings.length(inputs), tf.float32)
            return inputs[:, :1]

    def program():
        model = keras.Sequential([Taking(name="taking"), keras.layers.Dense(1, name="last")])
        model.build((None, 1))
        optimizer = keras.optimizers.SGD(0.01)

        @tf.function(reduce_retracing=True)
        def step(inputs):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(model.layers[1](model.layers[0](inputs))))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        batches = [tf.constant(x[:count]) for count in (4, 0, 3, 0, 12)]
        batches += [tf.ragged.constant([[1.0, 2.0], [3.0]]), tf.ragged.constant([[1.0]])]
        batches += [tf.sparse.from_dense(x[:5]), tf.sparse.from_dense(x[:2])]
        batches += [tf.constant([["a"], ["bc"]]), tf.constant([["a"]])]
        return [float(step(batch)) for batch in batches], model.get_weights()

    _, trial = both(program)
    with trial:
        assert len(trial.steps("TRAIN")) == 11
        assert {gap["reason"] for gap in trial.gaps()} <= {"unsupported", "not seen"}


def test_nothing_is_added_to_what_is_exported_vectorized_or_compiled_by_another(both, tmp_path):
    class Trainer(tf.Module):
        def __init__(self):
            super().__init__()
            self.model = keras.Sequential([keras.layers.Dense(3)])
            self.model.build((None, 4))
            self.optimizer = keras.optimizers.SGD(0.1)
            self.optimizer.build(self.model.trainable_variables)

        @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32, name="x")])
        def train(self, x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self.model(x) ** 2)
            gradients = tape.gradient(loss, self.model.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
            return {"loss": loss}

        @tf.function
        def each(self, x):
            with tf.GradientTape(persistent=True) as tape:
                y = self.model(x)
                loss = tf.reduce_mean(y**2)
            jacobian = tape.jacobian(y, self.model.trainable_variables[0])
            rows = tf.vectorized_map(lambda row: self.model(row[None])[0], x)
            gradients = tape.gradient(loss, self.model.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
            return jacobian, rows

    def program():
        x = tf.reshape(tf.range(32.0), (8, 4)) / 32
        trainer = Trainer()
        found = [trainer.train(x)["loss"].numpy(), *(value.numpy() for value in trainer.each(x))]
        outer = tf.function(lambda x: trainer.train(x)["loss"], jit_compile=True)
        found += [outer(x).numpy(), trainer.train(x[:3])["loss"].numpy()]
        concrete = trainer.train.get_concrete_function()
        found.append([node.name for node in concrete.graph.as_graph_def().node])
        path = str(tmp_path / f"saved{len(list(tmp_path.glob('saved*')))}")
        tf.saved_model.save(trainer, path, signatures={"train": concrete})
        loaded = tf.saved_model.load(path)
        found.append(loaded.signatures["train"](x)["loss"].numpy())
        return found, [variable.numpy() for variable in trainer.model.variables]

    _, trial = both(program)
    with trial:
        assert len(trial.tensor("gradient/dense/weights/kernel").steps("TRAIN")) >= 2


def test_what_is_fused_stays_fused(both):
    """TensorFlow folds a normalization into the preceding convolution if nothing else uses the value in between."""

    def program():
        inputs = keras.Input((8, 8, 3))
        hidden = keras.layers.Conv2D(8, 3, use_bias=False, name="conv")(inputs)
        hidden = keras.layers.ReLU()(keras.layers.BatchNormalization()(hidden))
        outputs = keras.layers.Dense(3)(keras.layers.GlobalAveragePooling2D()(hidden))
        model = keras.Model(inputs, outputs)
        model.compile("adam", "mse", jit_compile=False)
        x = np.sin(np.arange(32 * 8 * 8 * 3, dtype=np.float32)).reshape(32, 8, 8, 3)
        return [
            model.fit(x, x[:, 0, 0], batch_size=16, epochs=2, verbose=0).history,
            model.evaluate(x, x[:, 0, 0], verbose=0),
            model.predict(x, verbose=0),
        ]

    _, trial = both(program)
    with trial:
        assert trial.tensor("conv/outputs").steps("TRAIN") == [0, 1, 2, 3]
        assert {gap["reason"] for gap in trial.gaps()} == {"compiled graph"}


def test_operations_that_must_be_deterministic(both):
    """In this mode, TensorFlow fails each step in which an operation reads the clock."""

    def program():
        model = a_model(jit_compile=False)
        return [model.fit(*rows(40), batch_size=16, epochs=2, verbose=0).history, model.get_weights()]

    tf.config.experimental.enable_op_determinism()
    try:
        _, trial = both(program)
    finally:
        tf_config.disable_op_determinism()
    with trial:
        assert len(trial.steps("TRAIN")) == 6
        assert trial.gaps() == []
