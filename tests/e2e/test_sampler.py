"""The process that measures the machine: who starts it, that it ends with its job, and that nobody notices."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import luff as library
import pytest

from .conftest import Luff, processes_with

_SCRIPT = """
import os, sys, time
import numpy as np
import luff.numpy

weights = {{"w": np.ones(4, np.float32)}}
hook = luff.numpy.attach(weights, {options})
end = time.monotonic() + {seconds}
number = 0
while time.monotonic() < end and not os.path.exists({enough!r}):
    with hook.step() as step:
        step.gradients({{"w": np.full(4, 0.1, np.float32)}})
        step.loss(1.0 / (number + 1))
    number += 1
    time.sleep(0.01)
{after}
"""


def _script(luff: Luff, seconds: float, options: str = "", after: str = "") -> str:
    path = luff.tmp / "train.py"
    path.write_text(
        _SCRIPT.format(seconds=seconds, options=options, after=after, enough=str(luff.tmp / "enough"))
    )
    return str(path)


def _wait(condition: Callable[[], Any], what: str, timeout_s: float = 60) -> Any:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.02)
    pytest.fail(f"waited {timeout_s} s for {what}")


def _samplers(run: Path) -> list[int]:
    """Returns processes that sample for a run."""
    found = []
    for pid in processes_with(str(run)):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"_sample" in words:
            found.append(pid)
    return found


def _hosts(run: Path) -> list[Path]:
    return sorted(run.glob("h[0-9]*"))


def _profile(luff: Luff, run: Path) -> dict[str, Any]:
    code, out, err = luff("profile", str(run), "--json")
    assert code == 0, err
    parsed: dict[str, Any] = json.loads(out)
    return parsed


def _attached(luff: Luff, script: str, **environment: str) -> subprocess.Popen[str]:
    own = {"LUFF_EXECUTABLE": str(luff.executable), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    return subprocess.Popen(
        [sys.executable, script], env=luff.environment | own | environment, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_luff_run_measures_the_machine_and_says_so(luff: Luff) -> None:
    run = luff.tmp / "run"
    code, _, err = luff("run", "--run", str(run), "--", sys.executable, _script(luff, 4))
    assert code == 0, err
    assert not _samplers(run)
    assert len(_hosts(run)) == 1
    (machine,) = _profile(luff, run)["machines"]
    assert machine["name"] == os.uname().nodename
    assert machine["seconds"] > 1
    assert machine["sampler"] | {"cores": 0, "rss": 0} == {
        "cores": 0, "rss": 0, "lives": 1, "ended": True, "not_sampled": 0,
    }  # fmt: skip
    assert machine["sampler"]["rss"] < 20e6
    (rank,) = machine["ranks"]
    assert rank["worker"] == 0
    assert 0 < rank["most_rss"] < 2e9
    assert machine["memory"]["total"] > 1e8
    code, out, err = luff("profile", str(run), "--price-per-hour", "3.6")
    assert code == 0, err
    assert f"machine {machine['name']}" in out
    assert "cost" in out
    code, out, err = luff("verify", str(run))
    assert code == 0, out + err


def test_off_measures_nothing(luff: Luff) -> None:
    config = luff.tmp / "luff.toml"
    config.write_text('[capture]\nprofile = "off"\n')
    run = luff.tmp / "run"
    code, _, err = luff(
        "run", "--config", str(config), "--run", str(run), "--", sys.executable, _script(luff, 2)
    )
    assert code == 0, err
    assert not _hosts(run)
    other = luff.tmp / "other"
    script = _script(luff, 2, f'run={str(other)!r}, profile="off"')
    job = _attached(luff, script)
    _, err = job.communicate(timeout=60)
    assert job.returncode == 0, err
    assert (other / "run.json").exists()
    assert not _hosts(other)


def test_a_killed_sampler_is_started_once_more(luff: Luff) -> None:
    run = luff.tmp / "run"
    job = luff.start("run", "--run", str(run), "--", sys.executable, _script(luff, 120))
    first = _wait(lambda: _hosts(run) and _samplers(run), "a sampler")[0]
    os.kill(first, signal.SIGKILL)
    second = _wait(lambda: [pid for pid in _samplers(run) if pid != first], "another one")[0]
    _wait(lambda: len(list(_hosts(run)[0].glob("m-*.lfm"))) == 2, "its first segment")
    os.kill(second, signal.SIGKILL)
    time.sleep(2)  # time to start a third one, which must not come
    (luff.tmp / "enough").touch()
    out, err = job.communicate(timeout=120)
    assert job.returncode == 0, out + err
    assert not _samplers(run)
    assert "_sample" not in err.replace(str(luff.tmp), "")
    (machine,) = _profile(luff, run)["machines"] or [{"sampler": {"lives": 2, "ended": False}}]
    assert machine["sampler"]["lives"] == 2


@pytest.mark.thorough  # it takes 20 s until samples are late for good
def test_a_sampler_that_died_for_good_is_told(luff: Luff) -> None:
    run = luff.tmp / "run"
    job = luff.start("run", "--run", str(run), "--", sys.executable, _script(luff, 180))
    first = _wait(lambda: _hosts(run) and _samplers(run), "a sampler")[0]
    _wait(lambda: list(_hosts(run)[0].glob("m-*.lfm")), "its first segment")
    os.kill(first, signal.SIGKILL)
    second = _wait(lambda: [pid for pid in _samplers(run) if pid != first], "another one")[0]
    os.kill(second, signal.SIGKILL)

    def told() -> str:
        code, out, err = luff("profile", str(run))
        assert code == 0, err
        return " ".join(out.split())

    said = "its sampler has ended before the training, and was not started again"
    _wait(lambda: said in told(), "what is not measured")
    (luff.tmp / "enough").touch()
    out, err = job.communicate(timeout=120)
    assert job.returncode == 0, out + err
    assert said in told()
    (machine,) = _profile(luff, run)["machines"]
    assert machine["sampler"]["not_sampled"] > 15 and not machine["sampler"]["ended"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_the_supervisor(luff: Luff, number: signal.Signals) -> None:
    run = luff.tmp / "run"
    job = luff.start("run", "--run", str(run), "--", sys.executable, _script(luff, 3))
    _wait(lambda: _hosts(run) and _samplers(run), "a sampler")
    job.send_signal(number)
    _wait(lambda: not _samplers(run), "its end")
    job.communicate(timeout=60)


def test_attach_starts_one_that_is_nobodys_child(luff: Luff) -> None:
    run = luff.tmp / "run"
    after = (
        "import glob, signal\n"
        f"while not glob.glob({str(run)!r} + '/h*/m-*'): time.sleep(0.02)\n"
        "try:\n    print(os.wait())\nexcept ChildProcessError:\n    print('no child')\n"
        "print(open('/proc/thread-self/children').read() or 'none')"
    )
    script = _script(luff, 2, f"run={str(run)!r}", after)
    job = _attached(luff, script)
    _wait(lambda: _hosts(run) and _samplers(run), "a sampler")
    out, err = job.communicate(timeout=60)
    assert job.returncode == 0, err
    assert out == "no child\nnone\n"
    assert err == ""
    _wait(lambda: not _samplers(run), "its end")
    (machine,) = _profile(luff, run)["machines"]
    assert machine["sampler"]["ended"]
    assert machine["ranks"][0]["worker"] == 0


def test_it_ends_with_a_training_that_is_killed(luff: Luff) -> None:
    run = luff.tmp / "run"
    job = _attached(luff, _script(luff, 60, f"run={str(run)!r}"))
    _wait(lambda: _hosts(run) and _samplers(run), "a sampler")
    job.kill()
    job.communicate(timeout=60)
    _wait(lambda: not _samplers(run), "its end")


def test_two_processes_of_a_machine_have_one(luff: Luff) -> None:
    run = luff.tmp / "run"
    script = _script(luff, 6, f"run={str(run)!r}")
    jobs = [_attached(luff, script, RANK=str(rank), WORLD_SIZE="2") for rank in (0, 1)]
    _wait(lambda: _hosts(run) and _samplers(run), "a sampler")
    for job in jobs:
        _, err = job.communicate(timeout=60)
        assert job.returncode == 0, err
    _wait(lambda: not _samplers(run), "its end")
    assert len(_hosts(run)) == 1
    (machine,) = _profile(luff, run)["machines"]
    assert [rank["worker"] for rank in machine["ranks"]] == [0, 1]


def test_a_run_that_is_removed_ends_it(luff: Luff) -> None:
    import shutil

    run = luff.tmp / "run"
    job = _attached(luff, _script(luff, 60, f"run={str(run)!r}"))
    try:
        _wait(lambda: _hosts(run) and _samplers(run), "a sampler")
        _wait(lambda: shutil.rmtree(run, ignore_errors=True) or not run.exists(), "the removal")
        _wait(lambda: not _samplers(run), "its end")
    finally:
        job.kill()
        job.communicate(timeout=60)


def _plain_run(luff: Luff, name: str = "run") -> tuple[Path, subprocess.Popen[str]]:
    """Returns a run that no sampler watches yet, and the training that writes it."""
    run = luff.tmp / name
    job = _attached(luff, _script(luff, 600, f'run={str(run)!r}, profile="off"'))
    _wait(lambda: list(run.glob("w*/m-*.lfm")), "the run")
    return run, job


def test_energy_is_told_in_kilowatt_hours_and_its_price_where_it_is_known(luff: Luff) -> None:
    package = luff.tmp / "root" / "sys" / "class" / "powercap" / "intel-rapl:0"
    package.mkdir(parents=True)
    (package / "max_energy_range_uj").write_text("10000000000000\n")
    (package / "energy_uj").write_text("100\n")
    proc = luff.tmp / "root" / "proc"
    proc.mkdir()
    (proc / "stat").write_text("cpu  100 0 50 1000 0 0 0 0\ncpu0 100 0 50 1000 0 0 0 0\n")
    run, job = _plain_run(luff)
    try:
        words = ["_sample", str(run), "--hz", "10", "--root", str(luff.tmp / "root"), "--ticks", "600"]
        sampler = luff.start(*words)
        _wait(lambda: _profile(luff, run)["machines"], "its first samples")
        (package / "energy_uj").write_text(f"{1_500_000 * 3_600_000 + 100}\n")
        _wait(lambda: _profile(luff, run)["machines"][0]["energy_kwh"]["processors"], "the energy")
        sampler.kill()
        sampler.communicate(timeout=60)
    finally:
        job.kill()
        job.communicate(timeout=60)
    (machine,) = _profile(luff, run)["machines"]
    assert machine["energy_kwh"] == {"processors": pytest.approx(1.5), "gpus": None}
    code, out, err = luff("profile", str(run), "--price-per-hour", "3600")
    assert code == 0, err
    assert "energy" in out and "processors 1.5 kWh" in out, out
    assert f"{machine['seconds']:.2f} at 3600 an hour" in out, out
    assert "cost" not in luff("profile", str(run))[1]  # nobody has said what an hour costs


def _samples(run: Path) -> list[float]:
    """Returns the times of the samples that can be read."""
    with library.open_trial(run) as trial:
        hosts = [host for host in trial.profile().hosts if "cpu.busy" in host.units]
        times: list[float] = hosts[0].columns("cpu.busy")["unix_s"].tolist() if hosts else []
    return times


@pytest.mark.thorough
def test_what_a_killed_sampler_has_left_can_be_read(luff: Luff) -> None:
    """Of 60 kills, at random instants and while it writes, none makes the folder unreadable, or takes samples away."""
    chance = random.Random(20)
    run, job = _plain_run(luff)
    written: list[float] = []
    grew = 0
    try:
        for number in range(60):
            sampler = luff.start("_sample", str(run), "--hz", "10")
            if number % 2:
                for _ in range(chance.randint(1, 6)):  # opening the folder changes it several times
                    _until_it_writes(run, chance.uniform(0, 0.0005))
            else:
                time.sleep(chance.uniform(0, 2.3))  # it writes after a second, and after two
            sampler.kill()
            sampler.communicate(timeout=60)
            code, out, err = luff("verify", str(run))
            assert code == 0, f"kill {number}: {out}{err}"
            now = _samples(run)
            assert now[: len(written)] == written, number
            assert all(a < b for a, b in zip(now, now[1:], strict=False)), number
            grew += len(now) > len(written)
            written = now
    finally:
        job.kill()
        job.communicate(timeout=60)
    assert grew >= 10
    (machine,) = _profile(luff, run)["machines"]
    assert machine["sampler"]["lives"] >= 10 and not machine["sampler"]["ended"]


def _until_it_writes(run: Path, more_s: float) -> None:
    """Waits until a file of the sampler's folder changes, and a little more."""

    def state() -> list[tuple[str, int, int]]:
        found = []
        for path in run.glob("h[0-9]*/*"):
            try:
                found.append((path.name, path.stat().st_size, path.stat().st_mtime_ns))
            except OSError:  # it has been renamed or removed meanwhile
                continue
        return sorted(found)

    before, end = state(), time.monotonic() + 1.5
    while state() == before and time.monotonic() < end:
        pass
    time.sleep(more_s)
