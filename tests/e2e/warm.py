"""Runs scripts under `luff run` in forks of one process that has imported torch, which takes most of a short job.

For tests of findings about a training. What happens to processes is tested with real ones: a script's process is here
no child of `luff run`, which runs this file as a client that waits for it:

    luff run ... -- python warm.py SOCKET SCRIPT [ARGUMENT ...]
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

_MOST = 1 << 20  # bytes of a request
_START_S = 120


class Warm:
    """The process that has imported torch; it ends when this one does or closes it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="luff-warm-")
        self.address = str(Path(self._folder.name) / "socket")
        environment = {key: value for key, value in os.environ.items() if not key.startswith("LUFF_")}
        self._process = subprocess.Popen(
            [sys.executable, __file__, "serve", self.address],
            env=environment | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], _START_S)
        assert ready and self._process.stdout.readline() == b"ready\n", "torch could not be imported"

    def command(self, script: Path, *arguments: str) -> list[str]:
        """Returns the command that runs a script in a fork."""
        return [sys.executable, __file__, self.address, str(script), *arguments]

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate(timeout=_START_S)  # the end of its input is the end
        self._folder.cleanup()


def _ask(address: str, arguments: list[str]) -> int:
    """Sends what makes a process: its directory, its arguments, its environment and its output."""
    fields = [os.getcwd(), str(len(arguments)), *arguments, *(f"{k}={v}" for k, v in os.environ.items())]
    request = "\0".join(fields).encode(errors="surrogateescape")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST)
        connection.connect(address)
        socket.send_fds(connection, [request], [1, 2])
        code = int(connection.recv(16))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _become(request: bytes, files: list[int]) -> str:
    """Makes this process what a new one would be; returns its script."""
    for number, file in enumerate(files, start=1):
        os.dup2(file, number)
        os.close(file)
    directory, count, *rest = request.decode(errors="surrogateescape").split("\0")
    os.chdir(directory)
    sys.argv = rest[: int(count)]
    os.environ.clear()
    os.environ.update(entry.split("=", 1) for entry in rest[int(count) :])
    sys.path[:0] = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    sys.modules.pop("sitecustomize", None)
    import sitecustomize  # noqa: F401  (attaches Luff)

    sys.path[0:0] = [os.path.dirname(sys.argv[0])]
    return sys.argv[0]


def _serve(address: str) -> str:
    """Forks for each request until its input ends. Returns in the fork only, with the script to run."""
    for name in ("luff.torch", "torch._dynamo"):  # the first optimizer imports the second
        importlib.import_module(name)

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    running: dict[int, tuple[int, socket.socket]] = {}  # by descriptor: a process and who waits for it
    while True:
        gone = {connection.fileno(): pid for pid, connection in running.values()}
        ready, _, _ = select.select([0, listener, *running, *gone], [], [])
        if 0 in ready:
            for pid, _ in running.values():
                os.kill(pid, signal.SIGKILL)
            sys.exit(0)
        for descriptor in ready:
            if descriptor in running:
                pid, connection = running.pop(descriptor)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                os.close(descriptor)
                if connection.fileno() in gone:
                    del gone[connection.fileno()]
                try:
                    connection.send(str(code).encode())
                except OSError:
                    pass  # nobody waits for it any more
                connection.close()
            elif descriptor in gone:
                os.kill(gone[descriptor], signal.SIGKILL)  # it is waited for above
        if listener in ready:
            connection, _ = listener.accept()
            request, files, _, _ = socket.recv_fds(connection, _MOST, 2)
            pid = os.fork()
            if pid == 0:
                for descriptor, (_, other) in running.items():
                    os.close(descriptor)
                    other.close()
                connection.close()
                listener.close()
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                return _become(request, files)
            for file in files:
                os.close(file)
            running[os.pidfd_open(pid)] = (pid, connection)


if __name__ == "__main__":
    if sys.argv[1] != "serve":
        sys.exit(_ask(sys.argv[1], sys.argv[2:]))
    import runpy

    runpy.run_path(_serve(sys.argv[2]), run_name="__main__")
