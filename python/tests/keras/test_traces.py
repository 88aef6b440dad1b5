"""Traces of a few steps with TensorFlow's own profiler: the same results, nothing printed, within the run."""

from __future__ import annotations

import shutil
from pathlib import Path

import luff
import pytest

LOOP = """
import hashlib, os, sys
import keras, numpy as np

keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
rng = np.random.default_rng(0)
for i in range(20):
    CODE
    x = rng.normal(size=(4, 8)).astype("float32")
    model.train_on_batch(x, x[:, :1])
weights = b"".join(np.asarray(w).tobytes() for w in model.get_weights())
print(hashlib.sha256(weights).hexdigest(), np.random.rand(), sys.getprofile())
"""
FIT = """
import hashlib, sys
import keras, numpy as np

keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
x = np.random.default_rng(0).normal(size=(160, 8)).astype("float32")

class Asks(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 7: CODE

model.fit(x, x[:, :1], batch_size=8, epochs=1, verbose=0, shuffle=False, callbacks=[Asks()])
model.evaluate(x, x[:, :1], verbose=0)
print(hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest())
"""


def said(done):
    return sorted(
        line.split("]")[-1]
        for line in done.stderr.splitlines()
        if line and not line.startswith(("luff", " "))
    )


@pytest.mark.parametrize("text", [LOOP, FIT], ids=["loop", "fit"])
def test_a_trace_changes_no_result_and_prints_nothing(start_luff, phases_of, tmp_path, text):
    bare = start_luff(text.replace("CODE", "pass"))
    shutil.rmtree(tmp_path / "run")
    code = "import luff; assert luff.trace(3) == ''"
    if text is LOOP:
        code = f"if i == 7:\n        {code}"
    traced = start_luff(text.replace("CODE", code))
    assert (traced.stdout, len(said(traced))) == (bare.stdout, len(said(bare))), traced.stderr
    shown, _ = phases_of()
    (trace,) = shown["traces"]
    assert trace["refused"] is None and trace["steps"] == 3 and trace["first_step"] in (7, 8)
    assert shown["traced"]["steps"] >= 3
    (path,) = Path(tmp_path / "run").glob("w0000/traces/*")
    assert str(path) == trace["file"] and path.stat().st_mode & 0o777 == 0o600
    assert b'luff {"rank": 0, "world_size": 1' in path.read_bytes()
    assert trace["summary"]["operators"]


@pytest.mark.parametrize("of", ["tf.profiler", "tf.compat.v2.profiler"])
def test_a_profiler_of_the_trainings_own_has_precedence(start_luff, phases_of, tmp_path, of):
    own = tmp_path / "own"
    code = f"""import luff
    if i == 5: assert luff.trace(9) == ''
    if i == 7: start({str(own)!r})
    if i == 8: assert 'another profiler of TensorFlow' in luff.trace(2)
    if i == 9: stop()
    if i == 12: assert luff.trace(2) == ''"""
    held = f"import tensorflow as tf\nstart, stop = {of}.experimental.start, {of}.experimental.stop\n"
    start_luff(held + LOOP.replace("CODE", code))
    assert list(own.rglob("*.xplane.pb"))
    told = [(one["first_step"], one["steps"], bool(one["file"])) for one in phases_of()[0]["traces"]]
    assert told == [(5, 2, True), (8, 0, False), (12, 2, True)]


@pytest.mark.parametrize("level", [None, "1"])
def test_a_trace_that_would_print_is_made_only_for_a_person(start_luff, phases_of, monkeypatch, level):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    if level is not None:
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)
    code = """import luff, luff.keras
    if i == 3:
        asked = {"finding": "f", "rule": "InputBound", "share": 1e3}  # not refused for what the run has taken so far
        luff.keras.get_hook()._trace(2, False, asked)
        print("action", file=sys.stderr)
    if i == 9: print("person", luff.trace(2, stacks=True), luff.trace(2), file=sys.stderr)
    if i == 12: print("after", file=sys.stderr)"""
    done = start_luff(LOOP.replace("CODE", code))
    action, person = phases_of()[0]["traces"][:1], phases_of()[0]["traces"][-1]
    during = (
        done.stderr.split("action\n")[1].split("person")[0],
        done.stderr.split("person")[1].split("after")[0],
    )
    assert "does not trace functions of Python" in during[1].splitlines()[0]
    assert person["file"] and person["steps"] == 2
    assert bool(action[0]["file"]) == (level is not None), action
    if level is None:
        assert "TF_CPP_MIN_LOG_LEVEL" in action[0]["refused"]
    else:
        assert "profiler_session" not in done.stderr and "save_profile" not in done.stderr


def test_steps_of_another_training_are_marked_while_one_is_traced(script, tmp_path):
    script("""
        import keras, numpy as np, luff, luff.keras

        def made():
            model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
            return model

        first, second = made(), made()
        hook = luff.keras.attach(first, run="first")
        other = luff.keras.attach(second, run="second")
        x = np.ones((4, 8), np.float32)

        def trains(model):
            model.train_on_batch(x, x[:, :1])

        for i in range(12):
            if i == 5: assert hook.trace(2) == ""
            trains(first)
            trains(second)
        assert hook.trace(9) == ""  # and its training goes on no more
        for i in range(3): trains(second)
        hook.close(), other.close()
    """)
    marked = {}
    for name in ("first", "second"):
        with luff.open_trial(tmp_path / name) as trial:
            marked[name] = set(trial.profile().steps["traced"].nonzero()[0].tolist())
    # Step 7 may be open when the trace ends.
    assert {5, 6} <= marked["first"] and not marked["first"] & {0, 1, 2, 3, 4, 8, 9, 10}
    assert {5, 12, 13, 14} <= marked["second"] and not marked["second"] & {9, 10}
