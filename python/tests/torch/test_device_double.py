"""The whole path of an accelerator's values: real sessions, the real kernels on the CPU, a double of the driver, and
tensors of the CPU that say they were on device 0. And what happens where there is no such driver.
"""

from __future__ import annotations

import gzip
import importlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import luff
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[3]
DOUBLE = Path(os.environ.get("LUFF_DRIVER_DOUBLE", ROOT / "build/dev/testing/libcuda_double.so"))
LUFF = os.environ.get("LUFF_EXECUTABLE") or shutil.which("luff")
needs_double = pytest.mark.skipif(not DOUBLE.exists(), reason="the double of the driver is not built")

PRELUDE = """
import ctypes, json, sys
import torch, luff, luff.torch
from luff.torch.capture import _device

def pretend():
    here = torch._C.TensorBase.is_cpu
    torch.Tensor.is_cuda = property(lambda t: bool(here.__get__(t)))
    torch.Tensor.is_cpu = property(lambda t: False)
    torch.Tensor.get_device = lambda t: 0
    _device._raw_stream = lambda device: 0

def driver(missing="", version=0, failing_call=0, free_mib=0):
    double = ctypes.CDLL(sys.argv[1])
    double.luff_double_misuse.restype = ctypes.c_char_p
    double.luff_double_begin(missing.encode(), version, failing_call, free_mib)
    return double

def train(steps=12):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    hook = luff.torch.attach(model, run="run", accelerators=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, sums = [], []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.CrossEntropyLoss()(model(torch.randn(8, 6)), torch.randint(0, 3, (8,)))
        loss.backward()
        sums.append([float(p.detach().double().sum()) for p in (model[0].weight, model[0].weight.grad)])
        optimizer.step()
        losses.append(float(loss.detach()))
    health = hook.health()
    hook.close()
    return {"losses": losses, "sums": sums, "health": health}

def loaded():
    return [line.split()[-1] for line in open("/proc/self/maps") if "libcuda" in line or "libnvidia" in line]
"""


def run(tmp_path, script, expect=0, more=(), **environment):
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(script), str(DOUBLE), *more],
        cwd=tmp_path, env=os.environ | environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == expect, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def reasons(trial):
    return {gap["reason"] for gap in trial.gaps()}


def trial_name(trial, end):
    gradient, name = end.startswith("gradient/"), end.removeprefix("gradient/")
    (found,) = [n for n in trial.tensors() if n.endswith(name) and n.startswith("gradient/") == gradient]
    return found


@needs_double
def test_values_of_a_training(tmp_path):
    out = run(
        tmp_path,
        """
        double = driver()
        pretend()
        result = train()
        result["misuse"] = double.luff_double_misuse().decode()
        result["launches"] = double.luff_double_launches()
        print(json.dumps(result))
        """,
    )
    assert out["misuse"] == ""
    assert out["launches"] == 24  # weights and gradients at each step
    trial = luff.open_trial(tmp_path / "run")
    losses = trial.scalars("CrossEntropyLoss_output_0")["value"]
    assert losses.tolist() == pytest.approx(out["losses"], rel=1e-6)
    tensor = trial.tensor("CrossEntropyLoss_output_0")
    assert [float(tensor.value(step)) for step in tensor.value_steps()] == pytest.approx(
        out["losses"], rel=1e-6
    )
    for name, at in (("0.weight", 0), ("gradient/0.weight", 1)):
        tensor = trial.tensor(trial_name(trial, name))
        sums = [tensor.summary(step)["sum"] for step in tensor.steps()]
        assert sums == pytest.approx([row[at] for row in out["sums"]], rel=1e-5, abs=1e-6)
    profile = trial.profile()
    known = profile.steps["device"] >= 0
    assert known.tolist() == [False] + [True] * 11  # the first step had begun before the device was read
    # The double works before its calls return; of the step before the first one that is known nothing is.
    assert profile.steps["device_idle"][known].tolist() == [0] + [1] * 10
    parts = sum(np.nan_to_num(seconds) for seconds in profile.device_phases.values())
    assert set(profile.device_phases) == {"other", "forward", "backward", "optimizer"}
    assert parts[known] == pytest.approx(profile.steps["device"][known])
    assert reasons(trial) <= {"unsupported"}  # values of inputs and outputs that a collection asks for


@needs_double
@pytest.mark.skipif(LUFF is None, reason="no luff on PATH")
def test_times_of_the_device_are_shown(tmp_path):
    run(tmp_path, "double = driver(); pretend(); print(json.dumps(train()))")

    def luff_says(*arguments):
        done = subprocess.run([LUFF, *arguments], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    text = luff_says("profile", str(tmp_path / "run"))
    assert "      all     device  in steps" in text
    assert "the device had done all of the step before when 91 % of the steps began" in text
    assert "devices: the times are those of the host" not in text
    told = json.loads(luff_says("profile", str(tmp_path / "run"), "--json"))
    assert (told["device"]["steps"], told["device"]["idle_steps"]) == (11, 10)
    of = {line["phase"]: line["device_steps"] for line in told["phases"]}
    assert of["forward"] == of["backward"] == of["optimizer"] == of["other"] == 11
    luff_says("export", str(tmp_path / "run"), str(tmp_path / "trace.json.gz"), "--to", "chrome")
    trace = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
    steps = [event["args"] for event in trace["traceEvents"] if event.get("cat") == "step"]
    assert sum("device_ms" in notes for notes in steps) == 11
    assert any(
        event["name"] == "backward" and "device_ms" in event["args"]
        for event in trace["traceEvents"]
        if event.get("cat") == "phase"
    )


@needs_double
@pytest.mark.parametrize("part", ["forms", "samples"])
def test_parts_that_run_on_a_gpu(tmp_path, part):
    out = run(
        tmp_path,
        f"""
        from pathlib import Path
        sys.path.insert(0, {str(ROOT / "tests/gpu")!r})
        import parts
        double = driver(free_mib=8000)
        there, here = [], torch._C.TensorBase.is_cpu
        torch.Tensor.is_cuda = property(lambda t: bool(there and here.__get__(t)))
        torch.Tensor.is_cpu = property(lambda t: bool(not there and here.__get__(t)))
        torch.Tensor.get_device = lambda t: 0
        torch.Tensor.cuda = torch.nn.Module.cuda = lambda self: there.append(1) or self
        _device._raw_stream = lambda device: 0
        rows = list(parts.PARTS[{part!r}](Path(".")))
        print(json.dumps([rows, double.luff_double_misuse().decode()]))
        """,
    )
    assert out[1] == ""
    assert len(out[0]) > 2
    assert [row for row in out[0] if row["status"] != "passed"] == []


@needs_double
def test_the_kernels_alone():
    """`tests/gpu/kernels.py`, whose gates mean nothing here."""
    command = [sys.executable, str(ROOT / "tests/gpu/kernels.py"), "--library", str(DOUBLE)]
    command += ["--gigabytes", "0.001", "--repeats", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    values = [row for row in rows if "gate" not in row]
    assert [row for row in values if row["status"] == "failed"] == [], done.stderr
    assert sum(row["status"] == "passed" for row in values) == 2 * 14 + 3 + 3 + 1
    gates = [row["check"] for row in rows if "gate" in row]
    assert len(gates) == 3, rows
    assert all(row["value"] > 0 for row in rows if "gate" in row)


def ways(tmp_path, monkeypatch, names):
    """Trains in each of these ways on the CPU, and watched on the double; returns what differs, and what was tried."""
    monkeypatch.syspath_prepend(str(ROOT / "tests/gpu"))
    monkeypatch.delitem(sys.modules, "identical", raising=False)
    identical = importlib.import_module("identical")
    command = [sys.executable, str(ROOT / "tests/gpu/on_double.py"), str(DOUBLE)]
    rows = list(identical.identical(tmp_path, "cpu", names, command))
    return [row for row in rows if row["status"] != "passed"], rows


@needs_double
def test_ways_to_train(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests/gpu"))
    trainings = importlib.import_module("trainings")
    left_out = trainings.ONLY_CUDA | set(trainings.ALONE) | trainings.COMPILED
    names = [name for name in trainings.CASES if name not in left_out]
    wrong, rows = ways(tmp_path, monkeypatch, names)
    assert wrong == []
    assert len(rows) == 2 * len(names) > 30


@needs_double
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "fsdp",
        # On the CPU both are tested often, and on the double what they wrap.
        pytest.param("ddp", marks=pytest.mark.thorough),
        pytest.param("ddp_of_two", marks=pytest.mark.thorough),
    ],
)
def test_ways_to_train_in_a_group(tmp_path, monkeypatch, name):
    wrong, rows = ways(tmp_path, monkeypatch, [name])
    assert wrong == []
    assert len(rows) == 2


@needs_double
@pytest.mark.thorough
def test_compiled_ways_to_train(tmp_path, monkeypatch):
    wrong, rows = ways(tmp_path, monkeypatch, ["compiled", "compiled_optimizer"])
    assert wrong == []
    assert len(rows) == 3


#: Trains a classifier with an evaluation, with all that the rules ask for.
CLASSIFIER = """
def classifier(accelerators):
    import subprocess
    torch.manual_seed(0)
    wanted = subprocess.run([sys.argv[2], "rules", "--capture"], capture_output=True, check=True).stdout
    collections = {c.pop("name"): c for c in json.loads(wanted)["collections"]}
    layers = torch.nn.Linear(600, 32), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 4)
    model = torch.nn.Sequential(*layers)
    loss_of = torch.nn.CrossEntropyLoss()
    hook = luff.torch.attach(model, run="run", collections=collections, accelerators=accelerators)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    truth = torch.randn(600, 4)
    data = torch.randn(320, 600)
    labels = (data @ truth).argmax(1)
    result = []
    for epoch in range(4):
        model.train()
        order = torch.randperm(256)
        for part in order.split(32):
            optimizer.zero_grad()
            loss = loss_of(model(data[part]), labels[part])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 100.0)
            optimizer.step()
            result.append(float(loss.detach()))
        model.eval()
        with torch.no_grad():
            loss_of(model(data[256:]), labels[256:])
    hook.close()
    return result
"""


def judged(run):
    """Returns what each rule lacks of a run that has ended; "" for those that judged."""
    subprocess.run([LUFF, "watch", str(run)], capture_output=True, timeout=120, check=False)
    state = json.loads((run / "rules/luff/checkpoint.json").read_text())
    return {rule["rule"]: rule["lacks"] for rule in state["rules"]}


@needs_double
@pytest.mark.skipif(LUFF is None, reason="no luff on PATH")
def test_rules_find_what_they_find_on_the_cpu(tmp_path):
    results, runs = [], {}
    for name, prepare in (("cpu", ""), ("device", "double = driver(); pretend()")):
        (tmp_path / name).mkdir()
        script = f"{CLASSIFIER}\n{prepare}\nprint(json.dumps(classifier({bool(prepare)})))\n"
        results.append(run(tmp_path / name, script, more=[LUFF]))
        runs[name] = tmp_path / name / "run"
    assert results[0] == results[1]
    lacks = {name: judged(path) for name, path in runs.items()}
    cpu, device = ({rule for rule, lack in lacks[name].items() if not lack} for name in ("cpu", "device"))
    assert device <= cpu
    page = (ROOT / "docs/gpu.md").read_text()
    listed = page.split("<!-- rules without data on a GPU -->")[1].split("\n\n")[0]
    assert {
        word for word in listed.replace(",", " ").replace(".", " ").split() if word[0].isupper()
    } == cpu - device
    # What the rules see is the same, but for what the page lists.
    trials = {name: luff.open_trial(path) for name, path in runs.items()}
    for name in trials["cpu"].tensors():
        one, other = (trial.tensor(name) for trial in trials.values())
        assert list(one.value_steps())[1:] == list(other.value_steps())[1:], name
        for step in list(one.value_steps())[1:]:
            assert (one.value(step) == other.value(step)).all(), (name, step)
    assert {gap["reason"] for gap in trials["device"].gaps()} - {
        gap["reason"] for gap in trials["cpu"].gaps()
    } <= {
        "not seen",
        "unsupported",
    }


@pytest.fixture(scope="module")
def on_the_cpu(tmp_path_factory):
    """A training on the CPU: what it computed, and what it loaded and started."""
    return run(
        tmp_path_factory.mktemp("cpu"),
        """
        import os
        before = loaded()
        result = train()
        result["after_import"] = before
        result["after_training"] = loaded()
        result["threads"] = [open(f"/proc/self/task/{t}/comm").read().strip() for t in os.listdir("/proc/self/task")]
        print(json.dumps(result))
        """,
    )


WRONG_DRIVERS = {
    'missing="cuEventQuery"': "the driver lacks cuEventQuery",
    "version=11010": "the driver supports CUDA 11.1",
    "failing_call=7": "CUDA_ERROR_UNKNOWN (400)",
}


@needs_double
def test_a_driver_that_does_not_do(tmp_path, on_the_cpu):
    calls = ", ".join(f"lambda: driver({how})" for how in WRONG_DRIVERS)
    out = run(
        tmp_path,
        f"""
        import os
        pretend()
        results = []
        for begin in ({calls}):
            os.mkdir(str(len(results)))
            os.chdir(str(len(results)))
            begin()
            results.append(train())
            os.chdir("..")
        print(json.dumps(results))
        """,
    )
    for i, word in enumerate(WRONG_DRIVERS.values()):
        assert out[i]["losses"] == on_the_cpu["losses"]
        assert out[i]["health"]["accepting"] is not None
        trial = luff.open_trial(tmp_path / str(i) / "run")
        assert "device error" in reasons(trial)
        events = [json.dumps(event) for event in trial.events()]
        assert any(word in event for event in events), events


@needs_double
@pytest.mark.parametrize("codes", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_a_driver_that_fails_at_any_call_changes_no_training(tmp_path, on_the_cpu, codes):
    out = run(
        tmp_path,
        """
        import os
        pretend()
        results = []
        for turn, call in enumerate([*range(1, 40, 5), *range(40, 200, 40)]):
            for failure in (2, 400) if sys.argv[2] == "2" else ((2, 400)[turn % 2],):
                os.mkdir(f"{call}-{failure}")
                os.chdir(f"{call}-{failure}")
                double = driver()
                double.luff_double_fail_at(call, failure)
                result = train()
                results.append([call, failure, result["losses"], result["health"]["counters"]["device_errors"],
                                double.luff_double_misuse().decode()])
                os.chdir("..")
        print(json.dumps(results))
        """,
        more=[str(codes)],
    )
    errors = 0
    for call, failure, losses, count, misuse in out:
        assert losses == on_the_cpu["losses"], call
        assert misuse == "", call
        trial = luff.open_trial(tmp_path / f"{call}-{failure}" / "run")
        assert len(trial.steps("TRAIN")) == 12, call
        errors += count
        if count:
            assert any("device_error" in json.dumps(event) for event in trial.events()), call
    assert errors > 2 * codes


@needs_double
def test_a_device_that_is_reset_between_steps(tmp_path):
    out = run(
        tmp_path,
        """
        double = driver()
        pretend()
        model = torch.nn.Linear(6, 3)
        hook = luff.torch.attach(model, run="run", accelerators=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(8):
            if step == 4:
                model(torch.ones(2, 6))  # ends step 3
                assert hook.flush(60)  # else its values may be read while their memory goes
                double.luff_double_reset_device()
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(torch.ones(2, 6)), torch.zeros(2, 3)).backward()
            optimizer.step()
        health = hook.health()
        hook.close()
        print(json.dumps([health, double.luff_double_misuse().decode()]))
        """,
    )
    assert out[0]["counters"]["device_errors"] == 1
    assert out[1] == ""
    trial = luff.open_trial(tmp_path / "run")
    assert len(trial.steps("TRAIN")) == 8
    weight = trial.tensor(trial_name(trial, "weight"))
    assert list(weight.steps()) == [0, 1, 2, 3]
    assert "device error" in reasons(trial)


def test_tensors_of_a_device_without_driver_are_gaps(tmp_path):
    out = run(
        tmp_path,
        """
        pretend()
        result = train()
        result["loaded"] = loaded()
        print(json.dumps(result))
        """,
    )
    assert len(out["losses"]) == 12
    assert out["loaded"] == []
    assert "unsupported" in reasons(luff.open_trial(tmp_path / "run"))


def test_a_training_on_the_cpu_loads_nothing_and_starts_nothing(on_the_cpu):
    assert on_the_cpu["after_import"] == on_the_cpu["after_training"] == []
    assert "luff-device" not in on_the_cpu["threads"]


def test_devices_that_are_hidden_are_not_looked_for(tmp_path):
    out = run(
        tmp_path,
        """
        result = train()
        result["loaded"] = loaded()
        tasks = __import__("pathlib").Path("/proc/self/task")
        result["threads"] = [task.read_text().strip() for task in tasks.glob("*/comm")]
        print(json.dumps(result))
        """,
        CUDA_VISIBLE_DEVICES="",
    )
    assert len(out["losses"]) == 12
    assert out["loaded"] == []
    assert "luff-device" not in out["threads"]
    trial = luff.open_trial(tmp_path / "run")
    assert trial.tensor(trial_name(trial, "0.weight")).steps() == list(range(12))


def test_a_broken_driver_library_is_not_opened(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libcuda.so.1").write_text("no library")
    out = run(
        tmp_path,
        """
        pretend()
        print(json.dumps(train()))
        """,
        LD_LIBRARY_PATH=f"{tmp_path / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}",
    )
    assert len(out["losses"]) == 12
