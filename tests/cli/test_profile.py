"""Phases of real PyTorch loops: those of each step add up to its time, and they change nothing."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

STEPS = 6
Loop = Callable[[Any, Any, DataLoader, Path], list[float]]
LOOPS: dict[str, Loop] = {}


def loop(function: Loop) -> Loop:
    return LOOPS.setdefault(function.__name__, function)


def step(model: Any, optimizer: Any, x: Any, y: Any) -> float:
    optimizer.zero_grad()
    loss = nn.MSELoss()(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


@loop
def plain(model, optimizer, loader, folder):
    return [step(model, optimizer, x, y) for x, y in loader]


@loop
def accumulation(model, optimizer, loader, folder):
    losses = []
    for i, (x, y) in enumerate(loader):
        loss = nn.MSELoss()(model(x), y) / 2
        loss.backward()
        losses.append(loss.item())
        if i % 2:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return losses


@loop
def mixed_precision(model, optimizer, loader, folder):
    scaler, losses = torch.amp.GradScaler("cpu"), []
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.MSELoss()(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


@loop
def closures(model, optimizer, loader, folder):
    losses = []
    for x, y in loader:

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = nn.MSELoss()(model(x), y)
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
    return losses


@loop
def evaluations_and_checkpoints(model, optimizer, loader, folder):
    scheduler, losses = torch.optim.lr_scheduler.StepLR(optimizer, 2), []
    for epoch in range(2):
        for x, y in loader:
            losses.append(step(model, optimizer, x, y))
            scheduler.step()
        model.eval()
        with torch.no_grad():
            losses += [nn.MSELoss()(model(x), y).item() for x, y in loader]
        model.train()
        torch.save(model.state_dict(), folder / f"{epoch}.pt")
        gc.collect()
    return losses


def run_loop(name: str, folder: Path, attach: bool, **settings: Any) -> tuple[list[float], float]:
    """Trains, and returns the losses, and the seconds that it took."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(
        torch.randn(STEPS * 4, 4, generator=generator), torch.randn(STEPS * 4, 1, generator=generator)
    )
    loader = DataLoader(data, batch_size=4, shuffle=True, generator=generator)
    hook = None
    if attach:
        import luff.torch

        hook = luff.torch.attach(model, optimizer, run=folder / "run", **settings)
    began = time.monotonic()
    losses = LOOPS[name](model, optimizer, loader, folder)
    took = time.monotonic() - began
    if hook is not None:
        hook.close()
    return losses, took


def shown(luff: Command, *words: object) -> dict[str, Any]:
    done = luff("profile", *words, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def seen(profile: dict[str, Any]) -> set[str]:
    return {line["phase"] for line in profile["phases"]}


@pytest.mark.parametrize("name", list(LOOPS))
def test_phases_add_up_and_change_nothing(luff: Command, tmp_path: Path, name: str) -> None:
    bare, _ = run_loop(name, tmp_path, attach=False)
    watched, took = run_loop(name, tmp_path, attach=True)
    assert watched == bare
    whole = shown(luff, tmp_path / "run")
    assert whole["steps"] >= STEPS
    assert {"data_wait", "forward", "loss", "backward", "optimizer", "other"} <= seen(whole)
    assert sum(line["seconds"] for line in whole["phases"]) == pytest.approx(whole["seconds"], rel=1e-9)
    assert whole["seconds"] + whole["evaluation"]["seconds"] <= took * 1.01 + 0.01
    for number in range(whole["steps"]):
        one = shown(luff, tmp_path / "run", "--steps", f"{number}:{number}")
        assert sum(line["share"] for line in one["phases"]) == pytest.approx(1, abs=1e-6)
    assert luff("verify", tmp_path / "run").code == 0  # it adds up the nanoseconds of each step


def test_each_phase_is_seen_where_it_happens(luff: Command, tmp_path: Path) -> None:
    run_loop("evaluations_and_checkpoints", tmp_path, attach=True)
    profile = shown(luff, tmp_path / "run")
    assert {"zero_grad", "scheduler"} <= seen(profile)
    assert profile["evaluation"]["steps"] >= STEPS
    run_loop("accumulation", tmp_path / "other", attach=True)
    clipped = next(
        line for line in shown(luff, tmp_path / "other" / "run")["phases"] if line["phase"] == "clip"
    )
    assert clipped["steps"] == STEPS // 2
    assert "checkpoint" not in seen(shown(luff, tmp_path / "other" / "run"))  # absent, not 0


class Sleeping(TensorDataset):
    def __getitem__(self, i: int) -> Any:
        time.sleep(0.004)
        return super().__getitem__(i)


def test_waits_for_data_are_named_with_the_argument_to_pass(luff: Command, tmp_path: Path) -> None:
    from luff.torch import attach

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = Sleeping(torch.randn(240, 4), torch.randn(240, 1))
    with attach(model, optimizer, run=tmp_path / "run"):
        for x, y in DataLoader(data, batch_size=4):
            step(model, optimizer, x, y)
    profile = shown(luff, tmp_path / "run")
    assert profile["phases"][0]["phase"] == "data_wait"
    assert "DataLoader has 0 workers; num_workers=" in profile["verdict"]
    # The wait is 16 ms of the step and more; a worker makes the next batch meanwhile, as long as the rest is shorter.
    assert 0 < profile["saving"]["seconds_a_step"] <= profile["saving"]["high"]
    text = luff("profile", tmp_path / "run").out
    assert text.startswith("the step waits ")
    assert "not seen" in text


def test_loaders_with_workers_are_described_and_change_nothing(luff: Command, tmp_path: Path) -> None:
    from luff.torch import attach

    def run(watched: bool) -> list[float]:
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        data = Sleeping(torch.randn(96, 4), torch.randn(96, 1))
        loader = DataLoader(data, batch_size=4, num_workers=2, shuffle=True, collate_fn=stacked)
        if not watched:
            return [step(model, optimizer, x, y) for _ in range(2) for x, y in loader]
        with attach(model, optimizer, run=tmp_path / "run"):
            return [step(model, optimizer, x, y) for _ in range(2) for x, y in loader]

    assert run(True) == run(False)
    profile = shown(luff, tmp_path / "run")
    (loader,) = profile["loaders"]
    assert (loader["type"], loader["workers"]) == ("DataLoader", 2)
    # Each pass asks once more than there are batches; that wait may lie outside of all TRAIN steps.
    assert 48 <= loader["asked"] <= 49
    assert 0 <= loader["ready"] <= 49
    assert set(loader["waited_by_worker"]) == {"0", "1"}
    assert {"data_start", "luff"} <= seen(profile)
    assert "DataLoader 0 with 2 workers" in luff("profile", tmp_path / "run").out
    document = json.loads(luff_document(tmp_path / "run", "loaders"))["loaders"][0]
    assert (document["dataset"], document["collate"], document["sampler"]) == (
        "Sleeping",
        "stacked",
        "RandomSampler",
    )


class Nested(torch.utils.data.Dataset):
    """Samples that another loader makes."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> Any:
        x, y = next(iter(DataLoader(self.inner, batch_size=4)))
        return x[i % 4], y[i % 4]


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Any:
        return (self.inner[i] for i in range(len(self.inner)))


def left_half_way(data: Any) -> Any:
    loader = DataLoader(data, batch_size=4, num_workers=2)
    left = iter(loader)
    yield next(left)
    yield from loader
    del left
    for batch in loader:
        yield batch
        break


def replaced(data: Any) -> Any:
    """The training replaces what makes the next batch, and puts it back."""
    iterators = torch.utils.data.dataloader._BaseDataLoaderIter
    usual = iterators.__next__
    loader = DataLoader(data, batch_size=4)
    iterators.__next__ = lambda iterator: iterator._next_data()
    try:
        yield from loader
    finally:
        iterators.__next__ = usual
    yield from loader


def two_at_once(data: Any) -> Any:
    loader = DataLoader(data, batch_size=4)
    for pair in zip(loader, loader, strict=True):
        yield from pair


BATCHES: dict[str, Callable[[Any], Any]] = {
    "nested": lambda data: DataLoader(Nested(data), batch_size=2),
    "left_half_way": left_half_way,
    "generator": lambda data: (batch for batch in DataLoader(Stream(data), batch_size=4)),
    "two_at_once": two_at_once,
    "spawned": lambda data: DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context="spawn"),
    "replaced": replaced,
}


SLOW = [pytest.mark.thorough]  # its worker imports PyTorch again


@pytest.mark.parametrize("kind", [pytest.param(k, marks=SLOW if k == "spawned" else []) for k in BATCHES])
def test_unusual_loaders_change_nothing(luff: Command, tmp_path: Path, kind: str) -> None:
    from luff.torch import attach

    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(3))
    data = TensorDataset(x, x[:, :1])

    def run(watched: bool) -> list[float]:
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        if not watched:
            return [step(model, optimizer, x, y) for x, y in BATCHES[kind](data)]
        with attach(model, optimizer, run=tmp_path / "run"):
            return [step(model, optimizer, x, y) for x, y in BATCHES[kind](data)]

    losses = run(True)
    assert losses == run(False)
    profile = shown(luff, tmp_path / "run")
    assert profile["steps"] == len(losses)
    assert sum(line["seconds"] for line in profile["phases"]) == pytest.approx(profile["seconds"], rel=1e-9)
    (waits,) = [line for line in profile["phases"] if line["phase"] == "data_wait"]
    # Of a method that is no longer Luff's nothing is seen; of two batches that are asked for at once the first waits.
    # Where the process has trained before, a run begins with its first forward pass, after a wait.
    seen_in = len(losses) // 2 if kind in ("replaced", "two_at_once") else len(losses)
    assert seen_in - 1 <= waits["steps"] <= seen_in
    assert luff("verify", tmp_path / "run").code == 0


def stacked(samples: Any) -> Any:
    return torch.utils.data.default_collate(samples)


def luff_document(run: Path, name: str) -> str:
    import luff

    with luff.open_trial(run) as trial:
        return json.dumps(trial.document(name))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_compilations_and_checkpoints_of_other_libraries_are_phases(luff: Command, tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp
    from luff.torch import attach

    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    compiled = torch.compile(model, backend="eager", dynamic=False)
    with attach(model, optimizer, run=tmp_path / "run"):
        for i, size in enumerate((4, 4, 5, 5)):
            step(compiled, optimizer, torch.randn(size, 4), torch.randn(size, 1))
            dcp.save({"model": model.state_dict()}, checkpoint_id=tmp_path / f"saved-{i}")
        step(compiled, optimizer, torch.randn(5, 4), torch.randn(5, 1))
    profile = shown(luff, tmp_path / "run")
    steps = {line["phase"]: line["steps"] for line in profile["phases"]}
    assert steps["checkpoint"] == 4
    assert 1 <= steps["compile"] <= 2  # with each new size
    assert sum(line["seconds"] for line in profile["phases"]) == pytest.approx(profile["seconds"], rel=1e-9)


def test_the_collector_is_listened_to_while_a_hook_records(tmp_path: Path) -> None:
    from luff._core import collecting
    from luff.torch import attach

    before = list(gc.callbacks)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for name in ("one", "other"):
        with attach(model, optimizer, run=tmp_path / name):
            step(model, optimizer, torch.randn(4, 4), torch.randn(4, 1))
            assert gc.callbacks.count(collecting) == 1
        assert gc.callbacks == before


def test_a_loop_of_ones_own_says_what_it_does(luff: Command, tmp_path: Path) -> None:
    import luff as package
    from luff.errors import InvalidArgumentError
    from luff.torch import attach

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    batches = [(torch.randn(4, 4), torch.randn(4, 1)) for _ in range(STEPS)]
    waiting = package.wait(batches)
    assert len(waiting) == STEPS
    with attach(model, optimizer, run=tmp_path / "run"):
        for _ in range(2):
            for given, (x, y) in zip(batches, waiting, strict=True):
                assert given[0] is x
                step(model, optimizer, x, y)
                with package.phase("checkpoint"):
                    time.sleep(0.002)
    profile = shown(luff, tmp_path / "run")
    lines = {line["phase"]: line for line in profile["phases"]}
    assert lines["checkpoint"]["seconds"] >= 0.002 * (profile["steps"] - 1)
    assert lines["data_wait"]["steps"] >= profile["steps"] - 1
    with pytest.raises(InvalidArgumentError, match="expected one of other, data_wait"):
        package.phase("luff")
    assert list(package.wait(iter("ab"))) == ["a", "b"]  # a generator has no length
    with package.phase("eval"), pytest.raises(ZeroDivisionError), package.phase("forward"):
        1 / 0  # noqa: B018


def test_the_time_of_each_step_is_in_tail(luff: Command, tmp_path: Path) -> None:
    run_loop("plain", tmp_path, attach=True)
    done = luff("tail", tmp_path / "run", "--phases", "--no-follow")
    assert "forward" in done.out
    assert "MSELoss" not in done.out
    last = json.loads(luff("tail", tmp_path / "run", "--phases", "--json", "-n", "1").out.splitlines()[0])
    assert sum(last["phases"].values()) > 0


def test_aids_for_finding_faults_are_in_the_run_where_they_are_on(tmp_path: Path) -> None:
    from luff.torch import attach

    for name, on in (("on", True), ("off", False)):
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with attach(model, optimizer, run=tmp_path / name), torch.autograd.set_detect_anomaly(on):
            for _ in range(202):
                step(model, optimizer, torch.randn(4, 4), torch.randn(4, 1))
    looks = json.loads(luff_document(tmp_path / "on", "debug"))["looks"]
    assert [look["step"] for look in looks] == [20, 200]
    assert all(look["on"] == ["torch.autograd.set_detect_anomaly(True)"] for look in looks)
    assert luff_document(tmp_path / "off", "debug") == "null"


def test_off_records_no_phases(luff: Command, tmp_path: Path) -> None:
    run_loop("plain", tmp_path, attach=True, profile="off")
    done = luff("profile", tmp_path / "run")
    assert done.code == 0
    assert 'profile = "off"' in done.out


def test_mistakes_are_named(luff: Command, tmp_path: Path) -> None:
    run_loop("plain", tmp_path, attach=True)
    run = tmp_path / "run"
    for words, says in (
        (("profile", run, "--steps", "3"), "FROM:TO"),
        (("profile", run, "--steps", "5:2"), "FROM:TO"),
        (("profile", run, "--rank", "9"), "these did: 0"),
        (("profile", run, "--step", "1:2"), "--steps"),
        (("profile", tmp_path / "none"), "none"),
        (("profil", run), "profile"),
    ):
        done = luff(*words)
        assert done.code == 2, words
        assert says in done.err, done.err
    assert "no TRAIN step" in luff("profile", run, "--steps", "900:").out
