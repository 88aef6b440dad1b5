"""Python code that the command starts imports nothing from an attacker's folder, PYTHONPATH or run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import luff.testing
import numpy as np
import pytest

from .conftest import executable

MODULES = (
    "numpy", "json", "os", "io", "re", "argparse", "runpy", "sitecustomize", "usercustomize", "matplotlib",
    "pyarrow", "torch", "ml_dtypes", "smdebug", "helpers", "luff/__init__", "luff/_core", "luff/_verbs/__init__",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An attacker's folder, which is also a run. Each module of it that is executed writes its name to a file beside
    it.
    """
    folder = tmp_path / "theirs"
    luff.testing.trial({"loss": [3.0, 2.0, 1.0], "fc.weight": [np.ones(4, np.float32)] * 3}, path=folder)
    leave = "import sys\nopen({mark!r}, 'a').write({name!r} + '\\n')\n"
    mark = str(tmp_path / "mark")
    for module in MODULES:
        file = folder / f"{module}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(leave.format(mark=mark, name=module))
    (folder / "evil.pth").write_text(f"import sys; open({mark!r}, 'a').write('pth')\n")
    (folder / "matplotlibrc").write_text("backend: module://helpers\nfont.size: no number\n")
    for place in (folder / "lib" / "python3.11" / "site-packages", folder / "site-packages"):
        place.mkdir(parents=True)
        (place / "evil.pth").write_text(f"import sys; open({mark!r}, 'a').write('pth')\n")
    for program in ("python", "python3"):
        (folder / program).write_text(f"#!/bin/sh\necho {program} >> '{mark}'\n")
        (folder / program).chmod(0o755)
    return folder


def call(folder: Path, *words: object, **environment: str) -> tuple[int, str]:
    """Returns exit code and output, in an environment that is as careless as possible."""
    env = {
        **os.environ, "PATH": f".:{os.environ['PATH']}:", "PYTHONPATH": ".", "PYTHONUSERBASE": ".", "HOME": str(folder),
        "PYTHONSTARTUP": "helpers.py", "PYTHONHOME": ".", "LUFF_PYTHON": sys.executable,
    }  # fmt: skip
    done = subprocess.run(
        [executable(), *map(str, words)], cwd=folder, env=env | environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert not (folder.parent / "mark").exists(), (folder.parent / "mark").read_text() + done.stdout
    return done.returncode, done.stdout


def test_the_folder_is_harmful(folder: Path) -> None:
    env = {**os.environ, "PYTHONPATH": "."}
    subprocess.run(
        [sys.executable, "-c", "import numpy"], cwd=folder, env=env, check=False, capture_output=True
    )
    assert "sitecustomize" in (folder.parent / "mark").read_text()


def test_pictures_and_tables(folder: Path) -> None:
    code, told = call(folder, "plot", ".", "--out", "../x.png")
    assert (code, told.splitlines()[-1]) == (0, "../x.png") or "needs matplotlib" in told
    code, told = call(folder, "export", ".", "../tables", "--to", "parquet")
    assert code == 0 or "needs pyarrow" in told, told


def test_rules_and_jobs(folder: Path) -> None:
    rules = folder.parent / "mine.py"
    rules.write_text(
        textwrap.dedent(
            """
            import json, sys
            import numpy, luff

            class Mine(luff.Rule):
                def on_step(self, view):
                    wrong = [p for p in sys.path if not p or "theirs" in p]
                    if wrong or not sys.flags.isolated:
                        return luff.Finding(f"imports from {wrong}")

            class Helped(luff.Rule):
                def on_step(self, view):
                    import helpers
            """
        )
    )
    code, told = call(folder, "check", ".", "--rules", f"{rules}:Mine")
    assert code == 0, told
    code, told = call(folder, "check", ".", "--rules", f"{rules}:Helped")
    assert "No module named 'helpers'" in told
    assert "no rule 'NoSuchRule'" in call(folder, "check", ".", "--rules", "NoSuchRule")[1]
    assert call(folder, "rules", "explain", f"{rules}:Mine")[0] == 0
    (folder.parent / "job.json").write_text(json.dumps({"CollectionConfigurations": []}))
    _, told = call(folder, "run", "--run", "../run", "--config", "../job.json", "--", "/bin/true")
    assert "needs Python" not in told
    assert "No module" not in told


def test_an_interpreter_is_never_of_the_working_directory(folder: Path) -> None:
    for given in ("python", "python3"):
        call(folder, "plot", ".", "--out", "../x.png", LUFF_PYTHON=given)
    code, told = call(folder, "plot", ".", "--out", "../x.png", LUFF_PYTHON="python", PATH=f".::{folder}/..")
    assert code == 2
    assert "absolute folder of PATH" in told


TRAINING = """
    import json, math, os, sys
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.environ["LUFF_BOOTSTRAP"])))
    import numpy as np
    from luff import _core
    from luff._codes import DType, EndReason, EventKind, Mode, Role

    told = json.loads(os.environ["LUFF_SESSION"])
    session = _core.Session.open(told["run"], join=True, config_json=json.dumps(told["config"]))
    name = session.define_tensor("gradient/fc.weight", int(Role.GRADIENT))
    layout = session.define_layout(int(DType.FLOAT32), [4])
    for step in range(60):
        session.begin_step(int(Mode.TRAIN), step)
        array = np.full(4, math.nan if step > 10 else 1.0, np.float32)
        session.capture_one(name, layout, array.ctypes.data)
        session.event(int(EventKind.BACKWARD))
        session.end_step(int(Mode.TRAIN), step, step, step)
    session.close(int(EndReason.COMPLETED), 10.0)
"""


def test_a_job_with_messages_and_outputs(folder: Path) -> None:
    """The training is the user's own and isolated here, so that only what Luff starts could leave a mark."""
    seen: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    (folder.parent / "train.py").write_text(textwrap.dedent(TRAINING))
    package = str(Path(luff.__file__).parent / "_bootstrap")
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        config = folder.parent / "luff.toml"
        config.write_text(
            f'[[action]]\nname = "tell"\nkind = "webhook"\nurl = "http://127.0.0.1:{server.server_port}/"\n'
        )
        code, told = call(
            folder, "run", "--run", "../run", "--config", config, "--tensorboard", "../tb", "--report", "../r.html",
            "--", sys.executable, "-I", "../train.py", LUFF_BOOTSTRAP=package, LUFF_PYTHON="",
        )  # fmt: skip
        server.shutdown()
    assert code == 0, told
    assert "NonFinite" in told
    assert len(seen) == 1, told
    assert (folder.parent / "tb" / "luff-export.json").exists()
