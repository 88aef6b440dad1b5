"""Runs and pages of attackers: in a root that is served, and beside it in a real browser."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.browser import Browser, executable
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


EVIL = """<!doctype html><title>evil</title><body><script>
const told = {};
const at = location.hash.slice(1);
const done = [];
const tries = {
  fetch: () => fetch(at + "/api/v1/runs", {credentials: "include"}).then(r => r.text()),
  opaque: () => fetch(at + "/api/v1/runs", {credentials: "include", mode: "no-cors"})
    .then(r => r.type + r.status),
  post: () => fetch(at + "/api/v1/session", {method: "POST", credentials: "include", body: "{}"})
    .then(r => r.text()),
};
for (const [name, act] of Object.entries(tries))
  done.push(act().then(t => told[name] = t, () => told[name] = "refused"));
done.push(new Promise(end => { const i = new Image(); i.onload = () => end(told.image = "loaded");
  i.onerror = () => end(told.image = "refused"); i.src = at + "/icon.svg"; }));
done.push(new Promise(end => { const s = new EventSource(at + "/api/v1/live", {withCredentials: true});
  s.onopen = () => end(told.stream = "open"); s.onerror = () => { s.close(); end(told.stream = "refused"); }; }));
done.push(new Promise(end => { const f = document.createElement("iframe"); f.src = at + "/"; document.body.append(f);
  setTimeout(() => { let seen = "refused"; try { seen = f.contentDocument ? "empty" : "refused"; } catch { }
  told.frame = seen; end(); }, 1500); }));
Promise.all(done).then(() => window.told = told);
</script>"""


@pytest.fixture
def evil_site() -> Iterator[str]:
    """Another site's page, on another origin of this machine."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(EVIL.encode())

        def log_message(self, *_: object) -> None:
            pass

    site = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=site.serve_forever, daemon=True).start()
    yield f"http://localhost:{site.server_address[1]}"
    site.shutdown()
    site.server_close()


def test_another_sites_page_in_a_browser_with_a_session_learns_nothing(
    server: Server, evil_site: str, tmp_path: Path
) -> None:
    executable()
    if server.ask("GET", "/", {"Accept-Encoding": "gzip"}).status == 404:
        pytest.skip("built without the page")
    with contextlib.closing(Browser(tmp_path / "profile")) as browser:
        browser.open(server.link)
        browser.until("document.querySelector('table') !== null")
        assert server.token not in browser.evaluate("location.href")
        browser.open(f"{evil_site}/#{server.base}")
        told = browser.until("window.told")
    assert told["fetch"] == "refused"
    assert told["post"] == "refused"
    assert told["opaque"] in ("refused", "opaque0")  # nobody can read it, and the server answered 403
    assert told["image"] == "refused"
    assert told["stream"] == "refused"
    assert told["frame"] != "loaded"
