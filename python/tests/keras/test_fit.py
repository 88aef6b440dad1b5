"""`fit`, `evaluate`, `predict` and single batches on TensorFlow: nothing changes, and recorded values are right."""

from __future__ import annotations

import keras
import luff
import luff.keras
import numpy as np
import pytest
import tensorflow as tf

LOSS = "CrossEntropyLoss_output_0"


class Traced(keras.Sequential):
    """Counts how often a step is traced, or run if it is not compiled."""

    def train_step(self, data):
        self.traces = getattr(self, "traces", 0) + 1
        return super().train_step(data)


def a_model(**settings):
    keras.utils.set_random_seed(3)
    model = Traced(
        [
            keras.layers.Dense(24, activation="relu", name="first"),
            keras.layers.Dropout(0.1),
            keras.layers.BatchNormalization(name="norm"),
            keras.layers.Dense(10, name="last"),
        ]
    )
    settings = {"optimizer": keras.optimizers.Adam(0.01, clipnorm=1.0), **settings}
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, metrics=["accuracy"], **settings)
    return model


def fit(model, data, callbacks=(), epochs=2):
    x, y = data
    history = model.fit(
        x[:256], y[:256], batch_size=64, epochs=epochs, verbose=0, validation_data=(x[256:320], y[256:320]),
        callbacks=list(callbacks),
    )  # fmt: skip
    return history.history


def weights(model):
    return [value.tobytes() for value in model.get_weights()]


def numbers(trial, name, mode="TRAIN"):
    return trial.scalars(name, mode)["value"].tolist()


WAYS = {
    "compiled": {},
    "eager": {"run_eagerly": True},
    "xla": {"jit_compile": True},
    "several steps an execution": {"steps_per_execution": 3},
}


@pytest.mark.parametrize("way", WAYS)
def test_results_and_traces_are_the_same(tmp_path, data, way):
    bare = a_model(**WAYS[way])
    expected = fit(bare, data)
    watched = a_model(**WAYS[way])
    with luff.keras.Callback(tmp_path / "run", save_all=True, save_interval=1) as hook:
        found = fit(watched, data, [hook])
        assert hook.health()["hook_errors"] == 0, hook.health()["hook_error_places"]
    assert weights(watched) == weights(bare)
    assert found == expected
    assert watched.traces == bare.traces


def test_steps_modes_and_updates(tmp_path, data):
    model = a_model()
    with luff.keras.attach(model, run=tmp_path / "run"):
        fit(model, data)
        model.evaluate(*data, batch_size=320, verbose=0)
        model.predict(data[0][:64], batch_size=32, verbose=0)
        model.train_on_batch(data[0][:32], data[1][:32])
        model.test_on_batch(data[0][:32], data[1][:32])
    with luff.open_trial(tmp_path / "run") as trial:
        assert trial.steps("TRAIN") == list(range(9))
        assert trial.steps("EVAL") == list(range(2 + 2 + 1))
        assert trial.steps("PREDICT") == [0, 1]
        assert [trial.step_info(s, "TRAIN")["update"] for s in range(9)] == list(range(9))
        assert trial.gaps() == []


def test_values_are_those_of_the_training(tmp_path, data):
    seen = {"weights": [], "loss": [], "gradients": []}

    class Watching(keras.Sequential):
        def train_step(self, batch):
            x, y = batch
            seen["weights"].append(self.get_layer("first").kernel.numpy())
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            seen["loss"].append(float(loss))
            seen["gradients"].append([g.numpy() for g in gradients])
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"seen": tf.reduce_sum(gradients[0])}

    model = Watching([keras.layers.Dense(8, activation="tanh", name="first"), keras.layers.Dense(10)])
    model.compile(
        optimizer=keras.optimizers.SGD(0.1, momentum=0.9), run_eagerly=True,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )  # fmt: skip
    model.build((None, 64))
    collections = ["weights", "gradients", "optimizer_state", "outputs"]
    with luff.keras.Callback(tmp_path / "run", collections=collections, save_interval=1) as hook:
        model.fit(data[0][:192], data[1][:192], batch_size=64, verbose=0, callbacks=[hook])
    with luff.open_trial(tmp_path / "run") as trial:
        kernel, gradient = trial.tensor("first/weights/kernel"), trial.tensor("gradient/first/weights/kernel")
        assert kernel.module == ("first", "Linear")
        for step in range(3):
            np.testing.assert_array_equal(kernel.value(step, "TRAIN"), seen["weights"][step])
            np.testing.assert_array_equal(gradient.value(step, "TRAIN"), seen["gradients"][step][0])
        assert numbers(trial, LOSS) == seen["loss"]
        assert numbers(trial, "seen") == pytest.approx(
            [float(g[0].sum()) for g in seen["gradients"]], rel=1e-4
        )
        state = trial.tensor(f"{model.optimizer.name}/{model.optimizer.variables[2].name}")
        np.testing.assert_array_equal(state.value(2, "TRAIN"), model.optimizer.variables[2].numpy())
        assert trial.tensor("first/outputs").module == ("first", "Tanh")
        assert trial.tensor("first/outputs").shape(0, "TRAIN") == (64, 8)
        assert numbers(trial, f"optimizer/{model.optimizer.name}.group0.lr") == pytest.approx([0.1] * 3)


def test_a_compiled_step_is_recorded_as_an_eager_one(tmp_path, data):
    found = []
    for eager in (False, True):
        model = a_model(run_eagerly=eager)
        options = {"collections": ["gradients", "biases", "outputs"], "save_interval": 1}
        with luff.keras.Callback(tmp_path / str(eager), **options) as hook:
            fit(model, data, [hook], epochs=1)
        with luff.open_trial(tmp_path / str(eager)) as trial:
            names = ["gradient/first/weights/kernel", "gradient/norm/weights/gamma", "last/weights/bias"]
            values = {
                n: [trial.tensor(n).value(s, "TRAIN") for s in range(4)] for n in [*names, "last/outputs"]
            }
            found.append(
                (values, numbers(trial, LOSS), numbers(trial, LOSS, "EVAL"), numbers(trial, "accuracy"))
            )
    compiled, eager = found
    for name in compiled[0]:
        np.testing.assert_allclose(compiled[0][name], eager[0][name], rtol=1e-4, atol=1e-6)
    for one, other in zip(compiled[1:], eager[1:], strict=True):
        assert one == pytest.approx(other, rel=1e-5)


def test_what_is_hidden_is_a_gap(tmp_path, data):
    with luff.keras.Callback(tmp_path / "several") as hook:
        model = a_model(steps_per_execution=4)
        model.fit(data[0][:384], data[1][:384], batch_size=64, verbose=0, callbacks=[hook])
    with luff.open_trial(tmp_path / "several") as trial:
        assert trial.steps("TRAIN") == [0, 1]
        assert [(gap["reason"], gap["count"]) for gap in trial.gaps()] == [("not seen", 3 + 1)]
    with luff.keras.Callback(tmp_path / "xla", save_interval=1) as hook:
        fit(a_model(jit_compile=True), data, [hook], epochs=1)
    with luff.open_trial(tmp_path / "xla") as trial:
        assert [(gap["reason"], gap["count"]) for gap in trial.gaps()] == [("compiled graph", 4)]
        assert len(numbers(trial, LOSS)) == 4
        assert trial.has_tensor("first/weights/kernel")


def test_a_hook_that_comes_later_says_what_it_cannot_see(tmp_path, data):
    model = a_model()
    fit(model, data, epochs=1)
    with luff.keras.Callback(tmp_path / "run", save_interval=1) as hook:
        fit(model, data, [hook], epochs=1)
    with luff.open_trial(tmp_path / "run") as trial:
        assert [(gap["reason"], gap["count"]) for gap in trial.gaps()] == [("not seen", 4)]
        assert len(numbers(trial, LOSS)) == 4


@pytest.mark.parametrize(
    "policy", ["mixed_float16", pytest.param("mixed_bfloat16", marks=pytest.mark.thorough)]
)
def test_mixed_precision(tmp_path, data, policy):
    keras.config.set_dtype_policy(policy)
    try:
        bare, watched = a_model(optimizer="sgd"), a_model(optimizer="sgd")
        fit(bare, data, epochs=1)
        with luff.keras.Callback(tmp_path / "run") as hook:
            fit(watched, data, [hook], epochs=1)
    finally:
        keras.config.set_dtype_policy("float32")
    assert weights(bare) == weights(watched)
    with luff.open_trial(tmp_path / "run") as trial:
        largest = trial.tensor("gradient/first/weights/kernel").summary(0, "TRAIN")["max"]
        assert 0 < largest < 1  # not multiplied by the loss's scale of 32768


def test_a_skipped_update_is_an_event_and_accumulation_is_none(tmp_path, data):
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=2.0**127)
    with luff.keras.Callback(tmp_path / "skipped") as hook:
        fit(a_model(optimizer=scaled), data, [hook], epochs=1)
    with luff.open_trial(tmp_path / "skipped") as trial:
        kinds = [event["kind"] for event in trial.events()]
        assert kinds.count("step_skipped") >= 1
        assert kinds.count("step_skipped") + kinds.count("optimizer_step") == 4
    with luff.keras.Callback(tmp_path / "accumulated", save_interval=1) as hook:
        fit(
            a_model(optimizer=keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)),
            data,
            [hook],
            epochs=1,
        )
    with luff.open_trial(tmp_path / "accumulated") as trial:
        assert [trial.step_info(s, "TRAIN")["update"] for s in range(4)] == [0, 0, 1, 1]
        assert trial.tensor("gradient/first/weights/kernel").steps("TRAIN") == [1, 3]
        assert trial.gaps() == []


def test_errors_inside_luff_never_reach_the_training(tmp_path, data, monkeypatch):
    from luff.keras._tensorflow_values import TensorFlowValues

    def broken(*_, **__):
        raise RuntimeError("broken")

    bare, watched = a_model(), a_model()
    expected = fit(bare, data)
    for name in ("put", "left", "weights"):
        monkeypatch.setattr(TensorFlowValues, name, broken)
    with luff.keras.Callback(tmp_path / "run") as hook:
        assert fit(watched, data, [hook]) == expected
        assert hook.health()["hook_errors"] > 0
    assert weights(watched) == weights(bare)
    with luff.open_trial(tmp_path / "run") as trial:
        assert any(gap["reason"] == "hook error" for gap in trial.gaps())


def test_a_finding_stops_fit(tmp_path, data):
    from luff import stop

    model = a_model()
    called = []
    hook = luff.keras.Callback(
        tmp_path / "run", on_stop=lambda: called.append(model.optimizer.iterations.numpy())
    )
    session = hook.session

    class Stopping:
        def __getattr__(self, name):
            return getattr(session, name)

        def stop_state(self):
            return int(hook.steps.clock.mode_steps[1] == 3)

        def at_step_boundary(self, _):
            return 2

        def stop_reason(self):
            return "enough"

    hook.steps.session = Stopping()
    with pytest.raises(luff.StopTraining) as raised:
        fit(model, data, [hook])
    assert raised.value.reason == "enough"
    assert called == [3]
    assert not hook.live
    stop.forget()


def test_the_description_has_what_rules_read(tmp_path, data):
    with luff.keras.Callback(tmp_path / "run") as hook:
        fit(a_model(), data, [hook], epochs=1)
    with luff.open_trial(tmp_path / "run") as trial:
        document = trial.document("model")
        modules = document["models"][0]["modules"]
        types = [module["type"] for module in modules]
        assert types == ["Traced", "Linear", "ReLU", "Dropout", "BatchNorm", "Linear"]
        assert modules[3]["settings"]["p"] == 0.1
        parameters = {p["name"]: p for p in document["models"][0]["parameters"]}
        assert parameters["first/weights/kernel"]["optimizer"] == document["optimizers"][0]["name"]
        assert parameters["first/weights/kernel"]["shape"] == [64, 24]
        assert "norm.moving_mean" in [buffer["path"] for buffer in document["models"][0]["buffers"]]
        assert document["losses"][0]["type"] == "CrossEntropyLoss"
        assert document["optimizers"][0]["type"] == "Adam"


def _ends_in(*layers, loss="sparse_categorical_crossentropy"):
    from luff.keras._makers import loss_inputs

    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3), *layers])
    model.compile("sgd", loss)
    model.fit(np.ones((4, 4), np.float32), np.zeros(4), verbose=0)
    return loss_inputs(model)


def test_the_graph_of_a_compiled_model_tells_what_its_loss_gets():
    layers = keras.layers
    told = {"kind": "loss_input", "loss": "SparseCategoricalCrossentropy", "call": 0}
    assert _ends_in() == []
    assert _ends_in(layers.Dense(2, activation="softmax")) == [told | {"made_by": "softmax"}]
    assert _ends_in(layers.Dropout(0.5), layers.Softmax()) == [
        told | {"made_by": "softmax", "behind": "dropout"}
    ]
    assert _ends_in(layers.Dropout(0.0), layers.Activation("softmax")) == [told | {"made_by": "softmax"}]
    scores = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with pytest.warns(UserWarning, match="from_logits=True"):  # Keras takes what was before the softmax
        assert _ends_in(layers.Softmax(), loss=scores) == []
    assert _ends_in(layers.ReLU(), layers.Reshape((3,))) == [told | {"made_by": "relu"}]
    assert _ends_in(layers.Dense(2, "relu"), layers.Activation("softmax")) == [
        told | {"made_by": "softmax", "behind": "relu"}
    ]
    assert _ends_in(layers.Dense(1, "relu"), loss="mse")[0]["loss"] == "MSELoss"


def test_losses_of_a_dictionary_of_outputs_are_told_of_their_own():
    from luff.keras._makers import loss_inputs

    layers = keras.layers
    inputs = layers.Input((4,))
    outputs = {"z": layers.Dense(1, "sigmoid")(inputs), "a": layers.Dense(1, "relu")(inputs)}
    model = keras.Model(inputs, outputs)
    model.compile("sgd", {"z": "binary_crossentropy", "a": "mse"})
    model.fit(np.ones((4, 4)), {"z": np.zeros((4, 1)), "a": np.zeros((4, 1))}, verbose=0)
    assert {event["loss"]: event["made_by"] for event in loss_inputs(model)} == {
        "BCELoss": "sigmoid",
        "MSELoss": "relu",
    }
    assert _ends_in(layers.ReLU(negative_slope=0.2)) == []  # leaky: it silences nothing


def test_of_a_model_with_its_own_call_nothing_is_told():
    from luff.keras._makers import loss_inputs

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.last = keras.layers.Dense(2, "softmax")

        def call(self, x):
            return self.last(x)

    model = Own()
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(np.ones((4, 4), np.float32), np.zeros(4), verbose=0)
    assert loss_inputs(model) == []
    assert loss_inputs(keras.Sequential([keras.layers.Dense(1)])) == []  # neither built nor compiled
