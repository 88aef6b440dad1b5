"""`./dev gpu` where there is no GPU: it says so, everything is skipped, and that is no failure."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from devlib import gpu as gpu_verb  # noqa: E402

PARTS = [
    "kernels",
    "values",
    "forms",
    "samples",
    "identical",
    "harm",
    "frameworks",
    "memory",
    "cost",
    "models",
    "peers",
    "faults",
    "stop",
]
PARTS += ["sanitizer"]


def gpu(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs it with a Python that has no torch."""
    without = tmp_path / "python"
    without.write_text("#!/bin/sh\nexit 1\n")
    without.chmod(0o755)
    return subprocess.run(
        [str(ROOT / "dev"), "gpu", "--python", str(without), *options],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_everything_is_skipped_with_a_reason(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = gpu(tmp_path, "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == f"0 passed, 0 failed, {len(PARTS)} skipped"
    assert "no Python here has torch" in done.stdout
    found = json.loads(out.read_text())
    assert [row["part"] for row in found["rows"]] == PARTS
    assert found["device"] is None


def test_parts_are_chosen_by_name(tmp_path: Path) -> None:
    assert "1 skipped" in gpu(tmp_path, "--only", "cost").stdout
    wrong = gpu(tmp_path, "--only", "prices")
    assert wrong.returncode == 1
    assert f"no part prices; there are: {', '.join(PARTS)}" in wrong.stderr


# ---- A machine that says it has a GPU ----

TAG = f"cp{sys.version_info[0]}{sys.version_info[1]}"


def pretending(tmp_path: Path, missing: str = "[]") -> str:
    """Returns a Python whose torch says that it has a GPU; all else is this Python's."""
    python = tmp_path / "pretending"
    facts = f'["2.11.0+cu130", "13.0", true, "NVIDIA H100", {missing}, "{TAG}"]'
    python.write_text(
        f'#!/bin/sh\ncase "$1 $2" in *get_device_name*) echo \'{facts}\';; *) exec {sys.executable} "$@";; esac\n'
    )
    python.chmod(0o755)
    return str(python)


def wheel(folder: Path, tag: str = TAG) -> Path:
    """Returns a wheel of the Luff that is installed."""
    package = importlib.util.find_spec("luff")
    assert package is not None
    assert package.origin is not None
    source = Path(package.origin).parent
    made = folder / f"luff-0.1.0-{tag}-{tag}-manylinux_2_35_x86_64.whl"
    with zipfile.ZipFile(made, "w") as archive:
        for file in source.rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                archive.write(file, f"luff/{file.relative_to(source)}")
        archive.writestr("luff-0.1.0.data/scripts/luff", "#!/bin/sh\necho a command\n")
    return made


def told(tmp_path: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / "dev"), "gpu", "--python", pretending(tmp_path), *options],
        capture_output=True, text=True, timeout=300, check=False, env=os.environ | environment,
    )  # fmt: skip


def test_parts_that_break_are_failures_and_the_others_go_on(tmp_path: Path) -> None:
    """Here torch has no CUDA: what needs it says so, what the driver is needed for is skipped."""
    out = tmp_path / "out.json"
    wheel(tmp_path)
    done = told(tmp_path, "--wheel", str(tmp_path), "--only", "kernels,values,samples", "--out", str(out))
    assert done.returncode == 1, done.stderr
    found = json.loads(out.read_text())
    assert [row["part"] for row in found["rows"]] == ["kernels", "values", "samples"]
    assert [row["status"] for row in found["rows"]] == ["skipped", "failed", "failed"]
    assert found["device"] == "NVIDIA H100"
    assert found["torch"][0] == "2.11.0+cu130"
    assert set(found) == {"device", "torch", "driver", "python", "date", "rows"}
    assert done.stdout.strip().splitlines()[-1] == "0 passed, 2 failed, 1 skipped"
    assert "CUDA" in found["rows"][1]["detail"]


def test_parts_for_which_no_time_is_left_are_skipped(tmp_path: Path) -> None:
    wheel(tmp_path)
    done = told(tmp_path, "--wheel", str(tmp_path), "--only", "kernels", "--minutes", "-1")
    assert done.returncode == 0
    assert "no time was left" in done.stdout


@pytest.mark.parametrize(
    ("of", "said"),
    [
        ("nothing", "no wheel of Luff for {tag}, there is no wheel"),
        ("other", "no wheel of Luff for {tag}, there is luff-0.1.0-cp30-cp30-manylinux_2_35_x86_64.whl"),
        ("broken", "cannot be unpacked"),
        ("no command", "has no command `luff`"),
    ],
)
def test_a_wheel_that_does_not_do_is_named(tmp_path: Path, of: str, said: str) -> None:
    if of == "other":
        wheel(tmp_path, "cp30")
    elif of == "broken":
        wheel(tmp_path).write_text("no archive")
    elif of == "no command":
        with zipfile.ZipFile(tmp_path / f"luff-0.1.0-{TAG}-{TAG}-linux_x86_64.whl", "w") as archive:
            archive.writestr("luff/__init__.py", "")
    done = told(tmp_path, "--wheel", str(tmp_path), "--only", "values")
    assert done.returncode == 1
    assert said.format(tag=TAG) in done.stderr


def test_where_luff_cannot_be_built_the_way_out_is_named(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "cmake").write_text("#!/bin/sh\necho 'no hwy' >&2\nexit 1\n")
    (tools / "cmake").chmod(0o755)
    done = told(tmp_path, "--only", "values", PATH=f"{tools}:{os.environ['PATH']}")
    assert done.returncode == 1
    assert "--wheel FILE" in done.stderr
    assert "no hwy" in done.stderr


def test_what_luff_needs_of_that_python_is_named(tmp_path: Path) -> None:
    python = pretending(tmp_path, '["ml_dtypes"]')
    done = subprocess.run(
        [str(ROOT / "dev"), "gpu", "--python", python],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "lacks ml_dtypes, which Luff needs" in done.stderr


def test_what_a_part_that_is_late_has_printed_is_kept_and_its_jobs_end(tmp_path: Path) -> None:
    script = tmp_path / "late.py"
    script.write_text(
        "import subprocess, sys, time\n"
        'print(\'{"check": "first", "status": "passed"}\', flush=True)\n'
        "job = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(job.pid))\n"
        "time.sleep(300)\n"
    )
    printed, broken = gpu_verb._outcome([sys.executable, str(script)], dict(os.environ), 5)
    assert json.loads(printed) == {"check": "first", "status": "passed"}
    assert broken == "not done in 5 s"
    assert _ends(int((tmp_path / "pid").read_text()))


def test_a_part_that_says_nothing_is_a_failure() -> None:
    assert gpu_verb._outcome(["/bin/sh", "-c", "exit 3"], dict(os.environ), 20) == ("", "ended with 3")
    said = gpu_verb._outcome(["/bin/sh", "-c", "echo why >&2; exit 3"], dict(os.environ), 20)
    assert said == ("", "why\n")


@pytest.mark.parametrize(("how", "broken"), [("exit 1", ""), ("kill -SEGV $$", "ended with -11")])
def test_a_crash_after_a_check_that_failed_is_told(how: str, broken: str) -> None:
    """The kernels say by their exit code 1 that a check failed."""
    line = '{"check": "first", "status": "failed"}'
    said = gpu_verb._outcome(["/bin/sh", "-c", f"echo '{line}'; {how}"], dict(os.environ), 20)
    assert said == (line + "\n", broken)


def test_lines_that_are_no_outcomes_are_left_out() -> None:
    good = '{"check": "first", "status": "passed"}'
    printed = "\n".join([good, "{'a': 1}", '{"name": "other"}', "words", good[:20]])
    assert gpu_verb._rows("cost", printed) == [{"part": "cost", "check": "first", "status": "passed"}]


def test_a_build_counts_and_is_ended(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    pid = tmp_path / "pid"
    (tools / "cmake").write_text(f"#!/bin/sh\nsleep 300 & echo $! >{pid}; wait\n")
    (tools / "cmake").chmod(0o755)
    began = time.monotonic()
    done = told(tmp_path, "--minutes", "0.05", PATH=f"{tools}:{os.environ['PATH']}")
    assert done.returncode == 1
    assert "not built in the time" in done.stderr
    assert time.monotonic() - began < 60
    assert _ends(int(pid.read_text()))


def test_what_runs_ends_with_the_command(tmp_path: Path) -> None:
    """SIGTERM, as a scheduler sends it: no part outlives the command, and what was found is written."""
    wheel(tmp_path)
    python = tmp_path / "pretending"
    pretending(tmp_path)
    shell = python.read_text().splitlines()
    pid = tmp_path / "pid"
    part = f'case "$2" in samples) sleep 300 & echo $! >{pid}; wait;; esac'
    python.write_text("\n".join([shell[0], part, *shell[1:]]) + "\n")
    out = tmp_path / "out.json"
    command = [str(ROOT / "dev"), "gpu", "--python", str(python), "--wheel", str(tmp_path), "--out", str(out)]
    process = subprocess.Popen([*command, "--only", "kernels,samples"], stdout=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while (not pid.exists() or not pid.read_text().strip()) and time.monotonic() < until:
        time.sleep(0.05)
    process.terminate()
    assert process.wait(timeout=30) == 143
    assert _ends(int(pid.read_text()))
    assert [row["part"] for row in json.loads(out.read_text())["rows"]] == ["kernels"]


def _ends(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            if "State:\tZ" in status.read_text():
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False
