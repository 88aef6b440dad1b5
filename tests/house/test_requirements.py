"""requirements/: everything that pip installs has a version and a hash, and pip must use them."""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path

import pytest
import tomllib

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from devlib import pin, setup, term  # noqa: E402

FILES = [file for file in sorted(setup.REQUIREMENTS.glob("*.txt")) if file != setup.TORCH]
SOURCES = sorted(setup.REQUIREMENTS.glob("*.in"))


def pins(file: Path) -> list[str]:
    """Returns lines without comments, options, extras and anything after the version; names as an index writes them."""
    lines = [line.split("#")[0].split() for line in file.read_text().splitlines()]
    named = [line[0] for line in lines if line and not line[0].startswith("-")]
    return [re.sub(r"\[.*?\]", "", name).lower().replace("_", "-") for name in named]


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_every_requirement_has_a_version_and_a_hash(file: Path) -> None:
    text = re.sub(r"^\s*#.*\n", "", file.read_text(), flags=re.MULTILINE).replace("\\\n", "")
    exact = r"[a-z0-9.-]+==[\w.]+( ; python_full_version (<|>=) '3\.11')?"
    for line in text.splitlines():
        assert re.fullmatch(rf"{exact}( +--hash=sha256:[0-9a-f]{{64}})+", line.rstrip()), line[:120]


def test_torch_stands_alone() -> None:
    assert pins(setup.TORCH) == ["torch==2.13.0"]
    assert not [file.name for file in FILES if any(p.startswith("torch==") for p in pins(file))]


@pytest.mark.parametrize("source", SOURCES, ids=lambda f: f.stem)
def test_what_is_wanted_is_what_is_listed(source: Path) -> None:
    assert set(pins(source)) <= set(pins(source.with_suffix(".txt"))), "run ./dev pin"


def test_every_list_is_written_from_something() -> None:
    assert {file.stem for file in FILES} == {file.stem for file in SOURCES} | {setup.TORCH_CUDA.stem}
    assert set(setup.ENVIRONMENTS) <= {file.stem for file in SOURCES}


def test_what_builds_the_wheel_is_what_it_says_and_what_builds_it_here() -> None:
    says = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert pins(setup.REQUIREMENTS / "build.in") == says
    assert set(says) <= set(pins(setup.REQUIREMENTS / "dev.txt"))


def test_environments_agree_with_the_one_that_they_see() -> None:
    """A package of .venv is not listed again, unless another version of it is needed or it must be found first."""
    dev = set(pins(setup.REQUIREMENTS / "dev.txt"))
    for source in SOURCES:
        if source.stem not in pin.ALONE:
            assert set(pins(source.with_suffix(".txt"))) & dev <= set(pins(source)), source.stem


@pytest.mark.parametrize("folder", ["web", "requirements/azurite"])
def test_every_package_of_npm_has_a_version_and_a_hash(folder: str) -> None:
    packages = json.loads((ROOT / folder / "package-lock.json").read_text())["packages"]
    wanted = json.loads((ROOT / folder / "package.json").read_text())
    for kind in ("dependencies", "devDependencies"):
        for name, version in wanted.get(kind, {}).items():
            assert packages[f"node_modules/{name}"]["version"] == version
    for name, package in packages.items():
        assert not name or (package["version"] and package["integrity"].startswith("sha512-")), name
        assert "resolved" not in package, name


def test_a_file_with_another_hash_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with zipfile.ZipFile(tmp_path / "luff_changed-1-py3-none-any.whl", "w") as wheel:
        info = "luff_changed-1.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: luff-changed\nVersion: 1\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setattr(term, "LOGS", setup.ROOT / "build" / "logs" / "test")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "site"))  # where it would be installed
    wanted = tmp_path / "wanted.txt"
    for text, reason in [
        (f"luff-changed==1 --hash=sha256:{'0' * 64}\n", "DO NOT MATCH THE HASHES"),
        ("luff-changed==1\n", "Hashes are required"),
    ]:
        wanted.write_text(text)
        with pytest.raises(term.Failed):
            setup.install(sys.executable, wanted, "wanted")
        assert reason in capsys.readouterr().out
