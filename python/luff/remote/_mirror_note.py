"""mirror.json: what a copy of a run says of itself to its readers (docs/spec/bucket-format.md, section 6)."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

from luff.remote._disk import write_whole
from luff.remote._uploader import HEARTBEAT_S

if TYPE_CHECKING:
    from luff.remote._files import File
    from luff.remote._head import Entry
    from luff.remote._heads import Host

# A head that has not changed for so long, while the bucket answers, has no uploader any more.
SILENT_S = 5 * HEARTBEAT_S
# Who judges counts the age of a sign of life by these times: a minute without one is a loss.
_TELL_NS = 5_000_000_000


class MirrorNote:
    """**Not thread-safe.**"""

    def __init__(self, folder: str, url: str, socket: str, *, keeps_time: bool) -> None:
        """`keeps_time`: written anew whenever times or counts change; else when times are 5 s old, or more changes."""
        self._path = os.path.join(folder, "mirror.json")
        self._url = url
        self._socket = socket
        self._keeps_time = keeps_time
        self.forget()

    def forget(self) -> None:
        """The copy was removed."""
        self._written = ""
        self._told: tuple[Any, ...] = ()  # what it says, briefly
        self._times: list[int] = []  # of the hosts in it

    def tell(
        self,
        hosts: dict[int, Host],
        files: dict[File, tuple[int, Entry]],
        gone: dict[int, bool],
        problem: str,
    ) -> bool:
        """Writes it, if it says something new. Returns whether it does. Raises OSError.

        `hosts`, `gone`: by uploader; `gone`: its workers are taken for ended. `files`: of whom each is, and what there
        is of it.
        """
        manifests = {uploader: host.manifest for uploader, host in hosts.items()}
        over = bool(hosts) and all(m.state == "ended" for m in manifests.values())
        now = time.monotonic()
        silent = not over and all(now - host.changed_at > SILENT_S for host in hosts.values())
        times = [m.host_unix_ns for m in manifests.values()]
        states = [(gone[u], m.state, m.behind, m.pruned) for u, m in manifests.items()]
        told = (problem, silent, {file.folder for file in files if file.kind == "w"}, states)
        if not self._keeps_time and told == self._told and not self._are_old(times):
            return False
        workers = {}
        for file, (uploader, _) in files.items():
            if file.kind == "w":
                manifest = manifests[uploader]
                ended = manifest.state == "ended" or gone[uploader]
                workers[file.folder] = [file.folder, manifest.host_unix_ns, ended]
        text = json.dumps(
            {
                "format": "luff-mirror",
                "version": 1,
                "url": self._url,
                "socket": self._socket,
                "ended": over or (bool(workers) and all(gone.values())),
                "behind": any(m.behind for m in manifests.values()),
                "pruned": any(m.pruned for m in manifests.values()),
                "silent": silent,
                "draining": any(m.state == "draining" for m in manifests.values()),
                "host_unix_ns": max(times, default=0),
                "requests": sum(m.requests for m in manifests.values()),
                "puts": sum(m.puts for m in manifests.values()),
                "sent": sum(m.sent for m in manifests.values()),
                "problem": problem,
                "workers": sorted(workers.values()),
            }
        )
        new = text != self._written
        if new:
            write_whole(self._path, text.encode())
            self._written = text
        self._told, self._times = told, times
        return new

    def _are_old(self, times: list[int]) -> bool:
        """Also where a clock was set back."""
        return any(abs(now - then) >= _TELL_NS for now, then in zip(times, self._times, strict=True))
