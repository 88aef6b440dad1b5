"""Importing luff imports no framework, and TensorFlow may be imported first."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import call

FRAMEWORKS = {
    "torch",
    "tensorflow",
    "keras",
    "jax",
    "xgboost",
    "mxnet",
    "lightning",
    "transformers",
    "sklearn",
    "pandas",
    "matplotlib",
}


def test_import_brings_no_framework(tmp_path: Path) -> None:
    text = call(
        sys.executable, "-c", "import luff, sys, json; print(json.dumps(sorted(sys.modules)))", cwd=tmp_path
    )
    loaded = {name.split(".")[0] for name in json.loads(text)}
    assert "luff" in loaded
    assert not loaded & FRAMEWORKS


def test_every_public_name_of_the_package_exists(tmp_path: Path) -> None:
    code = "import luff; [getattr(luff, name) for name in luff.__all__]; print('ok')"
    assert call(sys.executable, "-c", code, cwd=tmp_path) == "ok\n"


@pytest.fixture(scope="module")
def tensorflow(root: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    python = root / ".venvs" / "tensorflow" / "bin" / "python"
    if not python.exists():
        pytest.skip("no .venvs/tensorflow; `./dev setup --with tensorflow` makes it")
    target = tmp_path_factory.mktemp("target")
    call(python, "-m", "pip", "install", "-q", "--no-deps", "--target", target, wheel)
    return python, target


def test_core_works_after_tensorflow(tensorflow: tuple[Path, Path], tmp_path: Path) -> None:
    python, target = tensorflow
    code = (
        f"import sys; sys.path.insert(0, {str(target)!r})\n"
        "import tensorflow as tf\n"
        "import luff\n"
        f"assert luff.__file__.startswith({str(target)!r}), luff.__file__\n"
        "try:\n"
        "    luff._core.raise_status(6, 'torn')\n"
        "except luff.errors.CorruptionError as error:\n"
        "    assert str(error) == 'torn'\n"
        "else:\n"
        "    raise AssertionError('nothing raised')\n"
        "import json, numpy as np\n"
        "from luff._codes import DType, EndReason, Mode, Role\n"
        f"session = luff._core.Session.open({str(tmp_path / 'run')!r}, worker=0)\n"
        "values = np.arange(1000, dtype=np.float32)\n"
        "tensor = session.define_tensor('w', Role.WEIGHT)\n"
        "layout = session.define_layout(DType.FLOAT32, [1000])\n"
        "session.begin_step(Mode.TRAIN, 0)\n"
        "session.capture(np.array([[tensor | layout << 32, values.ctypes.data, 0, 0]], dtype=np.uint64))\n"
        "session.end_step(Mode.TRAIN, 0, 0, 0)\n"
        "assert session.flush(20.0), session.health()\n"
        "health = session.health()\n"
        "session.close(EndReason.COMPLETED)\n"
        "assert not health['first_error'], health\n"
        "assert luff._core.check_config(''), 'the default collections are regular expressions'\n"
        "assert float(tf.reduce_sum(tf.ones([3])).numpy()) == 3.0\n"
        "print('ok')\n"
    )
    done = subprocess.run(
        [str(python), "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.endswith("ok\n"), done.stderr[-4000:]
    assert any(p.stat().st_size >= 4000 for p in (tmp_path / "run" / "w0000").rglob("*") if p.is_file())
