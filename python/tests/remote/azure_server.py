"""Azure's storage on loopback: Azurite, which `./dev test` installs (`requirements/azurite`)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import subprocess
import threading
import urllib.request
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path

ACCOUNT = "luffteam"
KEY = base64.b64encode(b"canary-azure-key-of-sixty-four-bytes".ljust(64, b"-")).decode()
COMMAND = Path(__file__).resolve().parents[3] / ".venvs" / "azurite" / "azurite-blob"
_VERSION = "2021-12-02"
_LIMIT_S = 120  # until it listens


@contextmanager
def serve_azure():
    """A server for a block, as its address. What is in it lies in memory."""
    words = ["--blobHost", "127.0.0.1", "--blobPort", "0", "--inMemoryPersistence", "--silent"]
    words += ["--skipApiVersionCheck", "--disableTelemetry"]
    with subprocess.Popen(
        [COMMAND, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}", "PATH": "/usr/bin:/bin"},
    ) as server:
        bound = threading.Timer(_LIMIT_S, server.kill)  # one that says nothing ends the loop so
        bound.start()
        try:
            said = []
            for line in server.stdout:
                said.append(line)
                if found := re.search(r"listen\w* (?:at|on) (http://127\.0\.0\.1:[1-9][0-9]*)", line):
                    bound.cancel()
                    yield found[1]
                    return
            raise RuntimeError(f"Azurite has ended: {''.join(said)[-2000:]}")
        finally:
            bound.cancel()
            server.kill()


def make_container(endpoint: str, name: str) -> None:
    """Makes a container. obstore makes none, so the request is signed here."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _VERSION}
    lines = ["PUT", *[""] * 11, *(f"{k}:{v}" for k, v in sorted(headers.items()))]
    # Azurite has the account in the path, so it stands there twice.
    lines += [f"/{ACCOUNT}/{ACCOUNT}/{name}", "restype:container"]
    mac = hmac.new(base64.b64decode(KEY), "\n".join(lines).encode(), hashlib.sha256)
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(mac.digest()).decode()}"
    url = f"{endpoint}/{ACCOUNT}/{name}?restype=container"
    with urllib.request.urlopen(
        urllib.request.Request(url, method="PUT", headers=headers), timeout=60
    ) as answer:
        assert answer.status == 201
