"""Where a run goes that no `luff run` has chosen: a script, or a cell of a notebook, may run twice."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import luff
import luff.numpy
import numpy as np
import pytest
from luff.errors import FailedPreconditionError, InvalidArgumentError


def attach(run: Path | None = None, **options: object) -> luff.numpy.Hook:
    return luff.numpy.attach({"w": np.zeros(3, np.float32)}, run=run, **options)  # type: ignore[arg-type]


def test_a_run_that_nobody_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUFF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "argv", ["/some/where/my train.py", "--lr", "1"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing to warn of: no name was given
        with attach() as first, attach() as second:
            pass
    assert first.run != second.run
    for hook in (first, second):
        assert Path(hook.run).parent == tmp_path / "home" / "runs"
        assert "my-train" in Path(hook.run).name
        assert luff.open_trial(hook.run).outcome == "completed"


def test_a_place_that_is_taken(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            hook = attach(tmp_path / "run")
        hook.close()
        assert hook.run == str(tmp_path / ("run" if number == 1 else f"run-{number}"))
        assert [w.filename for w in said] == [__file__] * (number > 1)
        assert luff.open_trial(hook.run).outcome == "completed"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attach(tmp_path / "run").close()  # raises nothing
    assert (tmp_path / "run-4" / "run.json").exists()


def test_a_run_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    with attach(tmp_path / "run") as first, pytest.warns(UserWarning, match="holds a run already"):
        second = attach(tmp_path / "run")
    second.close()
    assert (Path(first.run).name, Path(second.run).name) == ("run", "run-2")


def test_resume_goes_on_and_other_mistakes_stay_errors(tmp_path: Path) -> None:
    attach(tmp_path / "run").close()
    again = attach(tmp_path / "run", resume=True)
    again.close()
    assert again.run == str(tmp_path / "run")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(FailedPreconditionError, match="mine"):
        attach(tmp_path / "mine")
    assert not (tmp_path / "mine-2").exists()


def test_what_a_name_is_taken_by_is_said(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("data")
    with pytest.warns(
        UserWarning, match=r"train\.py is no directory; this one is recorded into .*train\.py-2"
    ):
        attach(tmp_path / "train.py").close()
    assert (tmp_path / "train.py").read_text() == "data"


def test_ranks_need_a_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LUFF_HOME", str(tmp_path))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InvalidArgumentError, match="pass run=DIRECTORY, or start the script by `luff run"):
        attach()
    assert not (tmp_path / "runs").exists()


def test_a_forked_child_records_into_its_parents_run(tmp_path: Path) -> None:
    attach(tmp_path / "run").close()
    with pytest.warns(UserWarning, match="holds a run already"):
        hook = attach(tmp_path / "run")
    child = os.fork()
    if child == 0:
        with hook.step() as step:
            step.loss(1.0)
        hook.close()
        os._exit(0)
    os.waitpid(child, 0)
    hook.close()
    assert [worker["worker"] for worker in luff.open_trial(tmp_path / "run").workers()] == [0]
    assert [worker["worker"] for worker in luff.open_trial(tmp_path / "run-2").workers()] == [0, 1]


def test_a_script_that_runs_twice(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import numpy as np\nimport luff.numpy\nluff.numpy.attach({'w': np.zeros(3)}, run='runs/x')\n"
    )
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert f"{script}:3: UserWarning" in done.stderr
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["x", "x-2"]
