"""smdebug's hook for Keras, on Luff: names, steps, values; trainings do not change."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import keras
import luff.compat.smdebug.tensorflow as smd
import numpy as np
import pytest
import tensorflow as tf
from luff.compat import smdebug
from luff.compat.smdebug.exceptions import SMDebugError, SMDebugTypeError, SMDebugValueError

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="smdebug knew TensorFlow only"
)
X = np.random.RandomState(0).randn(24, 4).astype("float32")
Y = (X[:, 0] > 0).astype("int32")
WEIGHTS = {
    "first/weights/first/kernel:0",
    "norm/weights/norm/gamma:0",
    "norm/weights/norm/beta:0",
    "norm/weights/norm/moving_mean:0",
    "norm/weights/norm/moving_variance:0",
    "last/weights/last/kernel:0",
}
GRADIENTS = {
    f"gradients/{name}Grad"
    for name in ("first/kernel", "first/bias", "norm/gamma", "norm/beta", "last/kernel", "last/bias")
}


@pytest.fixture(autouse=True)
def no_hook():
    from luff.compat.smdebug.core.config_validator import reset_config_validator
    from luff.compat.smdebug.core.error_handling_agent import error_handling_agent

    yield
    hook = smd.get_hook()
    if hook is not None:
        hook.close()
    smd.del_hook()
    reset_config_validator()
    error_handling_agent.disable_smdebug = False


def make(compiled=True, **options):
    keras.utils.set_random_seed(0)
    keras.backend.clear_session()
    model = keras.Sequential(
        [
            keras.layers.Input((4,)),
            keras.layers.Dense(5, activation="relu", name="first"),
            keras.layers.BatchNormalization(name="norm"),
            keras.layers.Dense(2, name="last"),
        ]
    )
    if compiled:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"], **options)
    return model


def fit(model, hook=None, **options):
    options = {"batch_size": 8, "epochs": 1, "verbose": 0, "shuffle": False, **options}
    return model.fit(X, Y, callbacks=[] if hook is None else [hook], **options)


def every(tmp_path, **options):
    options.setdefault("save_config", smd.SaveConfig(save_interval=1))
    return smd.KerasHook(str(tmp_path / "t"), **options)


def finished(hook, tmp_path):
    hook.close()
    return smd.create_trial(str(tmp_path / "t"))


def values(variable):
    return variable.numpy().copy()


class Seen(keras.callbacks.Callback):
    """Records what Keras itself reports for each batch."""

    def __init__(self):
        super().__init__()
        self.logs, self.weights = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.logs.append(dict(logs))
        self.weights.append([values(variable) for variable in self.model.variables])


def test_losses_and_metrics_without_configuration(tmp_path):
    hook = smd.KerasHook(str(tmp_path / "t"))
    history = fit(make(), hook, epochs=2)
    trial = finished(hook, tmp_path)
    # At every 500th step, and at the end of each epoch.
    assert trial.steps() == [0, 2, 5]
    assert set(trial.tensor_names()) == {"accuracy", "batch", "loss"}
    assert trial.tensor("loss").value(5)[0] == pytest.approx(history.history["loss"][1])
    assert trial.tensor_names(collection="losses") == ["loss"]
    assert trial.tensor_names(collection="metrics") == ["accuracy", "batch"]


@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
def test_weights_gradients_and_optimizer_variables(tmp_path, eager):
    names = ["weights", "biases", "gradients", "optimizer_variables", "losses"]
    hook = every(tmp_path, include_collections=names)
    seen, model = Seen(), make(run_eagerly=eager)
    model.fit(X, Y, batch_size=8, verbose=0, shuffle=False, callbacks=[hook, seen])
    trial = finished(hook, tmp_path)
    assert trial.steps() == [0, 1, 2]
    assert set(trial.tensor_names(collection="weights")) == WEIGHTS
    assert set(trial.tensor_names(collection="gradients")) == GRADIENTS
    biases = ["first/weights/first/bias:0", "last/weights/last/bias:0"]
    assert trial.tensor_names(collection="biases") == biases
    kernel = model.variables.index(model.get_layer("first").kernel)
    for step in range(3):  # weights after the update
        found = trial.tensor("first/weights/first/kernel:0").value(step)
        np.testing.assert_array_equal(found, seen.weights[step][kernel])
        if step < 2:
            assert trial.tensor("loss").value(step)[0] == pytest.approx(seen.logs[step]["loss"])
    # Adam's first momentum is a tenth of the gradient.
    momentum = trial.tensor("adam/sequential_first_kernel_momentum:0").value(0)
    gradient = trial.tensor("gradients/first/kernelGrad").value(0)
    np.testing.assert_allclose(momentum, gradient * 0.1, rtol=1e-5)
    assert trial.tensor("adam/iteration:0").value(2).tolist() in (3, [3])


@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
def test_inputs_and_outputs_of_layers(tmp_path, eager):
    hook = every(tmp_path, include_collections=["layers", "relu"])
    model = make(run_eagerly=eager)
    hook.get_collection("relu").add_keras_layer(model.get_layer("first"))
    fit(model, hook)
    trial = finished(hook, tmp_path)
    assert trial.tensor_names(collection="relu") == ["first/outputs"]
    np.testing.assert_array_equal(trial.tensor("first/inputs").value(1), X[8:16])
    outputs = trial.tensor("first/outputs").value(1)
    assert outputs.shape == (8, 5) and (outputs >= 0).all()
    assert {"norm/inputs", "last/outputs"} <= set(trial.tensor_names())


@pytest.mark.thorough
def test_a_model_that_was_compiled_before_is_compiled_anew(tmp_path):
    model = make()
    fit(model)
    hook = every(tmp_path, include_collections=["gradients"])
    fit(model, hook)
    assert set(finished(hook, tmp_path).tensor_names(collection="gradients")) == GRADIENTS


def test_modes_of_fit_evaluate_and_predict(tmp_path):
    hook = every(tmp_path, include_collections=["gradients", "losses", "outputs"])
    model = make()
    fit(model, hook, validation_data=(X[:8], Y[:8]))
    model.evaluate(X, Y, batch_size=12, verbose=0, callbacks=[hook])
    found = model.predict(X, batch_size=24, verbose=0, callbacks=[hook])
    trial = finished(hook, tmp_path)
    assert trial.steps(mode=smd.modes.TRAIN) == [0, 1, 2]
    assert trial.steps(mode=smd.modes.EVAL) == [0, 1, 2]
    assert trial.steps(mode=smd.modes.PREDICT) == [0]
    assert trial.tensor("gradients/last/biasGrad").steps(mode=smd.modes.EVAL) == []
    assert trial.tensor("val_loss").steps() == [3]
    np.testing.assert_array_equal(trial.tensor("predictions").value(0, mode=smd.modes.PREDICT), found)


def test_reductions_scalars_and_tensors(tmp_path):
    reductions = smd.ReductionConfig(reductions=["mean"], abs_norms=["l2"])
    hook = every(tmp_path, include_collections=["weights"], reduction_config=reductions)
    model = make()

    class Mine(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            hook.save_scalar("rate", batch / 2)
            hook.save_tensor("mine", tf.fill([3], batch), collections_to_write="weights")
            hook.record_tensor_value("own_metric", batch * 1.0)

    model.fit(X, Y, batch_size=8, verbose=0, shuffle=False, callbacks=[hook, Mine()])
    kernel = values(model.get_layer("last").kernel)
    trial = finished(hook, tmp_path)
    found = trial.tensor("last/weights/last/kernel:0")
    assert found.reduction_value(2, "mean") == pytest.approx(kernel.mean(), rel=1e-5)
    assert found.reduction_value(2, "l2", abs=True) == pytest.approx(np.linalg.norm(kernel), rel=1e-5)
    assert [trial.tensor("scalar/rate").value(step)[0] for step in range(3)] == [0, 0.5, 1]
    assert trial.tensor("mine").steps() == [0, 1, 2]
    assert "own_metric" in trial.tensor_names(collection="metrics")


def loop(hook=None, steps=3, model=None):
    """Trains in a custom loop; returns losses, gradients and weights before each update."""
    model = make(compiled=False) if model is None else model
    optimizer = keras.optimizers.SGD(0.1)
    if hook is not None:
        optimizer = hook.wrap_optimizer(optimizer)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    seen = []
    for step in range(steps):
        x, y = X[8 * step : 8 * step + 8], Y[8 * step : 8 * step + 8]
        before = values(model.get_layer("first").kernel)
        tape = tf.GradientTape()
        with tape if hook is None else hook.wrap_tape(tape) as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        if hook is not None:
            hook.save_tensor("step", tf.constant(step), collections_to_write="metrics")
        seen.append((float(loss), gradients[0].numpy(), before))
    return seen, [values(variable) for variable in model.variables]


def test_a_loop_with_a_tape(tmp_path):
    names = ["weights", "biases", "gradients", "losses", "layers", "optimizer_variables"]
    hook = every(tmp_path, include_collections=names)
    model = make(compiled=False)
    hook.register_model(model)
    seen, _ = loop(hook, model=model)
    trial = finished(hook, tmp_path)
    assert trial.steps(mode=smd.modes.TRAIN) == [0, 1, 2]
    for step, (loss, gradient, before) in enumerate(seen):
        assert float(trial.tensor("loss").value(step)) == pytest.approx(loss)
        np.testing.assert_array_equal(trial.tensor("gradients/first/kernelGrad").value(step), gradient)
        np.testing.assert_array_equal(trial.tensor("weights/first/kernel:0").value(step), before)
    assert set(trial.tensor_names(collection="gradients")) == GRADIENTS
    assert int(trial.tensor("sgd/iteration:0").value(2)) == 2  # before the update
    assert trial.tensor_names(collection="metrics") == ["step"]
    assert "weights/last/bias:0" in trial.tensor_names(collection="biases")
    np.testing.assert_array_equal(trial.tensor("first/inputs").value(2), X[16:24])


def test_a_tape_stays_a_tape(tmp_path):
    hook = every(tmp_path)
    weight = tf.Variable([2.0], name="w")
    with hook.wrap_tape(tf.GradientTape(persistent=True)) as tape:
        loss = weight * weight
        with tape.stop_recording():
            loss_twice = 2 * loss
    assert isinstance(tape, tf.GradientTape)
    assert tape.gradient(loss, weight).numpy().tolist() == [4.0]
    assert tape.gradient(loss_twice, weight) is None
    trial = finished(hook, tmp_path)
    assert trial.steps() == [0]


def test_own_variables_go_into_collections(tmp_path):
    hook = every(tmp_path, include_collections=["mine"])
    own = tf.Variable([1.0, 2.0], name="own")
    hook.get_collection("mine").add([own])
    model = make()
    hook.add_to_collection("mine", model.get_layer("last").bias)
    fit(model, hook)
    trial = finished(hook, tmp_path)
    assert trial.tensor("own:0").value(0).tolist() == [1.0, 2.0]
    assert len(trial.tensor_names(collection="mine")) == 2
    with pytest.raises(SMDebugTypeError, match=r"hook\.save_tensor"):
        hook.get_collection("mine").add(tf.constant(1.0))


@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
def test_trainings_are_bit_by_bit_the_same(tmp_path, eager):
    bare, watched = make(run_eagerly=eager), make(run_eagerly=eager)
    without = fit(bare, epochs=2).history
    hook = every(tmp_path, save_all=True)
    assert fit(watched, hook, epochs=2).history == without
    for one, other in zip(bare.variables, watched.variables, strict=True):
        assert values(one).tobytes() == values(other).tobytes()


def test_loops_are_bit_by_bit_the_same(tmp_path):
    (losses, bare), (again, watched) = loop(), loop(every(tmp_path, save_all=True))
    assert [loss for loss, *_ in losses] == [loss for loss, *_ in again]
    assert [a.tobytes() for a in bare] == [a.tobytes() for a in watched]


def test_get_hook_and_a_json_file(tmp_path, monkeypatch):
    assert smd.get_hook("keras") is None
    with pytest.raises(SMDebugValueError, match="hook_type"):
        smd.get_hook(create_if_not_exists=True)
    path = tmp_path / "hook.json"
    parameters = {"save_interval": "2", "reductions": "mean", "save_raw_tensor": "false"}
    text = {"LocalPath": str(tmp_path / "t"), "HookParameters": parameters}
    path.write_text(json.dumps({**text, "CollectionConfigurations": [{"CollectionName": "weights"}]}))
    monkeypatch.setenv("SMDEBUG_CONFIG_FILE_PATH", str(path))
    hook = smd.get_hook("keras", create_if_not_exists=True)
    assert smd.get_hook("keras") is hook is smd.get_hook()
    fit(make(), hook)
    trial = finished(hook, tmp_path)
    assert trial.tensor("first/weights/first/kernel:0").steps() == [0, 2]
    assert trial.tensor("first/weights/first/kernel:0").reduction_value(2, "mean") is not None


def test_sessions_and_estimators_are_refused_and_told_what_to_use(tmp_path):
    for kind in (smd.SessionHook, smd.EstimatorHook):
        with pytest.raises(SMDebugError, match="KerasHook"):
            kind(str(tmp_path / "t"))
    with pytest.raises(SMDebugError, match="TensorFlow 1"):
        smd.SessionHook.create_from_json_file()
    with pytest.raises(SMDebugTypeError, match="optimizer of Keras"):
        every(tmp_path).wrap_optimizer(object())
    with pytest.raises(SMDebugTypeError, match="GradientTape"):
        every(tmp_path).wrap_tape(object())


def test_under_smdebug_s_own_name():
    smdebug.install()
    try:
        import smdebug.tensorflow as named
        from smdebug.tensorflow.keras import KerasHook

        assert named.KerasHook is KerasHook is smd.KerasHook
    finally:
        smdebug.uninstall()


@pytest.mark.thorough
def test_an_unchanged_script(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import keras, numpy as np, smdebug.tensorflow as smd\n"
        "model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1, name='only')])\n"
        "model.compile('sgd', 'mse')\n"
        "hook = smd.KerasHook(out_dir='out', save_all=True, save_config=smd.SaveConfig(save_interval=1))\n"
        "model.fit(np.ones((8, 3)), np.ones((8, 1)), batch_size=4, verbose=0, callbacks=[hook])\n"
    )
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-m", "luff.compat.smdebug", "train.py"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    trial = smd.create_trial(str(tmp_path / "out"))
    assert trial.steps() == [0, 1]
    names = {"only/weights/only/kernel:0", "gradients/only/biasGrad", "only/outputs", "loss"}
    assert names <= set(trial.tensor_names())
