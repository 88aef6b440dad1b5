"""`pip install .` in a clean virtual environment, from nothing but the sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import call

SDIST = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"


@pytest.mark.slow
def test_installs_from_sources_and_gives_command_module_and_types(
    clean_python: Path, clean_env: dict[str, str], root: Path, tmp_path: Path
) -> None:
    call(sys.executable, "-c", SDIST, tmp_path / "sdist", cwd=root)
    (archive,) = (tmp_path / "sdist").glob("luff-*.tar.gz")
    shutil.unpack_archive(archive, tmp_path / "sources", filter="data")
    (copy,) = (tmp_path / "sources").iterdir()
    cache = os.environ.get("CCACHE_DIR") or str(Path.home() / ".cache" / "ccache")
    env = {
        **clean_env,
        "PATH": f"{clean_env['PATH']}:/usr/local/bin:/usr/bin:/bin",
        "CMAKE_CXX_COMPILER_LAUNCHER": "ccache",
        "CCACHE_DIR": cache,
        "CCACHE_BASEDIR": str(copy),
        "CCACHE_NOHASHDIR": "1",
        "SKBUILD_CMAKE_DEFINE": "LUFF_STRICT=ON",
    }
    # The dependencies are downloaded and checked first; the install itself, with its isolated build, finds nothing
    # else.
    files = tmp_path / "files"
    listed = [part for name in ("base", "build") for part in ("-r", root / "requirements" / f"{name}.txt")]
    call(clean_python, "-m", "pip", "download", "-q", "--require-hashes", *listed, "-d", files, env=env)
    offline = {**env, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(files)}
    call(clean_python, "-m", "pip", "install", "-q", copy, env=offline)

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    site = Path(
        call(clean_python, "-c", "import luff; print(luff.__file__)", env=clean_env, cwd=elsewhere).strip()
    ).parent
    assert site.is_relative_to(tmp_path / "env")
    assert (site / "py.typed").exists()
    assert (site / "_core.pyi").exists()
    version = call(
        clean_python, "-c", "import luff; print(luff.__version__)", env=clean_env, cwd=elsewhere
    ).strip()
    assert version in call(clean_python.parent / "luff", "--version", env=clean_env, cwd=elsewhere)
    page = call(
        clean_python.parent / "luff", "rules", "explain", "VanishingGradient", env=clean_env, cwd=elsewhere
    )
    assert "VanishingGradient" in page
    assert len(page.splitlines()) > 10
    listed = call(clean_python, "-m", "pip", "show", "luff", env=clean_env)
    assert f"Version: {version}\n" in listed

    program = elsewhere / "typed.py"
    program.write_text(
        "from __future__ import annotations\n\n"
        "import luff\n"
        "from luff.errors import NotFoundError\n\n\n"
        "def code(error: luff.LuffError) -> str:\n"
        "    return error.code\n\n\n"
        "text: str = code(NotFoundError('x')) + luff.__version__\n"
    )
    checker = [sys.executable, "-m", "mypy", "--strict", "--python-executable", clean_python, program]
    assert "Success" in call(*checker, cwd=elsewhere)
    program.write_text("import luff\n\nnumber: int = luff.__version__\n")
    wrong = subprocess.run(
        [str(c) for c in checker], cwd=elsewhere, capture_output=True, text=True, check=False
    )
    assert "Incompatible types" in wrong.stdout
