"""The heads of one run: what its uploaders say that there is."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING

from luff.remote import _files, _head
from luff.remote._bucket import check_bucket_untrusted
from luff.remote._errors import Absent, Refused
from luff.remote._files import File
from luff.remote._head import BadObject, Manifest
from luff.remote._run_folder import MAX_RUN_JSON
from luff.remote._run_store import public_card

if TYPE_CHECKING:
    from luff.remote._store import Store

_MOST_UPLOADERS = 64
_LOOK_FOR_HOSTS_S = 30.0
_UPLOADER = re.compile(r"u([0-9]{4})")


class Host:
    """What one uploader has put."""

    def __init__(self) -> None:
        self.etag = ""
        self.manifest = Manifest("")
        self.tails: dict[File, bytes] = {}
        self.changed_at = time.monotonic()


class Heads:
    """**Not thread-safe.** Methods raise BucketError."""

    def __init__(self, store: Store, url: str, run_id: str) -> None:
        self._store, self._url, self._run_id = store, url, run_id
        self.hosts: dict[int, Host] = {}  # by uploader
        self.judged = False  # somebody judges the run in the bucket
        self._listed_at = float("-inf")
        self._news = False

    @property
    def over(self) -> bool:
        """True once all uploaders have ended."""
        return bool(self.hosts) and all(host.manifest.state == "ended" for host in self.hosts.values())

    @property
    def pruned(self) -> bool:
        """True if something of the run was removed from the bucket."""
        return any(host.manifest.pruned for host in self.hosts.values())

    @property
    def judged_on_host(self) -> bool:
        """True if rules beside the training judge the run."""
        return any(File("findings") in host.manifest.files for host in self.hosts.values())

    @property
    def has_rows(self) -> bool:
        """True once a worker has published something."""
        files = (file for host in self.hosts.values() for file in host.manifest.files)
        return any(file.kind == "w" and not file.is_payload for file in files)

    @property
    def rows(self) -> dict[tuple[int, File], int]:
        """Bytes of all that rules read and that has rows, by uploader and file."""
        return {
            (uploader, file): entry.bytes
            for uploader, host in self.hosts.items()
            for file, entry in host.manifest.files.items()
            if file.kind == "w" and not file.is_payload
        }

    @property
    def sequences(self) -> dict[int, int]:
        """Of the heads that were read, by uploader."""
        return {uploader: host.manifest.sequence for uploader, host in self.hosts.items()}

    def know(self, uploaders: list[int]) -> None:
        """Who has just listed the heads tells whose there are: they are not listed once more."""
        for uploader in uploaders[:_MOST_UPLOADERS]:
            self.hosts.setdefault(uploader, Host())
        if uploaders:
            self._listed_at = time.monotonic()

    def take_news(self) -> bool:
        """True if a head has changed since the last call."""
        news, self._news = self._news, False
        return news

    def read(self) -> None:
        """Reads those that have changed."""
        now = time.monotonic()
        if now - self._listed_at > (_LOOK_FOR_HOSTS_S if self.hosts else 0):
            for uploader in self._list_uploaders():
                self.hosts.setdefault(uploader, Host())
            self._listed_at = now
            if not self.hosts:
                self._listed_at = float("-inf")
                self._explain()
        for uploader, host in sorted(self.hosts.items()):
            self._news = self._read_head(uploader, host) or self._news

    def _explain(self) -> None:
        """Raises why there is no head."""
        try:
            found = self._store.get("luff.json", 4096)
        except Absent:
            raise Refused(f"Luff has uploaded nothing there: {self._store.url}") from None
        check_bucket_untrusted(found[0] if found else b"", self._store.url)
        self.get_run_json()
        raise Refused(f"the run has begun in the bucket, and nothing of it is there yet: {self._url}")

    def get_run_json(self) -> bytes:
        """Raises Refused if there is no such run."""
        try:
            found = self._store.get(_files.run_key(self._run_id), MAX_RUN_JSON)
        except Absent:
            if self._is_pruned():
                raise Refused(
                    f"the run was pruned from the bucket, only its card is left (`luff runs`): {self._url}"
                ) from None
            raise Refused(f"there is no such run in the bucket: {self._url}") from None
        return found[0] if found else b""

    def _is_pruned(self) -> bool:
        """True if the run has left nothing but a card that says so."""
        try:
            found = self._store.get(_files.card_key(self._run_id), _files.MAX_CARD)
            card = json.loads(public_card(found[0])) if found else None
        except (Absent, Refused, ValueError, RecursionError):
            return False
        return isinstance(card, dict) and card.get("pruned") == "all"

    def _list_uploaders(self) -> list[int]:
        for prefix in (f"live/{self._run_id[0]}/{self._run_id}/", f"runs/{self._run_id}/"):
            names = self._store.children(prefix)
            self.judged = self.judged or _files.JUDGED in names
            matches = (_UPLOADER.fullmatch(name) for name in names)
            found = [int(match[1]) for match in matches if match is not None]
            # Where live/ was cleared, its mark is gone, too.
            self.judged = self.judged or (bool(found) and prefix.startswith("runs/"))
            if found:
                return sorted(found)[:_MOST_UPLOADERS]
        return []

    def _read_head(self, uploader: int, host: Host) -> bool:
        key = _files.head_key(self._run_id, uploader)
        try:
            found = self._store.get(key, _head.MAX_HEAD, host.etag)
        except Absent:  # removed after the end
            if host.manifest.state == "ended" and host.etag:
                return False
            key = _files.end_key(self._run_id, uploader)
            try:
                found = self._store.get(key, _head.MAX_HEAD, host.etag)
            except Absent:
                raise Refused(f"the head of the run was removed from the bucket: {self._url}") from None
        if found is None:
            return False
        try:
            manifest, tails = _head.parse_head_untrusted(found[0])
        except BadObject as error:
            raise Refused(f"{error}: {self._store.url}/{key}") from None
        if manifest.run_id != self._run_id or manifest.uploader != uploader:
            raise Refused(f"the head is of another run or host: {self._store.url}/{key}")
        if host.etag and manifest.sequence < host.manifest.sequence:
            raise Refused(
                f"the head is older than the last one, somebody put it back: {self._store.url}/{key}"
            )
        host.etag, host.manifest, host.tails = found[1], manifest, tails
        host.changed_at = time.monotonic()
        return True
