"""Ceph's object gateway on loopback: a monitor, a store in memory and the gateway, in one folder, without systemd."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from contextlib import contextmanager
from pathlib import Path

TOOLS = ("ceph-mon", "ceph-osd", "radosgw", "radosgw-admin", "ceph", "ceph-authtool", "monmaptool")
_LIMIT_S = 180
_CONFIGURATION = """
[global]
fsid = {fsid}
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
mon initial members = a
mon host = [v2:127.0.0.1:{ports[0]},v1:127.0.0.1:{ports[1]}]
ms bind ipv6 = false
public addr = 127.0.0.1
cluster addr = 127.0.0.1
osd objectstore = memstore
memstore device bytes = 1073741824
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd pool default pgp num = 4
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
mon data = {folder}/mon
osd data = {folder}/osd
run dir = {folder}
log file = {folder}/$name.log
pid file = {folder}/$name.pid
admin socket = {short}/$name.asok
keyring = {folder}/$name.keyring
rgw frontends = beast endpoint=127.0.0.1:{ports[2]}
"""


def missing() -> str:
    """The programs that are not installed."""
    return " ".join(tool for tool in TOOLS if shutil.which(tool) is None)


def _ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


class _Ceph:
    def __init__(self, folder: Path, short: Path) -> None:
        self.folder, self.ports = folder, _ports(3)
        self.fsid = str(uuid.uuid4())
        self.file = folder / "ceph.conf"
        self.file.write_text(
            _CONFIGURATION.format(fsid=self.fsid, ports=self.ports, folder=folder, short=short)
        )
        self.daemons: list[subprocess.Popen[bytes]] = []
        # `ceph` is a program of the system's Python.
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL"))}

    def call(self, *words: object, given: str = "") -> str:
        done = subprocess.run(
            [*map(str, words)],
            input=given, capture_output=True, text=True, timeout=_LIMIT_S, check=False, env=self.environment,
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"{words[:3]} failed: {done.stderr[-2000:]}")
        return done.stdout

    def ceph(self, *words: str, given: str = "") -> str:
        where = ["-c", self.file, "-k", self.folder / "client.admin.keyring", "--connect-timeout", "60"]
        return self.call("ceph", *where, *words, given=given)

    def start(self, *words: object) -> None:
        command = [*map(str, words), "-f", "-c", str(self.file)]
        with (self.folder / "said.log").open("ab") as log:
            self.daemons.append(subprocess.Popen(command, stdout=log, stderr=log, env=self.environment))

    def build(self, access: str, secret: str) -> str:
        folder = self.folder
        mon, admin = folder / "mon.keyring", folder / "client.admin.keyring"
        every = ["--cap", "mon", "allow *", "--cap", "osd", "allow *", "--cap", "mgr", "allow *"]
        self.call(
            "ceph-authtool", "--create-keyring", mon, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *"
        )
        self.call("ceph-authtool", "--create-keyring", admin, "--gen-key", "-n", "client.admin", *every)
        self.call("ceph-authtool", mon, "--import-keyring", admin)
        where = f"[v2:127.0.0.1:{self.ports[0]},v1:127.0.0.1:{self.ports[1]}]"
        monmap = folder / "monmap"
        self.call("monmaptool", "--create", "--addv", "a", where, "--fsid", self.fsid, monmap)
        words = ["-c", self.file, "--monmap", monmap, "--keyring", mon]
        self.call("ceph-mon", "--mkfs", "-i", "a", *words)
        shutil.copy(mon, folder / "mon" / "keyring")
        self.start("ceph-mon", "-i", "a")
        key, osd = self.call("ceph-authtool", "--gen-print-key").strip(), str(uuid.uuid4())
        self.ceph("osd", "new", osd, "-i", "-", given=json.dumps({"cephx_secret": key}))
        (folder / "osd").mkdir()
        keyring = folder / "osd" / "keyring"
        self.call("ceph-authtool", "--create-keyring", keyring, "--name", "osd.0", "--add-key", key)
        shutil.copy(keyring, folder / "osd.0.keyring")
        self.call("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd, "-c", self.file)
        self.start("ceph-osd", "-i", "0")
        rights = ["mon", "allow rw", "osd", "allow rwx"]
        self.ceph(
            "auth", "get-or-create", "client.rgw.a", *rights, "-o", str(folder / "client.rgw.a.keyring")
        )
        self.start("radosgw", "-n", "client.rgw.a")
        endpoint = f"http://127.0.0.1:{self.ports[2]}"
        end = time.monotonic() + _LIMIT_S
        while not _answers(endpoint):
            if time.monotonic() > end:
                raise RuntimeError(
                    f"the gateway does not answer: {(folder / 'said.log').read_text()[-3000:]}"
                )
            time.sleep(0.2)
        self.call(
            "radosgw-admin", "-c", self.file, "-k", admin, "user", "create", "--uid=tester",
            "--display-name=tester", f"--access-key={access}", f"--secret-key={secret}",
        )  # fmt: skip
        return endpoint


def _answers(endpoint: str) -> bool:
    try:
        urllib.request.urlopen(endpoint, timeout=10).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


@contextmanager
def serve_rgw(folder: Path, access: str, secret: str):
    """A gateway for a block, as its address. What is in it lies in memory."""
    short = Path(tempfile.mkdtemp(prefix="luff-ceph-", dir="/tmp"))  # a socket's path is short
    ceph = _Ceph(folder, short)
    try:
        yield ceph.build(access, secret)
    finally:
        for daemon in reversed(ceph.daemons):
            daemon.kill()
            daemon.wait()
        shutil.rmtree(short, ignore_errors=True)
