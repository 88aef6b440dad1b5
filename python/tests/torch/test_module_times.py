"""How long modules take, in real runs: what the table says agrees with what the modules do."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import luff
import luff.torch
import numpy as np
import pytest
import torch
from luff.torch.capture import _module_times
from torch import nn
from torch.utils.checkpoint import checkpoint


@pytest.fixture(autouse=True)
def _every_step(monkeypatch):
    monkeypatch.setattr(_module_times, "FIRST", 2)
    monkeypatch.setattr(_module_times, "EVERY", 1)


def train(run: Path, model: nn.Module, steps: int = 6, **options: Any) -> dict[str, dict[str, float]]:
    """Trains, and returns the rows of the table by the names of the modules."""
    options = {"profile": "full", **options}
    hook = luff.torch.attach(model, run=str(run), rules=False, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(32, 64)).square().mean().backward()
        optimizer.step()
    hook.close()
    assert hook.guard.first == {}
    return table(run)


def table(run: Path) -> dict[str, dict[str, float]]:
    columns = luff.open_trial(str(run)).profile().modules
    names = [name for name in columns if name != "module"]
    return {
        str(module): {name: columns[name][row] for name in names}
        for row, module in enumerate(columns["module"])
    }


class Slow(torch.autograd.Function):
    """Takes at least `NAP` in the directions that are asked for."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: bool, backward: bool) -> torch.Tensor:
        ctx.slow_backward = backward
        nap(forward)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        nap(ctx.slow_backward)
        return gradient * 2, None, None


NAP = 0.02


def nap(wanted: bool) -> None:
    if wanted:
        time.sleep(NAP)


class Busy(nn.Module):
    def __init__(self, forward: bool, backward: bool) -> None:
        super().__init__()
        self.directions = forward, backward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Slow.apply(x, *self.directions)


class Net(nn.Module):
    """Calls modules, works itself between them, calls one twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.forwards = Busy(True, False)
        self.block = nn.Sequential(nn.Linear(64, 64), Busy(False, True), nn.Identity())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.forwards(self.first(x))
        x = Slow.apply(x, True, True)  # of the model's own
        return self.block(self.first(x)) + x


def test_each_module_has_its_own_work_forward_and_backward(tmp_path: Path) -> None:
    rows = train(tmp_path / "run", Net())
    assert set(rows) == {"Net", "first", "forwards", "block", "block.0", "block.1", "block.2"}
    assert {name for name, row in rows.items() if row["calls"] == 2} == {"first"}
    # Each nap belongs to one module, so what one of them lacks another has.
    for name, own in (
        ("forwards", "forward_own"), ("block.1", "backward_own"), ("Net", "forward_own"), ("Net", "backward_own")
    ):  # fmt: skip
        assert rows[name][own] >= NAP, (name, own)
    block, parts = rows["block"], [rows[f"block.{i}"] for i in range(3)]
    assert block["backward"] == pytest.approx(
        block["backward_own"] + sum(np.nan_to_num(part["backward"]) for part in parts), rel=1e-6
    )
    assert np.isnan(rows["block.2"]["backward"])  # an Identity has no node of its own
    whole = luff.open_trial(str(tmp_path / "run")).profile()
    timed = whole.steps["timed"]
    assert list(timed) == [False, False, True, True, True, True]
    # A full collection of Python's garbage is a phase of its own; it may come inside a module.
    garbage = np.nansum(whole.phases["gc"][timed]) if "gc" in whole.phases else 0.0
    for side in ("forward", "backward"):
        assert 2 * NAP <= rows["Net"][side] <= whole.phases[side][timed].mean() * 1.001 + garbage


def test_only_some_steps_are_timed_and_none_unless_asked(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(_module_times, "FIRST", 20)
    monkeypatch.setattr(_module_times, "EVERY", 67)
    train(tmp_path / "run", nn.Linear(64, 2), steps=90)
    timed = luff.open_trial(str(tmp_path / "run")).profile().steps["timed"]
    assert list(np.flatnonzero(timed)) == [20, 87]
    assert train(tmp_path / "basic", nn.Linear(64, 2), profile="basic") == {}


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
        self.last = nn.Linear(64, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(checkpoint(self.inner, x, use_reentrant=False))


def command() -> list[str]:
    return [os.environ.get("LUFF_EXECUTABLE") or str(Path(sys.executable).with_name("luff"))]


def said(run: Path) -> Any:
    words = [*command(), "profile", str(run), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def test_what_is_computed_again_has_no_backward_time_and_it_is_said(tmp_path: Path) -> None:
    rows = train(tmp_path / "run", Checkpointed())
    assert all(np.isnan(row["backward"]) for row in rows.values())
    assert all(row["forward_own"] > 0 for row in rows.values())
    assert rows["inner.0"]["calls"] == 1
    assert any("computes activations again" in line for line in said(tmp_path / "run")["not_seen"])


def test_activations_that_another_training_computes_again_are_its_own(tmp_path: Path) -> None:
    models = {"checkpointed": Checkpointed(), "plain": nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 2))}
    hooks = [
        luff.torch.attach(model, run=str(tmp_path / name), rules=False, profile="full")
        for name, model in models.items()
    ]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models.values()]
    for _ in range(6):
        losses = [model(torch.randn(4, 64)).sum() for model in models.values()]  # both have a step open
        for loss, optimizer in zip(losses, optimizers, strict=True):
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    for hook in hooks:
        hook.close()
        assert hook.guard.first == {}
    assert all(np.isnan(row["backward"]) for row in table(tmp_path / "checkpointed").values())
    assert table(tmp_path / "plain")["1"]["backward_own"] > 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_and_frozen_parts(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 64), torch.jit.script(nn.Linear(64, 64)), nn.Linear(64, 2))
    model[0].requires_grad_(False)
    rows = train(tmp_path / "run", model)
    assert np.isnan(rows["0"]["backward"])  # no gradient reaches it
    assert rows["1"]["forward_own"] > 0
    assert rows["2"]["backward_own"] > 0
    assert any("compiled or scripted" in line for line in said(tmp_path / "run")["not_seen"])


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_a_backward_pass_that_is_compiled_gets_no_hooks(tmp_path: Path) -> None:
    compiled_autograd = pytest.importorskip("torch._dynamo.compiled_autograd")
    enable = getattr(compiled_autograd, "_enable", None) or getattr(compiled_autograd, "enable", None)
    if enable is None:
        pytest.skip("this torch compiles no backward passes")
    model = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with luff.torch.attach(model, run=str(tmp_path / "run"), rules=False, profile="full") as hook:
        for _ in range(5):
            loss = model(torch.randn(4, 64)).sum()
            with enable(lambda graph: torch.compile(graph, backend="eager", fullgraph=True)):
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert hook.guard.first == {}
    rows = table(tmp_path / "run")
    assert rows["2"]["forward_own"] > 0
    assert all(np.isnan(row["backward"]) for row in rows.values())


def test_what_timed_modules_goes_without_a_collection_of_garbage(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    gc.collect()
    gc.disable()
    try:
        hook = luff.torch.attach(model, run=str(tmp_path / "run"), rules=False, profile="full")
        for _ in range(4):
            model(torch.randn(4, 64)).sum().backward()
            optimizer.step()
        capture = weakref.ref(hook.machine.modules)
        assert isinstance(capture(), _module_times.TimedCapture)
        hook.close()
        hook.machine.modules = None
        assert capture() is None
    finally:
        gc.enable()


def test_long_names_are_cut_between_characters(tmp_path: Path) -> None:
    even, odd = (type("ü" * 30 + end, (nn.Linear,), {}) for end in ("", "a"))
    train(tmp_path / "run", nn.Sequential(even(64, 64), odd(64, 2)))
    words = [*command(), "profile", str(tmp_path / "run")]
    shown = subprocess.run(words, capture_output=True, timeout=60, check=True).stdout.decode()
    assert "ü" * 19 in shown
    assert "ü" * 18 + "a" in shown


def test_ten_thousand_modules_are_bounded(tmp_path: Path) -> None:
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(64, 2)
            self.parts = nn.ModuleList(nn.Identity() for _ in range(10_000))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for part in self.parts:
                x = part(x)
            return self.last(x)

    rows = train(tmp_path / "run", Many(), steps=4)
    assert 1024 <= len(rows) <= 10_003  # in each step 1,023 have a row of their own
    assert "" in rows  # all others
    assert sum(row["calls"] for row in rows.values()) == 10_002
    shown = said(tmp_path / "run")["modules"]
    assert shown["modules"] == 10_002
    assert len(shown["lines"]) == 100


def test_hooks_of_nodes_are_bounded(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(_module_times, "_MAX_HANDLES", 20)

    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(30):
                x = self.last(x)
            return x

    most = 0
    watch = _module_times.ModuleTimes._watch

    def counted(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal most
        watch(self, *args, **kwargs)
        most = max(most, len(self._handles))

    monkeypatch.setattr(_module_times.ModuleTimes, "_watch", counted)
    assert train(tmp_path / "run", Again())["last"]["calls"] == 30
    assert 20 <= most < 20 + _module_times._MAX_NODES
    assert any("all calls of modules" in line for line in said(tmp_path / "run")["not_seen"])


def test_calls_beyond_the_bound_leave_no_hooks(tmp_path: Path, monkeypatch) -> None:
    times = _module_times.ModuleTimes(type("Names", (), {"module": lambda self, _: ("last", 0)})(), print)
    times.begin()
    layer, x = nn.Linear(2, 2), torch.ones(1, 2)
    for _ in range(32_768):
        times.timer.leave(times.timer.enter(0))
    times.call(nn.Linear.__call__, layer, x).sum().backward()
    assert times._handles == []


class OptimizedModule(nn.Linear):
    """Has the name of what `torch.compile` makes, and is not one."""


def test_a_class_of_the_users_is_no_compiled_model(tmp_path: Path) -> None:
    rows = train(tmp_path / "run", nn.Sequential(nn.Linear(64, 64), OptimizedModule(64, 2)))
    assert rows["1"]["backward_own"] > 0
    assert not any("compiled" in line for line in said(tmp_path / "run")["not_seen"])


def test_evaluations_within_a_step_and_kept_graphs_leave_no_hooks(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 2))
    hook = luff.torch.attach(model, run=str(tmp_path / "run"), rules=False, profile="full")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kept = []
    for _ in range(6):
        loss = model(torch.randn(4, 64)).sum()
        model.eval()
        with torch.no_grad():
            model(torch.randn(4, 64))
        model.train()
        (gradient,) = torch.autograd.grad(loss, model[0].weight, retain_graph=True)
        loss.backward(retain_graph=True)
        optimizer.step()
        optimizer.zero_grad()
        kept.append((loss, gradient))
        assert hook.machine.modules._times._handles == []
    hook.close()
    assert hook.guard.first == {}
    rows = table(tmp_path / "run")
    assert rows["2"]["backward_own"] > 0
    assert rows["2"]["calls"] == 1


def test_what_raises_within_a_module_raises_in_the_training(tmp_path: Path) -> None:
    class Raises(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyError("mine")

    class Catches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bad = Raises()
            self.good = nn.Linear(64, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with pytest.raises(KeyError, match="mine"):
                self.bad(x)
            return self.good(x)

    rows = train(tmp_path / "run", Catches())
    assert rows["bad"]["calls"] == 1
    assert rows["good"]["backward_own"] > 0


def weights_after(run: Path | None, user_hooks: bool) -> tuple[bytes, float]:
    """Trains a wrapped model, with hooks of the user's own if asked; watched if there is a run."""
    torch.manual_seed(3)
    inner = Net()
    if user_hooks:
        inner.block.register_full_backward_hook(lambda module, given, taken: tuple(g * 0.5 for g in given))
        inner.forwards.register_forward_hook(lambda module, args, output: output + 1)
    model = nn.parallel.DistributedDataParallel(inner)
    if run is not None:
        train(run, model)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(32, 64)).square().mean().backward()
            optimizer.step()
    data = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    return data, float(torch.rand(1))


@pytest.mark.parametrize("user_hooks", [False, True])
def test_ddp_and_hooks_of_the_users_compute_the_same(tmp_path: Path, user_hooks: bool) -> None:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        bare = weights_after(None, user_hooks)
        assert weights_after(tmp_path / "run", user_hooks) == bare
    finally:
        torch.distributed.destroy_process_group()
    rows = table(tmp_path / "run")
    assert {name for name, row in rows.items() if row["calls"] == 2} == {"first"}
    assert rows["Net"]["calls"] == 1  # the wrapper is no module of the model
    assert rows["block.1"]["backward_own"] > 0
