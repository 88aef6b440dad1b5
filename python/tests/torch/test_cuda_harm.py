"""Luff must do no harm on a GPU. Skipped if PyTorch has no CUDA device."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

TRAININGS = """
import hashlib, json, os, torch
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
torch.use_deterministic_algorithms(True)

def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)).cuda()

def digest(net, losses):
    sha = hashlib.sha256()
    for p in net.parameters():
        sha.update(p.detach().cpu().numpy().tobytes())
    sha.update(repr(losses).encode())
    sha.update(torch.cuda.get_rng_state().numpy().tobytes())
    sha.update(torch.get_rng_state().numpy().tobytes())
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return [sha.hexdigest(), f"{peak} bytes at most"]

def loop(net, optimizer, forward, steps=30, scaler=None, accumulate=1):
    losses = []
    for step in range(steps):
        x = torch.randn(32, 64, device="cuda")
        y = torch.randint(0, 10, (32,), device="cuda")
        loss = forward(net, x, y)
        (scaler.scale(loss) if scaler else loss).backward()
        if (step + 1) % accumulate == 0:
            if scaler:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
    return digest(net, [float(l) for l in losses])

def plain(net, x, y):
    return torch.nn.functional.cross_entropy(net(x), y)

def half(net, x, y):
    with torch.autocast("cuda", dtype=torch.float16):
        return torch.nn.functional.cross_entropy(net(x), y)

found = {}
net = model(); found["sgd"] = loop(net, torch.optim.SGD(net.parameters(), lr=0.1), plain)
net = model(); found["fused"] = loop(net, torch.optim.AdamW(net.parameters(), fused=True), plain)
net = model(); found["accumulation"] = loop(net, torch.optim.AdamW(net.parameters()), plain, accumulate=3)
net = model(); adam = torch.optim.AdamW(net.parameters(), fused=True)
found["amp"] = loop(net, adam, half, scaler=torch.amp.GradScaler("cuda"))

net = model()
optimizer = torch.optim.AdamW(net.parameters(), capturable=True)
x, y = torch.randn(32, 64, device="cuda"), torch.randint(0, 10, (32,), device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        plain(net, x, y).backward()
        optimizer.step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    captured = plain(net, x, y)
    captured.backward()
    optimizer.step()
losses = []
for _ in range(20):
    x.copy_(torch.randn(32, 64, device="cuda"))
    graph.replay()
    losses.append(float(captured))
found["graph"] = digest(net, losses)

if os.environ.get("CUDA_HARM_COMPILE"):
    net = model()
    compiled = torch.compile(net)
    found["compile"] = loop(net, torch.optim.AdamW(net.parameters()), lambda n, x, y: plain(compiled, x, y))

print(json.dumps(found))
"""

NO_SYNCHRONISATION = """
import torch
net = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(net.parameters(), fused=True)
x = torch.randn(32, 64, device="cuda")
torch.cuda.synchronize()
torch.cuda.set_sync_debug_mode("error")   # any synchronising operation of torch raises
for _ in range(20):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
torch.cuda.set_sync_debug_mode("default")
print("ok")
"""

NAN = """
import os, torch
forks = []
os.register_at_fork(after_in_parent=lambda: forks.append(1))
net = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(20):
    optimizer.zero_grad()
    x = torch.randn(4, 8, device="cuda")
    (net(x).square().mean() * (float("nan") if step >= 10 else 1.0)).backward()
    optimizer.step()
print(len(forks))
"""

WORKERS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(256, 8), torch.randint(0, 3, (256,)))
net = torch.nn.Linear(8, 3).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in DataLoader(data, batch_size=32, num_workers=2, pin_memory=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x.cuda(non_blocking=True)), y.cuda(non_blocking=True)).backward()
        optimizer.step()
print("ok")
"""

BLOCKED = """
import os, torch
net = torch.nn.Linear(8, 3).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    net(torch.randn(4, 8, device="cuda")).sum().backward()
    optimizer.step()
torch.cuda.synchronize()
print(os.getpid(), flush=True)
for _ in range(20):
    torch.cuda._sleep(2_000_000_000)   # about a second each
torch.cuda.synchronize()
"""


@pytest.fixture
def train(tmp_path):
    """Returns a function that runs a script bare or under `luff run` and returns the finished process."""
    luff = os.environ.get("LUFF_EXECUTABLE") or shutil.which("luff")
    if luff is None:
        pytest.skip("no luff on PATH")

    def command(script: str, watched: bool) -> list[str]:
        (tmp_path / "train.py").write_text(textwrap.dedent(script))
        bare = [sys.executable, str(tmp_path / "train.py")]
        if not watched:
            return bare
        config = tmp_path / "luff.toml"
        config.write_text("[capture]\naccelerators = true\n")  # off unless it is asked for
        return [luff, "run", "--config", str(config), "--run", str(tmp_path / "run"), "--", *bare]

    def run(script: str, watched: bool, **environment: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command(script, watched), capture_output=True, text=True, timeout=300, check=False,
            env=os.environ | {"HOME": str(tmp_path)} | environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return done

    run.command = command
    return run


def test_every_way_of_training_computes_the_same_and_takes_the_same_memory(train):
    bare = json.loads(train(TRAININGS, watched=False, CUDA_HARM_COMPILE="1").stdout)
    watched = json.loads(train(TRAININGS, watched=True, CUDA_HARM_COMPILE="1").stdout)
    # A first compilation's memory depends on which kernels the compiler tries, and varies by itself.
    assert watched.pop("compile")[0] == bare.pop("compile")[0]
    assert watched == bare


def test_nothing_synchronises_the_device(train):
    assert train(NO_SYNCHRONISATION, watched=True).stdout.strip() == "ok"


def test_a_step_with_nan_is_not_replayed_in_a_fork_once_cuda_is_in_use(train):
    bare, watched = train(NAN, watched=False), train(NAN, watched=True)
    assert watched.stdout == bare.stdout


def test_loader_workers_and_pinned_memory_go_on(train):
    assert train(WORKERS, watched=True).stdout.strip() == "ok"


def test_sigterm_ends_a_training_that_waits_for_the_device(train):
    def seconds_to_end(watched: bool) -> float:
        process = subprocess.Popen(
            train.command(BLOCKED, watched), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        began = time.monotonic()
        os.kill(pid, signal.SIGTERM)
        while os.path.exists(f"/proc/{pid}") and time.monotonic() - began < 60:
            time.sleep(0.01)
        took = time.monotonic() - began
        process.stdout.close()
        process.wait(timeout=60)
        return took

    bare = seconds_to_end(watched=False)
    assert seconds_to_end(watched=True) < bare + 5


def test_what_is_not_seen_is_a_gap(train, tmp_path):
    import luff

    train(WORKERS, watched=True)
    trial = luff.open_trial(tmp_path / "run")
    assert len(trial.steps()) == 16
    assert trial.gaps()
    weights = [name for name in trial.tensors() if name.endswith("weight") and "/" not in name]
    assert weights
    assert all(trial.tensor(name).steps() for name in weights)
