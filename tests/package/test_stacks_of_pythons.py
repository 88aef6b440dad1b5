"""Stacks that are read from memory are those that Python tells, for each version of Python that is here.

Of real hangs, too, with and without Python's lock. A collective with a missing rank, which needs PyTorch, hangs in
`tests/cli/test_stalls.py` only, in the Python of the checkout.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROBE = Path(__file__).parent / "stacks"
VERSIONS = ["3.10", "3.11", "3.12", "3.13"]
SOURCES = [
    *(f"src/base/{name}.cc" for name in ("format", "text_escape")),
    *(f"src/capture/stacks/{name}.cc" for name in ("code_lines", "process_memory", "python_stacks")),
]
Probes = Callable[[str], tuple[str, Path]]


def run(*words: object) -> str:
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def find(version: str) -> tuple[str, Path]:
    """Returns a Python and where its headers lie; skips the test where there is none, or no headers."""
    name = f"python{version}"
    found = [
        shutil.which(name),
        *sorted(map(str, Path.home().glob(f".pyenv/versions/{version}*/bin/{name}"))),
    ]
    for python in filter(None, found):
        words = [python, "-c", "import sysconfig; print(sysconfig.get_paths()['include'])"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        headers = Path(done.stdout.strip())
        if done.returncode == 0 and (headers / "internal" / "pycore_interp.h").exists():
            return python, headers
    pytest.skip(f"{name} with its headers is not here")


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Probes:
    """Returns a Python of a version, and the library that looks at its stacks, built once."""
    built: dict[str, tuple[str, Path]] = {}

    def build(version: str) -> tuple[str, Path]:
        if version in built:
            return built[version]
        python, headers = find(version)
        if shutil.which("cc") is None or shutil.which("c++") is None:
            pytest.skip("no compiler")
        folder = tmp_path_factory.mktemp("probe")
        layout, library = folder / "interpreter.o", folder / "probe.so"
        run("cc", "-std=c11", "-fPIC", "-c", ROOT / "python/src/interpreter.c", "-o", layout,
            f"-I{ROOT}/include", f"-I{headers}")  # fmt: skip
        run("c++", "-std=c++20", "-fPIC", "-shared", "-pthread", "-DFMT_HEADER_ONLY", f"-I{ROOT}/include",
            f"-I{ROOT}/src", f"-I{ROOT}/python/src", PROBE / "probe.cc",
            *(ROOT / source for source in SOURCES), layout, "-o", library)  # fmt: skip
        built[version] = python, library
        return built[version]

    return build


@pytest.mark.parametrize("version", VERSIONS)
def test_stacks_from_memory_are_those_that_python_tells(version: str, probe: Probes) -> None:
    python, library = probe(version)
    assert run(python, PROBE / "probe.py", library).startswith("same ")


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["lock", "fifo", "gil"])
@pytest.mark.parametrize("version", VERSIONS)
def test_the_line_of_a_real_hang(version: str, kind: str, probe: Probes, tmp_path: Path) -> None:
    python, library = probe(version)
    script = PROBE / "hang.py"
    lines = script.read_text().splitlines()
    number = {word: next(n for n, line in enumerate(lines, 1) if word in line)
              for word in (f"{kind} hangs here", "return [one()", "Größe().inside")}  # fmt: skip
    wanted = [(kind, number[f"{kind} hangs here"]), ("inside", number["return [one()"]),
              ("<module>", number["Größe().inside"])]  # fmt: skip
    words = [python, str(script), str(library), kind, str(tmp_path / "fifo")]
    job = subprocess.Popen(words, stdout=subprocess.PIPE, encoding="utf-8")
    try:
        looks = []
        for _ in range(300):  # ten a second: a busy machine may take its time until it hangs
            looks.append(_look(job))
            if len(looks) >= 3 and all(_stack(look) == wanted for look in looks[-3:]):
                break
        assert [_stack(look) for look in looks[-3:]] == [wanted] * 3, looks[-1]
        assert job.poll() is None
        # Who holds Python's lock: the hang itself, or nobody.
        assert [line.split()[3] for line in looks[-1] if line.startswith("thread ")] == [
            "gil" if kind == "gil" else "-"
        ]
    finally:
        job.kill()
        job.communicate()


def _look(job: subprocess.Popen[str]) -> list[str]:
    """Returns the lines of one look."""
    assert job.stdout is not None
    lines: list[str] = []
    for line in job.stdout:
        if line == "end\n":
            return lines
        lines.append(line.rstrip("\n"))
    raise AssertionError(f"the process has ended: {lines}")


def _stack(look: list[str]) -> list[tuple[str, int]]:
    """Returns functions and lines of the script, innermost first; a comprehension is part of its function."""
    frames = [line.split("\t") for line in look if "\t" in line]
    own = [(name.rpartition(".")[2], int(line)) for name, file, line in frames if file.endswith("hang.py")]
    return [frame for frame in own if frame[0] != "<listcomp>"]
