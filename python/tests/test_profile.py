"""Where the time went, as columns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import luff
import numpy as np
import pytest
from luff import _core, errors
from luff._codes import EndReason, Mode, Phase


def phase(*names: Phase) -> None:
    for name in names:
        _core.enter_phase(int(name))
        sum(range(1000))
        _core.leave_phase(int(name))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Six TRAIN steps; the fourth waits twice; each second one is followed by an EVAL step without a wait."""
    session = _core.Session.open(str(tmp_path / "run"), config_json="{}")
    step = 0
    for train in range(6):
        session.begin_step(int(Mode.TRAIN), train)
        phase(Phase.DATA_WAIT, *([Phase.DATA_WAIT] if train == 3 else []), Phase.FORWARD, Phase.BACKWARD)
        session.end_step(int(Mode.TRAIN), step, train, train)
        step += 1
        if train % 2:
            session.begin_step(int(Mode.EVAL), train // 2)
            phase(Phase.FORWARD)
            session.end_step(int(Mode.EVAL), step, train // 2, train + 1)
            step += 1
    session.close(int(EndReason.COMPLETED), 10.0)
    return tmp_path / "run"


def test_phases_of_a_step_add_up_to_its_time(run: Path) -> None:
    profile = luff.open_trial(run).profile("GLOBAL")
    assert len(profile) == 9
    assert list(profile.steps["mode"]).count("EVAL") == 3
    total = sum(np.nan_to_num(seconds) for seconds in profile.phases.values())
    assert np.abs(total - profile.steps["wall"]).max() < 1e-9
    assert len({len(column) for column in (*profile.steps.values(), *profile.phases.values())}) == 1


def test_steps_of_some_microseconds_add_up(tmp_path: Path) -> None:
    session = _core.Session.open(str(tmp_path / "run"), config_json="{}")
    for step in range(1000):
        session.begin_step(int(Mode.TRAIN), step)
        for one in (Phase.FORWARD, Phase.BACKWARD):
            _core.enter_phase(int(one))
            _core.leave_phase(int(one))
        session.end_step(int(Mode.TRAIN), step, step, step)
    session.close(int(EndReason.COMPLETED), 60.0)
    profile = luff.open_trial(tmp_path / "run").profile()
    assert len(profile) == 1000
    total = sum(np.nan_to_num(seconds) for seconds in profile.phases.values())
    assert np.abs(total - profile.steps["wall"]).max() < 1e-9
    assert (profile.steps["wall"] > 0).all()


def test_what_a_step_does_not_have_is_absent(run: Path) -> None:
    profile = luff.open_trial(run).profile("GLOBAL")
    waits = profile.phases["data_wait"]
    assert list(np.isnan(waits)) == list(profile.steps["mode"] == "EVAL")
    assert (waits[~np.isnan(waits)] > 0).all()
    assert "checkpoint" not in profile.phases
    assert np.isnan(profile.steps["device"]).all()


def test_a_mode_is_chosen(run: Path) -> None:
    trial = luff.open_trial(run)
    assert list(trial.profile().steps["mode_step"]) == [0, 1, 2, 3, 4, 5]
    assert list(trial.profile().begins["data_wait"]) == [1, 1, 1, 2, 1, 1]
    assert set(trial.profile("EVAL").phases) == {"forward", "other"}
    assert len(trial.profile(worker=3)) == 0


def test_intervals_lie_apart_inside_the_step(run: Path) -> None:
    profile = luff.open_trial(run).profile()
    for row in range(len(profile)):
        spans = sorted(
            (profile.offsets[name][row], profile.phases[name][row])
            for name in profile.phases
            if name != "other"
        )
        free_from = 0.0
        for begin, took in spans:
            assert begin >= free_from - 1e-9
            free_from = begin + took
        assert free_from <= profile.steps["wall"][row] + 1e-9
    assert (np.diff(profile.steps["begin_unix_s"]) > 0).all()


def test_a_table_has_each_phase(run: Path) -> None:
    rows = luff.open_trial(run).profile().table()
    assert {row["phase"] for row in rows} == {"data_wait", "forward", "backward", "other"}
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert [row["seconds"] for row in rows] == sorted((row["seconds"] for row in rows), reverse=True)
    assert all(row["steps"] == 6 for row in rows)


def test_a_run_without_phases_has_an_empty_profile(tmp_path: Path) -> None:
    session = _core.Session.open(str(tmp_path / "run"), config_json='{"profile": "off"}')
    session.begin_step(int(Mode.TRAIN), 0)
    session.end_step(int(Mode.TRAIN), 0, 0, 0)
    session.close(int(EndReason.COMPLETED), 10.0)
    profile = luff.open_trial(tmp_path / "run").profile()
    assert (len(profile), profile.phases, profile.table()) == (0, {}, [])


def test_without_pandas_the_error_says_what_to_do(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(errors.FailedPreconditionError, match="pip install pandas"):
        luff.open_trial(run).profile().to_pandas()


@pytest.mark.parametrize(("flags", "known"), [([], True), (["-i"], False)])
def test_the_age_of_a_session_at_a_prompt_is_not_that_of_a_start(flags: list[str], known: bool) -> None:
    code = "from luff import _hook; print(sorted(_hook._age()))"
    done = subprocess.run(
        [sys.executable, *flags, "-c", code],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ("age_s" in done.stdout) == known
