"""Traces of a few steps with JAX's own profiler: the same results, nothing printed, within the run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = """
import hashlib, os, sys
import jax, jax.numpy as jnp, numpy as np, optax

def loss_fn(params, x, y): return jnp.mean((x @ params["w"] - y) ** 2)
params = {"w": jnp.zeros((8, 1))}
optimizer = optax.adam(0.1)
state = optimizer.init(params)

@jax.jit
def step(params, state, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, loss

i = 0
while GOES_ON:
    CODE
    x = jax.random.normal(jax.random.key(i), (4, 8))
    params, state, loss = step(params, state, x, x[:, :1])
    float(loss)
    i += 1
print(hashlib.sha256(np.asarray(params["w"]).tobytes()).hexdigest(), np.random.rand(), sys.getprofile())
"""


def program(code="pass", goes_on="i < 20"):
    return "import numpy; numpy.random.seed(0)\n" + SCRIPT.replace("CODE", code).replace("GOES_ON", goes_on)


def said(done):
    return [line for line in done.stderr.splitlines() if not line.startswith(("luff", " ")) and line]


def files(run):
    return sorted(Path(run).glob("w0000/traces/*"))


def test_a_trace_changes_no_result_and_prints_nothing(start_luff, phases_of, tmp_path):
    bare = start_luff(program())
    shutil.rmtree(tmp_path / "run")
    traced = start_luff(program("import luff\n    if i == 7: assert luff.trace(3) == '', luff.trace(3)"))
    assert (traced.stdout, said(traced)) == (bare.stdout, said(bare))
    shown, lines = phases_of()
    (trace,) = shown["traces"]
    assert (trace["first_step"], trace["steps"], trace["refused"]) == (7, 3, None)
    assert shown["traced"]["steps"] >= 3 and "trace" not in lines
    (path,) = files(tmp_path / "run")  # of the profiler's own folder nothing is left
    assert str(path) == trace["file"] and path.stat().st_mode & 0o777 == 0o600
    assert b'luff {"rank": 0, "world_size": 1' in path.read_bytes()
    exported = tmp_path / "out.json"
    executable = os.environ.get("LUFF_EXECUTABLE") or shutil.which("luff")
    done = subprocess.run(
        [executable, "export", str(tmp_path / "run"), str(exported), "--to", "chrome"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "1 trace of operators" in done.stdout + done.stderr  # it says when it was made
    names = " ".join(one["name"] for one in trace["summary"]["operators"])
    assert "step" in names and trace["summary"]["functions"] == []


def test_functions_of_python_on_request(start_luff, phases_of):
    start_luff(program("import luff\n    if i == 7: luff.trace(2, stacks=True)"))
    (trace,) = phases_of()[0]["traces"]
    assert trace["summary"]["functions"]  # of JAX: the script's own code calls none in a step


@pytest.mark.parametrize("by", ["module", "name"])
def test_a_profiler_of_the_trainings_own_has_precedence(start_luff, phases_of, tmp_path, by):
    own = tmp_path / "own"
    of = "jax.profiler." if by == "module" else ""
    start_luff(
        "from jax.profiler import start_trace, stop_trace\n"
        + program(f"""import luff
    if i == 5: assert luff.trace(9) == ''
    if i == 7: {of}start_trace({str(own)!r})
    if i == 8: assert 'another profiler of JAX' in luff.trace(2)
    if i == 9: {of}stop_trace()
    if i == 12: assert luff.trace(2) == ''""")
    )
    assert list(own.rglob("*.xplane.pb"))
    told = [(one["first_step"], one["steps"], bool(one["file"])) for one in phases_of()[0]["traces"]]
    assert told == [(5, 2, True), (8, 0, False), (12, 2, True)]


def test_a_profiler_that_begins_while_luff_begins_waits_for_it(start_luff, phases_of, tmp_path):
    own = tmp_path / "own"
    start_luff(
        program(f"""import luff, luff._xplane, threading
    if i == 5:
        profiler, begins = luff._xplane.jax_profiler(), threading.Event()
        inner, begin = profiler.start, lambda *a: (begins.set(), other.join(1), inner(*a))
        profiler.start = begin
        def own():
            begins.wait(60)
            jax.profiler.start_trace({str(own)!r})
        other = threading.Thread(target=own)
        other.start()
        assert luff.trace(9) == ''
        other.join(60)
    if i == 7: jax.profiler.stop_trace()""")
    )
    assert list(own.rglob("*.xplane.pb"))
    assert [one["first_step"] for one in phases_of()[0]["traces"]] == [5]


@pytest.mark.parametrize("steps", [1, 3])
def test_a_trace_holds_the_steps_that_it_says(start_luff, phases_of, tmp_path, steps):
    start_luff(program(f"import luff\n    if i == 7: luff.trace({steps})"))
    (trace,) = phases_of()[0]["traces"]
    assert (trace["first_step"], trace["steps"]) == (7, steps)
    calls = {one["name"]: one["calls"] for one in trace["summary"]["operators"]}
    assert calls["PjitFunction(step)"] == 2 * steps, calls  # JAX tells each call twice


LIVES = """
import gc, time, weakref
import jax, jax.numpy as jnp, luff, luff.jax, luff._tracer
from jax._src import profiler

def profiles(): return profiler._profile_state.profile_session is not None
step = jax.jit(lambda w: (w - 0.1, w.sum()))

def train():
    hook = luff.jax.attach(run="run")
    w = jnp.ones(8)
    for _ in range(4):
        w, loss = step(w)
        hook.step(loss=loss, params={"w": w})
    assert luff.trace(10) == "" and profiles()
    return hook
"""


def test_a_trace_ends_while_the_training_does_not_call_luff(python):
    python(
        LIVES
        + """
luff._tracer._MOST_SECONDS = 1.0
hook = train()
until = time.monotonic() + 60
w = jnp.ones(8)
while profiles() and time.monotonic() < until: w, _ = step(w)  # an evaluation of the script's own
assert not profiles() and not hook._tracer.active
hook.close()
"""
    )


def test_a_trace_does_not_keep_its_hook_alive(python):
    python(
        LIVES
        + """
gc.disable()
def run():
    return weakref.ref(train())
gone = run()
until = time.monotonic() + 60  # the thread that looks after the trace may hold it for a moment
while gone() is not None and time.monotonic() < until: time.sleep(0.05)
assert gone() is None and not profiles()
with luff.open_trial("run") as trial: assert trial.outcome == "completed"
"""
    )


def test_what_a_killed_process_left_is_removed(python, tmp_path):
    left = tmp_path / "run" / "w0000" / "traces" / ".made-killed" / "plugins"
    python(
        LIVES
        + f"""
from pathlib import Path
left = Path({str(left)!r})
trace = luff.trace
def first(steps):
    left.mkdir(parents=True)
    return trace(steps)
luff.trace = first
train().close()
assert not left.parent.exists()
"""
    )


def test_a_profiler_that_cannot_be_ended_is_given_up(start_luff, phases_of, tmp_path):
    own = tmp_path / "own"
    start_luff(
        program(f"""import luff, luff.jax
    if i == 5:
        assert luff.trace(1) == ''
        luff.jax.get_hook()._tracer.profiler.stop = lambda: 1 / 0  # as on a full disk
    if i == 8: jax.profiler.start_trace({str(own)!r})
    if i == 9: jax.profiler.stop_trace()""")
    )
    assert list(own.rglob("*.xplane.pb"))
    (told,) = phases_of()[0]["traces"]
    assert told["file"] is None and "it cannot be written: ZeroDivisionError" in told["refused"]
    assert files(tmp_path / "run") == []


def test_a_training_that_ends_meanwhile_ends_its_trace(start_luff, phases_of, tmp_path):
    start_luff(program("import luff\n    if i == 18: luff.trace(10)"))
    (trace,) = phases_of()[0]["traces"]
    assert trace["file"] and trace["steps"] <= 2
    assert len(files(tmp_path / "run")) == 1


def test_a_running_job_is_traced_from_outside(tmp_path):
    executable = os.environ.get("LUFF_EXECUTABLE") or shutil.which("luff")
    if executable is None:
        pytest.skip("no luff on PATH")
    (tmp_path / "train.py").write_text(program(goes_on="not os.path.exists('enough')"))
    run = tmp_path / "run"
    import sys

    job = subprocess.Popen(
        [executable, "run", "--run", str(run), "--", sys.executable, "train.py"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        until = time.monotonic() + 90
        asked = None
        while time.monotonic() < until and job.poll() is None:
            if (run / "w0000" / "live").exists():
                asked = subprocess.run(
                    [executable, "trace", str(run), "--steps", "2", "--json", "--wait-s", "60"],
                    capture_output=True, text=True, timeout=90, check=False,
                )  # fmt: skip
                if asked.returncode == 0:
                    break
            time.sleep(0.2)
        assert asked is not None and asked.returncode == 0, asked
        (trace,) = json.loads(asked.stdout)["traces"]
        assert Path(trace["file"]).exists()
    finally:
        (tmp_path / "enough").touch()
        out, _ = job.communicate(timeout=60)
    assert job.returncode == 0, out
