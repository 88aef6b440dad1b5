"""`luff serve` of the environment that runs pytest, over runs that are made here."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import luff.numpy
import numpy as np
import pytest

from tests.browser import Browser

LIMIT_S = 60
#: Keeps in `problems` what a page must not do.
WATCH = """
window.problems = [];
addEventListener("securitypolicyviolation", (e) => problems.push(e.violatedDirective + " " + e.blockedURI));
addEventListener("error", (e) => problems.push(e.message));
addEventListener("unhandledrejection", (e) => problems.push(String(e.reason)));
window.alert = () => problems.push("alert");
"""


AXE = Path(__file__).resolve().parents[2] / "web/node_modules/axe-core/axe.min.js"


def barriers(browser: Browser) -> Any:
    """Returns what axe finds serious or critical on the page as it is now."""
    if not browser.evaluate("typeof window.axe === 'object'"):
        browser.evaluate(AXE.read_text() + ";0")
    return browser.evaluate(
        "axe.run(document).then(r => r.violations.filter(v => ['serious', 'critical'].includes(v.impact))"
        ".map(v => v.id + ': ' + v.nodes.map(n => n.html).join(' ')))"
    )


def executable() -> str:
    return os.environ.get("LUFF_EXECUTABLE") or str(Path(sys.executable).parent / "luff")


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def numbers(payload: bytes) -> dict[str, np.ndarray]:
    """Returns the arrays of a safetensors file."""
    length = int.from_bytes(payload[:8], "little")
    header = json.loads(payload[8 : 8 + length])
    dtypes = {"I64": "<i8", "F64": "<f8", "F32": "<f4", "U8": "u1"}
    arrays = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            arrays[name] = np.frombuffer(payload[begin:end], dtypes[entry["dtype"]]).reshape(entry["shape"])
    return arrays


def texts(payload: bytes) -> dict[str, str]:
    """Returns what a safetensors file tells beside its arrays."""
    length = int.from_bytes(payload[:8], "little")
    return dict(json.loads(payload[8 : 8 + length]).get("__metadata__", {}))


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=LIMIT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(LIMIT_S)
        self.sock.connect(self._path)


class Server:
    """A server that listens; its link, token and port (0 for a Unix socket)."""

    def __init__(self, home: Path, *roots: Path, words: tuple[str, ...] = ()) -> None:
        self._process = subprocess.Popen(
            [executable(), "serve", *words, *map(str, roots)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"LUFF_HOME": str(home)},
        )
        assert self._process.stdout is not None
        self.link = self._process.stdout.readline().strip()
        assert self.link, self._process.stderr.read() if self._process.stderr else ""
        self.base, _, self.token = self.link.replace("/#token=", " token=").partition(" token=")
        self.socket = next((word[5:] for word in words if word.startswith("unix:")), "")
        at = [word for word in words if ":" in word and word.rsplit(":", 1)[1].isdigit()]
        self.port = 0 if self.socket else int((at[0] if at else self.base.split("/")[2]).rsplit(":", 1)[1])
        self.pid = self._process.pid

    def ask(
        self,
        method: str,
        path: str,
        headers: dict[str, str] | None = None,
        body: str | None = None,
        *,
        token: bool | str = True,
    ) -> Answer:
        """Sends one request: with the token of the link, with another, or without one."""
        connection = (
            _UnixConnection(self.socket)
            if self.socket
            else http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        )
        try:
            shown = token if isinstance(token, str) else self.token if token else ""
            own = {"Authorization": f"Bearer {shown}"} if shown else {}
            connection.request(method, path, body, own | (headers or {}))
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        answer = self.ask("GET", path)
        assert answer.status == 200, answer.body
        return answer.json()

    def require_page(self) -> None:
        if self.ask("GET", "/", {"Accept-Encoding": "gzip"}).status == 404:
            pytest.skip("built without the page: no Node was there")

    def end(self) -> tuple[int, str]:
        """Ends it as a terminal would; returns exit code and what it said."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        _, said = self._process.communicate(timeout=LIMIT_S)
        return self._process.returncode, said


def add_token(home: Path, name: str, *words: str) -> str:
    """Makes a named token with `luff serve token add`; returns it."""
    done = subprocess.run(
        [executable(), "serve", "token", "add", name, *words],
        capture_output=True, text=True, timeout=LIMIT_S, check=False, env=os.environ | {"LUFF_HOME": str(home)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def record(path: Path, steps: int = 60, layers: int = 3, *, close: bool = True) -> Any:
    """Makes a run whose names are as hostile as names can be; returns its hook."""
    random = np.random.default_rng(0)
    weights = {f"block.{i}.weight": random.normal(size=(4, 4)) for i in range(layers)}
    weights["<img src=x onerror=alert(1)>.\u202eweight"] = np.ones(3)
    hook = luff.numpy.attach(weights, run=path)
    for i in range(steps):
        with hook.step() as step:
            for array in weights.values():
                array *= 0.99
            if i == 30:
                weights["block.1.weight"][0, 0] = np.nan
            step.loss(1.0 / (i + 1))
    if close:
        hook.close()
    return hook


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with three runs."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("one", "two", "inner/three"):
        record(folder / name)
    return folder


@pytest.fixture(scope="module")
def server(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("home"), runs)
    yield started
    started.end()
