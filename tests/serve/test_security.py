"""Runs of attackers, in a directory that is served."""

from __future__ import annotations

from pathlib import Path

from tests.cli.hostile import make_run

from .conftest import Server


def test_an_attackers_run_is_shown_on_every_route(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    root.mkdir()
    make_run(root / "run\x1b[31m\u202e")
    server = Server(tmp_path, root)
    try:
        [listed] = server.get("/api/v1/runs")["runs"]
        at = f"/api/v1/runs/{listed['id']}"
        assert server.get(at)["id"] == listed["id"]
        tensors = server.get(f"{at}/tensors")["tensors"]
        assert len(tensors) > 3
        for tensor in tensors:
            for stat in ("auto", "l2", "min", "nonfinite"):
                assert server.ask("GET", f"{at}/columns?tensor={tensor['id']}&stat={stat}").status == 200
        for path in ("steps", "findings", "heat", "heat/l2/0/0/0", "at/0", "at/1"):
            assert server.ask("GET", f"{at}/{path}").status in (200, 404), path
        assert b"\x1b" not in server.ask("GET", "/metrics").body
        assert server.get("/api/v1/runs")["all"] == 1
    finally:
        code, said = server.end()
    assert code == 0
    assert "\x1b" not in said
