"""The parts of `./dev gpu` that start jobs, as far as they go without a GPU: on the CPU in its place."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).resolve().parents[1] / "gpu"


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
    torch = pytest.importorskip("torch")
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
    pytest.importorskip("torch")
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

    def breaks(_: object) -> None:
        raise RuntimeError("no run")

    (row,) = harm._all_of(breaks, None)
    assert row["status"] == "failed"
    assert "no run" in row["detail"]


def test_ways_to_train_that_differ_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Luff in one of two ways: bits differ, something was not recorded, or it does not train at all."""
    pytest.importorskip("torch")
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
