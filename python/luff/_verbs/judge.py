"""``judge [--state DIR] [--shard I/N] [--earlier] [--stops] [--drain] [--rule TEXT]… URL``: serves ``luff watch URL``.

Not for people.

Descriptor 3 is a socket: lines of JSON both ways (docs/spec/bucket-format.md, section 14).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any

from luff.remote._client import cache_root
from luff.remote._errors import BucketError, NotUntilMended, Unreachable
from luff.remote._judge import Judge
from luff.remote._store import check_installed, normal_url

if TYPE_CHECKING:
    from collections.abc import Sequence

_SOCKET = 3
_MOST_LINE = 8 << 20
_LEAVE_S = 5.0
_STACK = 512 << 10  # a thread for each run that is read


def _state_of(url: str, shard: str) -> str:
    name = hashlib.sha256(f"{url}\n{shard}".encode()).hexdigest()[:16]
    return os.path.join(cache_root(), f"watch-{name}")


def _luff() -> str:
    """The command that judges."""
    try:
        return os.readlink(f"/proc/{os.getppid()}/exe")
    except OSError:
        return "luff"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="luff watch")
    parser.add_argument("url", metavar="URL")
    parser.add_argument("--state", default="")
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--earlier", action="store_true")
    parser.add_argument("--stops", action="store_true")
    parser.add_argument("--drain", action="store_true")
    parser.add_argument("--rule", action="append", default=[], help="one that judges, with its parameters")
    arguments = parser.parse_args(words)
    # A signal to the whole group, as service managers send it, is the parent's: we end when it lets us.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    connection = socket.socket(fileno=_SOCKET)
    connection.set_inheritable(False)
    sending = threading.Lock()

    def tell(text: dict[str, Any]) -> None:
        with sending:
            try:
                connection.sendall(json.dumps(text).encode() + b"\n")
            except OSError:
                os._exit(1)  # nobody listens any more

    threading.stack_size(_STACK)
    try:
        url = normal_url(arguments.url)
        check_installed(url)
        number, _, of = arguments.shard.partition("/")
        state = os.path.abspath(arguments.state or _state_of(url, arguments.shard))
        shard = (int(number), int(of))
        rules = hashlib.sha256("\n".join(arguments.rule).encode(errors="replace")).hexdigest()[:16]
        judge = Judge(
            url, state, shard, arguments.earlier, tell,
            stops=arguments.stops, drain=arguments.drain, luff=_luff(), rules=rules,
        )  # fmt: skip
        judge.start()
    except BucketError as error:
        away = isinstance(error, Unreachable) and not isinstance(error, NotUntilMended)
        tell({"error": str(error), "away": away})
        return 1
    tell({"base": judge.base, "state": judge.state})
    threading.Thread(target=judge.follow, daemon=True).start()
    with connection.makefile("rb") as stream:
        while line := stream.readline(_MOST_LINE):
            try:
                asked = json.loads(line)
            except ValueError:
                continue
            if not isinstance(asked, dict):
                continue
            if asked.get("do") == "leave":
                judge.leave(_LEAVE_S)
                return 0
            judge.hear(asked)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # obstore's threads do not survive the end of the interpreter
