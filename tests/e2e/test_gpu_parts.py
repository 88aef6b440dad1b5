"""The parts of `./dev gpu` that start jobs, as far as they go without a GPU: on the CPU in its place."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).resolve().parents[1] / "gpu"


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Threads of models this small only wait for each other: on a busy machine for ten times as long as they work."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield
    torch.set_num_threads(before)


def part_of(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Imports a file of tests/gpu, whose names others have, too."""
    monkeypatch.syspath_prepend(str(HERE))
    spec = importlib.util.spec_from_file_location(f"gpu_{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules.pop("models", None)  # not by monkeypatch, which would put it back at the end
    return module


@pytest.mark.thorough  # two whole trainings; nothing of it differs on the CPU
def test_programs_with_a_fault_are_named_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = part_of("jobs", monkeypatch)
    rows = list(jobs.faults(tmp_path, ("cpu", "cpu"), ("pf07",)))
    assert [row["check"] for row in rows] == ["pf07 is named as on the CPU"]
    assert rows[0]["status"] == "passed", rows[0]["detail"]


def test_the_sanitizer_is_skipped_where_nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = part_of("jobs", monkeypatch)
    tool = tmp_path / "sanitizer"
    tool.write_text('#!/bin/sh\nshift 4\nexec "$@"\n')
    tool.chmod(0o755)
    for row in jobs.sanitizer(tmp_path, str(tool), "no_such_libcuda.so"):
        assert row["status"] == "skipped", row
        assert "no_such_libcuda" in row["detail"]
    tool.write_text("#!/bin/sh\necho '========= Invalid __global__ read of size 4 bytes'\nexit 86\n")
    for row in jobs.sanitizer(tmp_path, str(tool)):
        assert row["status"] == "failed", row
        assert "Invalid __global__ read" in row["detail"]


def test_models_have_their_sizes_and_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = part_of("models", monkeypatch)
    import torch

    with torch.device("meta"):
        sizes = [sum(p.numel() for p in make().parameters()) for make, _, _ in models.MODELS.values()]
    assert sizes[0] == 25_557_032
    assert sizes[1] == pytest.approx(124e6, rel=0.02)
    assert sizes[2] == pytest.approx(1.3e9, rel=0.03)
    tiny = {
        "images, few": (lambda: models.resnet((1, 1), 8, 10), lambda m, d: models.images(m, 4, 32, d), 0),
        "tokens, few": (lambda: models.Gpt(1, 16, 2, 32, 8), lambda m, d: models.tokens(m, 2, 8, 32, d), 0),
    }
    rows = list(models.models(tmp_path, tiny, "cpu", 1))
    assert [row["check"] for row in rows] == [f"w+g every step, {name}" for name in tiny]
    assert all(row["value"] > 0 for row in rows)


def test_peers_that_cannot_be_imported_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peers = part_of("peers", monkeypatch)
    monkeypatch.setattr(peers, "PEERS", {"no_such_tool": None})
    (row,) = peers.peers(tmp_path, "cpu", 8, 1)
    assert row["status"] == "skipped"

    made: list[Slow] = []
    closed: list[Slow] = []

    class Slow:
        def __init__(self, *_: object) -> None:
            self.steps = 0
            made.append(self)

        def after_step(self) -> None:
            self.steps += 1
            sum(i * i for i in range(200_000))

        def close(self) -> None:
            closed.append(self)

    monkeypatch.setattr(peers, "PEERS", {"json": Slow})
    (row,) = peers.peers(tmp_path, "cpu", 8, 1)
    assert row["check"] == "extra over that of json"
    assert row["gate"] == 0.1
    assert row["value"] != 0
    assert closed == made
    assert [one.steps for one in made] == [30]


def test_scripts_end_as_without_luff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harm = part_of("harm", monkeypatch)
    rows = list(harm.harm(tmp_path, "cpu"))
    assert len(rows) == 3
    assert [row for row in rows if row["status"] != "passed"] == []


def test_what_breaks_or_ends_otherwise_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harm = part_of("harm", monkeypatch)
    ended = harm.subprocess.CompletedProcess
    assert harm._same(ended([], -6, "x", ""), ended([], 134, "x", "")) == (True, "")
    good, told = harm._same(ended([], 0, "x", ""), ended([], 0, "y", "why"))
    assert not good
    assert "why" in told
    assert harm._same(ended([], 0, "", ""), ended([], 3, "", ""))[0] is False

    assert harm.finished(["/bin/sh", "-c", "echo a; exit 3"], tmp_path, {}, 30).stdout == "a\n"
    job = "sleep 300 & echo $! >pid; wait"
    late = harm.finished(["/bin/sh", "-c", job], tmp_path, {}, 1)
    assert (late.returncode, late.stderr) == (-1, "not done in 1 s")
    until = time.monotonic() + 20
    while harm.lives(int((tmp_path / "pid").read_text())) and time.monotonic() < until:
        time.sleep(0.01)
    assert not harm.lives(int((tmp_path / "pid").read_text()))

    def breaks(_: object) -> None:
        raise RuntimeError("no run")

    (row,) = harm._all_of(breaks, None)
    assert row["status"] == "failed"
    assert "no run" in row["detail"]


def test_how_long_a_script_lives_after_sigterm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one whose parent has not asked for it yet: it has ended."""
    harm = part_of("harm", monkeypatch)
    at_once = ["/bin/sh", "-c", "echo $$; exec sleep 300"]
    later = ["/bin/sh", "-c", "trap 'sleep 1; exit' TERM; echo $$; while :; do sleep 0.1; done"]
    assert harm.seconds_to_end(at_once, tmp_path) < 1
    assert 1 <= harm.seconds_to_end(later, tmp_path) < 20
    assert harm.seconds_to_end(["/bin/sh", "-c", "exit 1"], tmp_path) is None
    assert harm.seconds_to_end(["/bin/sh", "-c", "echo none"], tmp_path) is None


def test_a_driver_that_fails_is_no_missing_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = part_of("kernels", monkeypatch)
    codes = {"cuInit": 0}

    class Library:
        def __getattr__(self, name: str) -> object:
            return lambda *_: codes.get(name, 0)

    monkeypatch.setattr(kernels.ctypes, "CDLL", lambda _: Library())
    codes["cuModuleLoadData"] = 209  # no machine code for this device
    with pytest.raises(RuntimeError, match="cuModuleLoadData failed with 209") as failure:
        kernels.Driver("double")
    assert not isinstance(failure.value, kernels.NoDevice)
    codes["cuInit"] = 100
    with pytest.raises(kernels.NoDevice, match="cuInit failed with 100"):
        kernels.Driver("double")


def test_a_group_of_which_one_fails_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what was trained before it counts."""
    identical = part_of("identical", monkeypatch)
    monkeypatch.setattr(identical, "OTHERS_S", 0.5)
    began = time.monotonic()
    waits = "case \"$*\" in *'--rank 0'*) sleep 300;; *) echo why >&2; exit 3;; esac"
    found = identical._trained(["/bin/sh", "-c", waits, "sh"], "cpu", ["ddp_of_two"], 2, tmp_path, False)
    assert found["ddp_of_two"]["error"] == "why"
    assert time.monotonic() - began < 20
    first = 'echo \'{"name": "sgd", "digest": "a", "peak": 0}\'; kill -SEGV $$'
    found = identical._trained(["/bin/sh", "-c", first], "cpu", ["sgd", "fused"], 0, tmp_path, False)
    assert found["sgd"] == {"name": "sgd", "digest": "a", "peak": 0}
    assert found["fused"] == {"error": "ended with -11"}


def test_ways_to_train_that_differ_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Luff in one of two ways: bits differ, something was not recorded, or it does not train at all."""
    monkeypatch.setenv("LUFF_TRAININGS_ACCELERATORS", "0")
    identical = part_of("identical", monkeypatch)
    other = tmp_path / "other.py"
    source = (HERE / "trainings.py").read_text().replace("torch.manual_seed(0)", "torch.manual_seed(1)", 1)
    other.write_text(source)
    rows = list(identical.identical(tmp_path / "1", "cpu", ["sgd"], [sys.executable, str(other)]))
    assert [row["status"] for row in rows] == ["failed", "failed"]
    assert "lacks" in rows[1]["detail"]
    other.write_text("raise SystemExit('no device')")
    (row,) = identical.identical(tmp_path / "2", "cpu", ["sgd"], [sys.executable, str(other)])
    assert (row["status"], row["detail"]) == ("failed", "only watched: no device")
