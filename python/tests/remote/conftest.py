"""Buckets for tests: a folder, and servers on loopback: moto for S3 (one request after the other), Ceph's gateway, a
double of ours for Google's storage, Azurite for Azure's.

Tests that take `base` or `store` run on each of them; on the last three with `--thorough` only.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from luff.remote._recipients import new_key_file
from luff.remote._store import open_store

sys.path.insert(0, str(Path(__file__).parent))  # bucket_copies, and the servers

import azure_server
import gcs_server
import rgw_server
from s3_server import serve_s3

ACCESS = {
    "AWS_ACCESS_KEY_ID": "tester",
    "AWS_SECRET_ACCESS_KEY": "canary-secret-5b1f",
    "AWS_REGION": "us-east-1",
}


@pytest.fixture(scope="session")
def s3_endpoint():
    """The address of an S3 server."""
    pytest.importorskip("moto")
    pytest.importorskip("obstore")
    with serve_s3() as endpoint:
        yield endpoint


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Copies of runs go into a folder of the test; its fetchers end soon after it."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("LUFF_CACHE", str(cache))
    monkeypatch.setenv("LUFF_FETCH_IDLE_S", "0.5")
    monkeypatch.setenv("LUFF_PYTHON", os.environ.get("LUFF_PYTHON", sys.executable))  # it has obstore
    yield cache
    end = time.monotonic() + 30
    while list(cache.glob("*/socket")) and time.monotonic() < end:  # nobody is left behind
        time.sleep(0.05)
    assert not list(cache.glob("*/socket"))


def fresh_s3(endpoint, monkeypatch):
    import boto3

    for name, value in {**ACCESS, "AWS_ENDPOINT_URL": endpoint}.items():
        monkeypatch.setenv(name, value)
    bucket = f"luff-{secrets.token_hex(4)}"
    boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(Bucket=bucket)
    return f"s3://{bucket}/team"


@pytest.fixture
def s3(s3_endpoint, monkeypatch):
    """The URL of a fresh bucket."""
    return fresh_s3(s3_endpoint, monkeypatch)


@pytest.fixture(scope="session")
def rgw_endpoint(tmp_path_factory):
    """The address of Ceph's gateway."""
    pytest.importorskip("obstore")
    if missing := rgw_server.missing():
        pytest.skip(f"not installed: {missing} (Debian: ceph-mon ceph-osd radosgw ceph-common)")
    with rgw_server.serve_rgw(tmp_path_factory.mktemp("ceph"), *list(ACCESS.values())[:2]) as endpoint:
        yield endpoint


@pytest.fixture
def rgw(rgw_endpoint, monkeypatch):
    """The URL of a fresh bucket of Ceph's gateway, which checks signatures."""
    return fresh_s3(rgw_endpoint, monkeypatch)


@pytest.fixture(scope="session")
def gcs_endpoint():
    """The address of a server of Google's storage."""
    pytest.importorskip("obstore")
    with gcs_server.serve_gcs() as endpoint:
        yield endpoint


@pytest.fixture
def gs(gcs_endpoint, monkeypatch):
    """The URL of a fresh bucket."""
    monkeypatch.setenv("GOOGLE_BASE_URL", gcs_endpoint)
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", gcs_server.OWNER)
    bucket = f"luff-{secrets.token_hex(4)}"
    headers = {"Authorization": f"Bearer {gcs_server.OWNER}"}
    request = urllib.request.Request(f"{gcs_endpoint}/{bucket}", method="PUT", headers=headers)
    with urllib.request.urlopen(request, timeout=60):
        return f"gs://{bucket}/team"


@pytest.fixture(scope="session")
def azure_endpoint():
    """The address of Azurite."""
    pytest.importorskip("obstore")
    if not azure_server.COMMAND.exists():
        pytest.skip("Azurite is not installed: it needs Node and its packages (./dev test installs them)")
    with azure_server.serve_azure() as endpoint:
        yield endpoint


@pytest.fixture
def az(azure_endpoint, monkeypatch):
    """The URL of a fresh container."""
    for name, value in {
        "AZURE_STORAGE_USE_EMULATOR": "true",
        "AZURITE_BLOB_STORAGE_URL": azure_endpoint,
        "AZURE_STORAGE_ACCOUNT_NAME": azure_server.ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": azure_server.KEY,
    }.items():
        monkeypatch.setenv(name, value)
    container = f"luff-{secrets.token_hex(4)}"
    azure_server.make_container(azure_endpoint, container)
    return f"az://{container}/team"


@pytest.fixture(
    params=[
        "file",
        "s3",
        *(pytest.param(name, marks=pytest.mark.thorough) for name in ("rgw", "gs", "az")),
    ]
)
def base(request, tmp_path):
    """The URL of a bucket, of each kind."""
    return f"file://{tmp_path}/bucket" if request.param == "file" else request.getfixturevalue(request.param)


@pytest.fixture
def store(base):
    return open_store(base)


class Run:
    """A directory that looks like a run to an uploader. The streams hold any bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_id = secrets.token_hex(16)
        path.mkdir()
        (path / "run.json").write_text(json.dumps({"format": "luff-run", "run_id": self.run_id}))

    def __fspath__(self) -> str:
        return str(self.path)

    def append(self, name: str, data: bytes) -> None:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab") as out:
            out.write(data)

    def files(self) -> dict[str, bytes]:
        """What is uploaded: all but what an upload notes for its host."""
        found = {str(f.relative_to(self.path)): f.read_bytes() for f in self.path.rglob("*") if f.is_file()}
        return {name: data for name, data in found.items() if not name.startswith("sync/")}


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "run")


@pytest.fixture(scope="session")
def luff():
    """Runs the luff command; returns the finished process."""
    given = os.environ.get("LUFF_EXECUTABLE") or shutil.which("luff", path=str(Path(sys.executable).parent))
    given = given or shutil.which("luff")
    if given is None:
        pytest.skip("no luff on PATH")

    def call(*words, expect=0, **options):
        done = subprocess.run(
            [given, *map(str, words)], capture_output=True, text=True, timeout=180, check=False, **options
        )
        assert expect is None or done.returncode == expect, done.stdout + done.stderr
        return done

    call.executable = given
    return call


TRAIN = """
import sys, time
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
steps, pause, rate = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=rate)
for _ in range(steps):
    x = torch.randn(32, 8)
    loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(pause)
    print(loss.item().hex(), flush=True)
"""


@pytest.fixture(scope="session")
def with_findings(luff, tmp_path_factory):
    """A run of a training whose rate is far too high. Not to be changed."""
    folder = tmp_path_factory.mktemp("with_findings")
    (folder / "train.py").write_text(TRAIN)
    luff("run", "--run", folder / "run", "--", sys.executable, folder / "train.py", 60, 0, 10.0)
    return folder / "run"


@pytest.fixture
def trained(luff, tmp_path):
    """Trains with a rate that is far too high, under `luff run` with these options. Returns the run and the process."""

    def train(*options, steps=60, pause=0.0, rate=10.0, name="trained"):
        script = tmp_path / "train.py"
        script.write_text(TRAIN)
        place = tmp_path / name
        done = luff("run", "--run", place, *options, "--", sys.executable, script, steps, pause, rate)
        return place, done

    return train


class Proxy:
    """Counts requests to a server, and may keep answers to itself."""

    def __init__(self, endpoint: str) -> None:
        import http.client
        from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

        proxy = self
        self.requests: list[tuple[str, str, int, int]] = []  # method, path, bytes in, bytes out
        self.saw = None  # called with method, path and the body of a request
        self.lose = None  # called with method and path: True if the answer is to be lost
        self.refuse = None  # called with the headers of a request: True if its condition is not to hold
        self.instead = None  # called with method and path: a status and a code of S3 for an answer, or None
        self.silent = (
            None  # called with method and path: True if the request stays here and nothing is answered
        )
        self.speak = threading.Event()  # requests that stayed here go on to the server, which answers nobody
        host = endpoint.split("//", 1)[1]

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if proxy.refuse is not None and proxy.refuse(self.headers):
                    self.send_response(412)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                if proxy.instead is not None and (instead := proxy.instead(self.command, self.path)):
                    status, code = instead
                    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>told</Message></Error>".encode()
                    self.send_response(status)
                    self.send_header("Content-Type", "application/xml")
                    self.send_header("Content-Length", str(len(text)))
                    self.end_headers()
                    if self.command != "HEAD":
                        self.wfile.write(text)
                    return
                silent = proxy.silent is not None and proxy.silent(self.command, self.path)
                if silent:
                    proxy.speak.wait(120)
                upstream = http.client.HTTPConnection(host, timeout=60)
                headers = {k: v for k, v in self.headers.items() if k.lower() != "connection"}
                upstream.request(self.command, self.path, body, headers)
                answer = upstream.getresponse()
                data = answer.read()
                upstream.close()
                proxy.requests.append((self.command, self.path, len(body), len(data)))
                if proxy.saw is not None:
                    proxy.saw(self.command, self.path, body)
                if silent or (proxy.lose is not None and proxy.lose(self.command, self.path)):
                    self.close_connection = True
                    self.connection.close()
                    return
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in (
                        "transfer-encoding",
                        "connection",
                        "content-length",
                        "date",
                        "server",
                    ):
                        self.send_header(name, value)
                self.send_header("Content-Length", answer.getheader("Content-Length") or str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = forward

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.speak.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def proxy(s3, s3_endpoint, monkeypatch):
    """A proxy before the server of `s3`, which everything of the test goes through."""
    between = Proxy(s3_endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL", between.endpoint)
    yield between
    between.close()


@pytest.fixture
def key_file(tmp_path, monkeypatch):
    """A secret key, for which uploads of this test are encrypted. Nobody has it yet."""
    path = tmp_path / "secret.key"
    monkeypatch.setenv("LUFF_BUCKET_ENCRYPT_TO", new_key_file(str(path)))
    return path
