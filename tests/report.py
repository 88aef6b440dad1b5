"""Reads what `luff report` writes, as docs/spec/report.md describes it."""

from __future__ import annotations

import base64
import gzip
import json
import re
from typing import Any

import pytest

_BLOCK = re.compile(r'<script type="application/gzip" id="luff-([a-z0-9-]+)">([A-Za-z0-9+/=]*)</script>')


def skip_without_page(said: str) -> None:
    """Skips the test if the command said that it was built without the page."""
    if "made without Node" in said:
        pytest.skip("built without the page: no Node was there")


class Report:
    """The run in a report."""

    def __init__(self, html: str) -> None:
        self.html = html
        self._blocks = dict(_BLOCK.findall(html))
        self._packs: dict[int, bytes] = {}
        self.index: dict[str, Any] = json.loads(self._bytes("index"))

    def _bytes(self, name: str) -> bytes:
        return gzip.decompress(base64.b64decode(self._blocks[name], validate=True))

    def answer(self, route: str) -> bytes | None:
        """The answer of a route below runs/RUN/; None if the file does not hold it."""
        if route not in self.index["routes"]:
            return None
        pack, begin, size = self.index["routes"][route]
        if pack not in self._packs:
            self._packs[pack] = self._bytes(f"pack-{pack}")
        return self._packs[pack][begin : begin + size]

    def json(self, route: str) -> Any:
        """The same as JSON; the file must hold it."""
        found = self.answer(route)
        assert found is not None, route
        return json.loads(found)
