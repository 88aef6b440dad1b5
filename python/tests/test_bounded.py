"""Reads what others may have written within bounds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from luff._bounded import parse_json, read_regular


def test_deep_json_is_a_value_error() -> None:
    assert parse_json('{"a": [1]}') == {"a": [1]}
    for text in ("[" * 100_000, '{"a":' * 100_000):
        with pytest.raises(ValueError, match=r"deep|Expecting"):
            parse_json(text)


def test_only_regular_files_beneath_the_root(tmp_path: Path) -> None:
    root, outside = tmp_path / "run", tmp_path / "outside"
    (root / "rules/luff").mkdir(parents=True)
    outside.mkdir()
    (outside / "x").write_text("secret")
    (root / "rules/luff/file").write_text("right")
    assert read_regular(root, "rules/luff/file", 5) == b"right"
    with pytest.raises(ValueError, match="found 5 bytes, expected at most 4"):
        read_regular(root, "rules/luff/file", 4)
    os.mkfifo(root / "pipe")
    (root / "zero").symlink_to("/dev/zero")
    (root / "link").symlink_to(outside / "x")
    (root / "folder").symlink_to(outside)
    (root / "sparse").touch()
    os.truncate(root / "sparse", 40 << 30)
    before = len(os.listdir("/proc/self/fd"))
    for name in ("pipe", "zero", "link", "folder/x", "rules", "none", "sparse"):
        with pytest.raises((OSError, ValueError)):
            read_regular(root, name, 1 << 20)
    assert len(os.listdir("/proc/self/fd")) == before
