"""Edge cases of ./dev and its checkers."""

from __future__ import annotations

import argparse
import ast
import errno
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from devlib import docs, fuzz, results, setup, stamp, term, wheel  # noqa: E402
from devlib import test as run_tests  # noqa: E402


def dev(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "dev"), *arguments], capture_output=True, text=True, check=False
    )


def test_without_arguments_lists_every_verb_with_one_line() -> None:
    done = dev()
    assert done.returncode == 0
    verbs = {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")}
    assert verbs == {
        "setup",
        "build",
        "test",
        "check",
        "fix",
        "bench",
        "fuzz",
        "crash",
        "attack",
        "pin",
        "wheel",
        "demo",
        "compat",
        "kernels",
        "gpu",
        "docs",
    }


def test_unknown_verb_names_those_that_exist() -> None:
    done = dev("biuld")
    assert done.returncode == 2
    assert "'biuld'" in done.stderr
    assert "build" in done.stderr


def test_every_verb_explains_itself() -> None:
    for verb in [
        "setup",
        "build",
        "test",
        "check",
        "fix",
        "bench",
        "fuzz",
        "crash",
        "attack",
        "wheel",
        "demo",
        "docs",
    ]:
        done = dev(verb, "-h")
        assert done.returncode == 0, done.stderr
        assert f"./dev {verb}" in done.stdout


def test_sources_of_dev_are_python_3_9() -> None:
    for file in [ROOT / "dev", *(ROOT / "tools" / "devlib").glob("*.py")]:
        ast.parse(file.read_text(), feature_version=(3, 9))


# --- tests ---


def test_a_full_disk_is_told_and_other_stages_still_count(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fills(_args: argparse.Namespace) -> results.Tally:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(setup, "ensure_packages", lambda: None)
    monkeypatch.setattr(setup, "ensure_venv", lambda **_: None)
    stages = {
        "fills": run_tests.Stage(fills, "a full disk"),
        "other": run_tests.Stage(lambda _: results.Tally(passed=2), "another"),
    }
    monkeypatch.setattr(run_tests, "STAGES", stages)
    assert run_tests.test_main(argparse.Namespace(only=[], filter="", thorough=False)) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "2 passed, 1 failed, 0 skipped"
    assert any("fills: the disk of" in line and "is full" in line for line in lines)


def test_stages_that_leave_a_core_idle_run_beside_each_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup, "ensure_packages", lambda: None)
    monkeypatch.setattr(setup, "ensure_venv", lambda **_: None)
    monkeypatch.setattr(run_tests.build, "ensure_product", lambda: None)
    monkeypatch.setattr(run_tests.build, "jobs", lambda: 2)
    both = threading.Barrier(2, timeout=60)

    def meets(_args: argparse.Namespace) -> results.Tally:
        both.wait()
        term.say("  met")
        return results.Tally(passed=1)

    stages = {
        "alone": run_tests.Stage(lambda _: results.Tally(passed=1), "by itself"),
        "first": run_tests.Stage(meets, "one", beside=True),
        "second": run_tests.Stage(meets, "another", beside=True),
    }
    monkeypatch.setattr(run_tests, "STAGES", stages)
    assert run_tests.test_main(argparse.Namespace(only=[], filter="x", thorough=False)) == 0
    said = capsys.readouterr().out.splitlines()
    for name in ("first", "second"):  # the output of each stage stays together
        start = next(i for i, line in enumerate(said) if line.startswith(f"== {name}:"))
        assert said[start + 1] == "  met"
        assert said[start + 2].startswith(f"  {name}: 1 passed")
    assert said[-1] == "3 passed, 0 failed, 0 skipped"


def test_a_stage_that_waits_runs_beside_as_many_others_as_there_are_cores(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup, "ensure_packages", lambda: None)
    monkeypatch.setattr(setup, "ensure_venv", lambda **_: None)
    monkeypatch.setattr(run_tests.build, "ensure_product", lambda: None)
    monkeypatch.setattr(run_tests.build, "jobs", lambda: 2)
    all_three = threading.Barrier(3, timeout=60)

    def meets(_args: argparse.Namespace) -> results.Tally:
        all_three.wait()
        return results.Tally(passed=1)

    stages = {
        "first": run_tests.Stage(meets, "one", beside=True),
        "second": run_tests.Stage(meets, "another", beside=True),
        "idle": run_tests.Stage(meets, "a server's client", beside=True, waits=True),
    }
    monkeypatch.setattr(run_tests, "STAGES", stages)
    assert run_tests.test_main(argparse.Namespace(only=[], filter="x", thorough=False)) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "3 passed, 0 failed, 0 skipped"


@pytest.fixture
def guest(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A user who is neither root nor may use sudo."""
    monkeypatch.setattr(setup.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(setup, "_sudo_works", lambda: False)
    return monkeypatch


def test_missing_required_packages_without_rights_are_named_exactly(guest: pytest.MonkeyPatch) -> None:
    guest.setattr(setup, "missing_packages", lambda: ["ninja-build", "libhwy-dev", "valgrind"])
    with pytest.raises(term.Failed) as caught:
        setup.ensure_packages()
    assert "apt-get install -y --no-install-recommends ninja-build libhwy-dev valgrind" in str(caught.value)
    assert "2 Debian packages" in str(caught.value)


def test_missing_optional_packages_do_not_stop_and_are_said(
    guest: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    guest.setattr(setup, "missing_packages", lambda: ["clang-tidy-19"])
    guest.setattr(setup.stamp, "write", lambda *_: None)
    setup.ensure_packages(verbose=True)
    assert "without lint: clang-tidy-19" in capsys.readouterr().out
    assert setup.has("lint") == (False, "not installed: clang-tidy-19")
    assert setup.has("format-check") == (True, "")


def test_every_package_names_its_part() -> None:
    parts = set(setup.packages().values())
    assert "required" in parts
    checks = {"sanitizers-and-fuzzing", "format-check", "lint", "instruction-counts"}
    assert parts <= {"required", "browser-tests", "metrics-tests", "proxy-tests"} | checks


# --- wheels ---


def test_a_wheel_for_each_python_that_is_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find(version: str) -> str:
        if version == "3.10":
            raise term.Failed("no Python 3.10 with venv and headers found")
        return f"python{version}"

    tried = []
    monkeypatch.setattr(setup, "ensure_packages", lambda **_: None)
    monkeypatch.setattr(setup, "ensure_venv", lambda **_: None)
    monkeypatch.setattr(setup, "find_python", find)
    monkeypatch.setattr(wheel, "build_wheel", lambda version: ROOT / "dist" / f"{wheel.tag(version)}.whl")
    monkeypatch.setattr(wheel, "_try", lambda file, python: tried.append((file.stem, python)))
    wheel.wheel_main(argparse.Namespace(only=[]))
    assert tried == [("cp311", "python3.11"), ("cp312", "python3.12"), ("cp313", "python3.13")]
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "  cp310: skipped, no Python 3.10 with venv and headers found"
    assert said[1] == "  cp311: dist/cp311.whl, installed and tried"
    with pytest.raises(term.Failed, match=r"3\.10"):
        wheel.wheel_main(argparse.Namespace(only=["3.10"]))


# --- running commands ---


def test_a_failing_step_keeps_and_names_its_log(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(term.Failed, match=r"exit code 3 .*log: build/logs/house-test/step\.log"):
        term.run(
            "a step", [sys.executable, "-c", "print('seen'); raise SystemExit(3)"], log="house-test/step"
        )
    assert "seen" in (ROOT / "build/logs/house-test/step.log").read_text()
    assert "seen" in capsys.readouterr().out


def test_a_command_that_hangs_is_ended_with_its_children() -> None:
    code, text = term.run(
        "hangs",
        ["/bin/sh", "-c", "sleep 300 & echo started; wait"],
        log="house-test/hang",
        check=False,
        timeout_s=0.5,
    )
    assert code != 0
    assert "started" in text
    assert "limit" in text


def test_digest_follows_contents_and_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stamp, "ROOT", tmp_path)
    (tmp_path / "a").write_text("1")
    first = stamp.digest(["a", "absent"])
    assert stamp.digest(["a"]) == first
    (tmp_path / "a").write_text("2")
    assert stamp.digest(["a"]) != first


# --- results ---


def test_googletest_and_pytest_files_are_counted_by_case(tmp_path: Path) -> None:
    (tmp_path / "g.xml").write_text(
        '<testsuites><testsuite name="S"><testcase name="A" classname="S" status="run"/>'
        '<testcase name="B" classname="S" status="run"><failure message="x&#10;y"/></testcase>'
        '<testcase name="C" classname="S" status="run"><skipped message="f.cc:1&#10;no disk"/></testcase>'
        '<testcase name="D" classname="S" status="notrun"/></testsuite></testsuites>'
    )
    tally = results.read_xml(tmp_path / "g.xml")
    assert tally.line() == "1 passed, 1 failed, 2 skipped"
    assert tally.failures == ["S.B: x"]
    assert tally.skips == [("S.C", "no disk"), ("S.D", "switched off")]


def test_a_program_that_died_counts_as_failed_even_with_half_a_file(tmp_path: Path) -> None:
    (tmp_path / "ctest.xml").write_text(
        '<testsuite><testcase name="dead_test" status="fail"><failure message=""/></testcase>'
        '<testcase name="plain" status="run"/>'
        '<testcase name="late_test" status="fail"><failure/></testcase></testsuite>'
    )
    (tmp_path / "dead_test.xml").write_text("<testsuites><testsuite")
    (tmp_path / "late_test.xml").write_text(
        '<testsuites><testsuite><testcase name="A" classname="L" status="run"/></testsuite></testsuites>'
    )
    tally = results.read_ctest(tmp_path / "ctest.xml", tmp_path, "cpp")
    assert tally.line() == "2 passed, 2 failed, 0 skipped"
    assert (
        results.read_ctest(tmp_path / "none.xml", tmp_path, "cpp").line() == "0 passed, 1 failed, 0 skipped"
    )


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        ("20 kills, 0 wrong values\n", 0, (20, 0, "")),
        ("20 kills, 2 wrong values\n", 1, (20, 2, "exit code 1 after 20 of 20 kills, 2 wrong values")),
        ("11 kills, 0 wrong values\n", 0, (11, -1, "exit code 0 after 11 of 20 kills, 0 wrong values")),
        (
            "segmentation fault\n",
            139,
            (0, -1, "ended with 139 without its last line; log: build/logs/test/crash.log"),
        ),
    ],
)
def test_crash_runs_are_judged_by_their_last_line(
    monkeypatch: pytest.MonkeyPatch, text: str, code: int, expected: tuple[int, int, str]
) -> None:
    monkeypatch.setattr(fuzz, "crash_program", lambda: Path("luff_crash"))
    monkeypatch.setattr(fuzz, "run", lambda *_, **__: (code, text))
    assert fuzz.run_crash(20) == expected


# --- documentation ---


def test_pages_with_dead_links_and_unknown_commands_are_found() -> None:
    shell = "```sh\n./dev bulid\nluff chek run\n```\n"
    page = f"# Head\n[a](nowhere.md) [b](#head) [c](#tail) `[d](x)`\n{shell}```python\nx = (\n```\n"
    problems = list(docs.check_page("README.md", page, {"check", "run"}))
    assert len(problems) == 5, problems
    assert problems[0] == "README.md:2: leads nowhere: nowhere.md"
    assert "no such heading: #tail" in problems[1]
