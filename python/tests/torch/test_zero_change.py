"""Scripts that never mention Luff, started as ``luff run`` starts them: all settings are in the environment."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import luff
import numpy as np
import pytest

HERE = Path(__file__).parent
BOOTSTRAP = Path(luff.__file__).resolve().parent / "_bootstrap"
PACKAGE = Path(luff.__file__).parent.parent  # location of the tested luff

_core = pytest.importorskip("luff._core")
pytestmark = pytest.mark.skipif(not hasattr(_core, "Session"), reason="luff._core has no Session")

SCRIPT = """
import sys, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(torch.randn(8, 6)), torch.randint(0, 3, (8,)))
    loss.backward()
    optimizer.step()
    {inside}
print(loss.item().hex())
"""


RAW = {
    "collections": [
        {"name": name, "forms": ["raw", "summary"], "save": {"save_interval": 1}}
        for name in ("weights", "biases", "gradients", "optimizer_state")
    ]
}


def environment(run=None, config=None, **more):
    env = {
        key: value for key, value in os.environ.items() if key not in ("LUFF_SESSION", "PYTHONPATH", "RANK")
    }
    path = [str(PACKAGE)]
    if run is not None:
        env["LUFF_SESSION"] = json.dumps({"run": str(run), "resume": False, "config": config or {}})
        path.insert(0, str(BOOTSTRAP))
    return {**env, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1", **more}


def python(*arguments, env, check=True, command=(sys.executable,)):
    done = subprocess.run(
        [*command, *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=env.get("PWD_"),
    )
    if check:
        assert done.returncode == 0, done.stderr
    return done


def bare_and_seen(*arguments, run, config=None, check=True, command=(sys.executable,)):
    """Runs the same program without and with Luff, both at the same time."""
    with ThreadPoolExecutor(2) as pool:
        both = [
            pool.submit(
                python,
                *(a(env) if callable(a) else a for a in arguments),
                env=env,
                check=check,
                command=command,
            )
            for env in (environment(), environment(run, config))
        ]
        return [one.result() for one in both]


def workers(run):
    return sorted(path.name for path in Path(run).glob("w[0-9]*"))


def test_an_unchanged_script_is_recorded_and_computes_the_same(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(inside="pass"))
    bare, seen = bare_and_seen(str(script), run=tmp_path / "run")
    assert seen.stdout == bare.stdout
    assert seen.stderr == bare.stderr
    assert workers(tmp_path / "run") == ["w0000"]


def test_a_script_that_does_not_train_leaves_nothing(tmp_path):
    python("-c", "import torch; torch.nn.Linear(2, 2)(torch.zeros(1, 2))", env=environment(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_as_module_and_through_a_shell(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT.format(inside="pass"))
    shell = tmp_path / "go.sh"
    shell.write_text(f"cd {tmp_path}\n{sys.executable} -m train\n")
    python(str(shell), env=environment(tmp_path / "run"), command=("sh",))
    assert workers(tmp_path / "run") == ["w0000"]


def test_the_hidden_sitecustomize_runs(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('mine')")
    env = environment(tmp_path / "run")
    env["PYTHONPATH"] += os.pathsep + str(tmp_path)
    assert python("-c", "pass", env=env).stdout == "mine\n"


def test_a_python_without_luff_says_so_and_trains(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import sys\nsys.modules['luff'] = None\n" + SCRIPT.format(inside="pass"))
    done = python(str(script), env=environment(tmp_path / "run"))
    assert done.stdout
    assert done.stderr.count("\n") == 1
    assert "luff: this Python cannot import luff" in done.stderr


def test_loader_children_are_no_workers(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        SCRIPT.format(inside="pass").replace(
            "for step in range(20):",
            "data = torch.utils.data.TensorDataset(torch.randn(12, 6))\n"
            "for epoch in range(2):\n    list(torch.utils.data.DataLoader(data, 4, num_workers=2))\n"
            "for step in range(20):",
        )
    )
    python(str(script), env=environment(tmp_path / "run"))
    assert workers(tmp_path / "run") == ["w0000"]


def test_a_forked_child_that_trains_is_a_worker_of_its_own(tmp_path):
    script = tmp_path / "train.py"
    body = SCRIPT.format(inside="pass")
    script.write_text(
        body + "\nimport os\npid = os.fork()\n" + "for step in range(3):\n"
        "    optimizer.zero_grad()\n    model(torch.ones(2, 6)).sum().backward()\n    optimizer.step()\n"
        "if pid:\n    os.waitpid(pid, 0)\n"
    )
    python(str(script), env=environment(tmp_path / "run"))
    assert workers(tmp_path / "run") == ["w0000", "w0001"]


@pytest.mark.parametrize(
    ("inside", "code", "reason"),
    [
        ("if step == 9: raise RuntimeError('no')", 1, "exception"),
        ("if step == 9: sys.exit(3)", 3, "completed"),
        ("if step == 9: import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, "signal"),
        ("if step == 9: import os, signal; os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT, "signal"),
    ],
)
def test_the_process_ends_as_it_would_without_luff(tmp_path, inside, code, reason):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(inside=inside))
    # A test runner in the background ignores SIGINT, and so would processes that it starts.
    command = ("env", "--default-signal=INT", sys.executable)
    bare, seen = bare_and_seen(str(script), run=tmp_path / "run", check=False, command=command)
    assert bare.returncode == seen.returncode == code
    assert bare.stderr.splitlines()[-1:] == seen.stderr.splitlines()[-1:]
    trial = luff.open_trial(tmp_path / "run")  # nothing before it is lost
    assert trial.steps("TRAIN") == list(range(10))
    (worker,) = trial.workers()
    assert (worker["ended"], worker["reason"]) == (True, reason)
    assert np.isfinite(trial.tensor("CrossEntropyLoss_output_0").value(9, "TRAIN"))
    assert trial.gaps() == []


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


# tests/e2e/test_two_ranks.py trains with DDP in each run of the tests.
@pytest.mark.parametrize("kind", [pytest.param("ddp", marks=pytest.mark.thorough), "fsdp"])
def test_two_ranks_are_two_workers_of_one_run(tmp_path, kind):
    def folder(env):
        made = tmp_path / ("seen" if "LUFF_SESSION" in env else "bare")
        made.mkdir()
        return str(made)

    run = tmp_path / "run"
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node=2"]
    script = [lambda _: f"--master-port={free_port()}", str(HERE / "distributed_script.py"), kind, folder]
    bare, seen = bare_and_seen(*launcher, *script, run=run, config=RAW)
    assert sorted(seen.stdout.splitlines()) == sorted(bare.stdout.splitlines())
    assert workers(run) == ["w0000", "w0001"]
    trial = luff.open_trial(run)
    assert trial.world_size == 2
    assert trial.steps("TRAIN") == list(range(6))
    prefix = "Sequential_"  # also if FSDP2 has derived a class of its own
    compared = 0
    for rank in range(2):
        with np.load(tmp_path / "bare" / f"rank{rank}.npz") as truth:
            for key, wanted in truth.items():
                step, _, name = key.partition("/")
                what, _, name = name.rpartition("/")
                if name == "loss":
                    name = "CrossEntropyLoss_output_0"
                else:
                    name = (
                        {"": "", "gradient": "gradient/", "state": "optimizer/AdamW.exp_avg/"}[what]
                        + prefix
                        + name
                    )
                got = trial.tensor(name).value(int(step), "TRAIN", rank)
                assert np.array_equal(np.asarray(got).reshape(wanted.shape), wanted), (rank, step, name)
                compared += 1
    assert compared == 2 * 6 * 13
    for name in ("0.weight", "2.bias"):
        for tensor in (prefix + name, "gradient/" + prefix + name):
            stored = [trial.tensor(tensor).value_steps("TRAIN", rank) for rank in range(2)]
            # What DDP keeps equal is stored once; above, it was read through its hash for either rank.
            assert stored == [list(range(6)), [] if kind == "ddp" else list(range(6))]
    assert not [gap for gap in trial.gaps() if gap["reason"] == "unsupported"]
    if kind == "fsdp":  # local shards: halves of 16 and of 4 rows, with their offset in the whole
        weight = trial.tensor(f"{prefix}0.weight")
        assert [weight.shard(3, "TRAIN", rank) for rank in range(2)] == [((16, 6), (0, 0)), ((16, 6), (8, 0))]
        parts = [weight.value(3, "TRAIN", rank) for rank in range(2)]
        assert np.concatenate(parts).shape == (16, 6)


FUNCTIONAL = """
import inspect, pickle, torch, torch.nn.functional as F
from torch import nn
from torch.nn.functional import mse_loss

torch.manual_seed(0)

class WithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.criterion = nn.MSELoss()
    def forward(self, x, y=None):
        out = self.head(x)
        return (out, F.cross_entropy(out, y)) if y is not None else out

model = WithLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
y = torch.randint(0, 3, (8,))
for step in range(4):
    x = torch.randn(8, 6)
    model.train()
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        print("CrossEntropyLoss", F.cross_entropy(model(x), y, label_smoothing=0.1).item().hex())
        print("CrossEntropyLoss", model(x, y)[1].item().hex())
        print("MSELoss", mse_loss(model(x), torch.zeros(8, 3)).item().hex())
        print("MSELoss", model.criterion(model(x), torch.zeros(8, 3)).item().hex())
    print("CrossEntropyLoss", F.cross_entropy(model(x), y).item().hex())  # without no_grad

def score(a, b):
    return F.cross_entropy(a, b) + F.mse_loss(a, a * 2.0)

logits = torch.randn(8, 3)
print(torch.jit.script(score)(logits, y).item(), torch.jit.script(F.smooth_l1_loss)(logits, logits + 1).item())
print(torch.jit.trace(score, (logits, y))(logits, y).item())
print(torch.fx.symbolic_trace(score)(logits, y).item(), torch.fx.symbolic_trace(score).code)
print(torch.func.vmap(F.cross_entropy)(logits[None], y[None]), torch.func.grad(score)(logits, y).sum().item())
print(inspect.signature(F.cross_entropy), F.cross_entropy.__module__)
print(pickle.loads(pickle.dumps(F.cross_entropy)) is F.cross_entropy)
print(torch.export.export(WithLoss(), (torch.randn(8, 6), y)).graph_module.code)
graphs = []
def backend(graph, inputs):
    nodes = list(graph.graph.nodes)
    graphs.append([len(nodes)] + [(n.op, str(n.target)) for n in nodes if n.op != "call_function"])
    return graph
print(torch.compile(score, backend=backend, fullgraph=True)(logits, y).item(), graphs)
class Mine(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is F.cross_entropy:
            print("mine")
        return super().__torch_function__(function, types, args, kwargs or {})
print(F.cross_entropy(logits.as_subclass(Mine), y).item())
"""


def test_functional_losses_of_an_evaluation(tmp_path):
    """They are recorded, and every other use of the functions works as without Luff."""
    script = tmp_path / "train.py"
    script.write_text(FUNCTIONAL)
    bare, seen = bare_and_seen("-W", "ignore", str(script), run=tmp_path / "run")
    assert seen.stdout == bare.stdout
    assert seen.stderr == bare.stderr
    printed = [line.split() for line in bare.stdout.splitlines()[:20]]
    trial = luff.open_trial(tmp_path / "run")
    assert trial.steps("TRAIN") == list(range(4))
    for step, (name, value) in enumerate(printed):
        got = trial.tensor(f"{name}_output_0").value(step, "EVAL")
        assert float(np.asarray(got).reshape(-1)[0]) == float.fromhex(value), (step, name)
        other = "MSELoss" if name == "CrossEntropyLoss" else "CrossEntropyLoss"
        if step < 19:  # the rest of the script computes more in the last step
            assert step not in trial.tensor(f"{other}_output_0").value_steps("EVAL")
    assert len(trial.tensor("CrossEntropyLoss_output_0").value_steps("TRAIN")) == 4
    assert not [event for event in trial.events() if event["kind"] == "hook_error"]


def test_a_script_that_imports_luff_first_is_watched(luff_run):
    """luff.torch imports the framework, and is still being imported when that is ready."""
    _, trial = luff_run("""
        import luff.torch
        import torch
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(4, 2)).pow(2).mean().backward()
            optimizer.step()
    """)
    assert len(trial.steps("TRAIN")) == 3
