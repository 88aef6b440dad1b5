"""Probes: what a hostile client, page or neighbour would send. Each has the status that refuses it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.browser import Browser, executable
from tests.cli.hostile import make_run

from .conftest import LIMIT_S, Server


@pytest.fixture(scope="module")
def run(server: Server) -> str:
    return str(server.get("/api/v1/runs")["runs"][0]["id"])


def raw(server: Server, sent: bytes, *, wait_s: float = LIMIT_S) -> bytes:
    """Sends bytes and returns all that comes back until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=wait_s) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        got = b""
        while True:
            with contextlib.suppress(ConnectionResetError):
                part = client.recv(65536)
                if part:
                    got += part
                    continue
            return got


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


TARGETS = {
    "/api/v1/runs/..": 400,
    "/api/v1/runs/%2e%2e%2f%2e%2e%2fetc": 400,
    "/api/v1/runs/%252e%252e%252f": 400,
    "/api/v1/runs/..%5c..%5c": 400,
    "/api/v1/runs/x;y=1": 400,
    "/api/v1/runs/x%00": 400,
    "/assets/..%2f..%2fetc%2fpasswd": 400,
    "//evil.test/": 400,
    "/api/v1/runs/" + "a" * 9000: 414,
    "/api/v1/runs?where=name+~+%22(a%2B)%2B%24%22": 200,  # no regex in the language
    "/api/v1/runs?limit=99999999999999999999": 400,
}


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target[:40])
def test_targets(server: Server, target: str) -> None:
    assert server.ask("GET", target).status == TARGETS[target]


def test_without_a_token_nothing_is_said(server: Server, run: str) -> None:
    of_run = [f"/api/v1/runs/{run}", f"/api/v1/runs/{run}/heat/l2/0/0/0"]
    for path in ["/api/v1/runs", *of_run, "/api/v1/live", "/metrics"]:
        assert server.ask("GET", path, token=False).status == 401
        assert server.ask("GET", f"{path}?token={server.token}", token=False).status == 401
        assert server.ask("GET", path, {"Authorization": "Bearer x"}, token=False).status == 401
        assert (
            server.ask("GET", path, {"Cookie": f"luff_{server.port + 1}={server.token}"}, token=False).status
            == 401
        )
        assert server.ask("GET", path, {"Authorization": f"Basic {server.token}"}, token=False).status == 401


@pytest.mark.parametrize(
    "host",
    [
        "evil.test",
        "evil.test:{port}",
        "localhost.evil.test:{port}",
        "127.0.0.1",
        "127.0.0.1:{port}.",
        "[::]:{port}",
    ],
)
def test_other_hosts(server: Server, host: str) -> None:
    for path in ("/", "/healthz", "/api/v1/runs"):
        assert server.ask("GET", path, {"Host": host.format(port=server.port)}).status == 421


def test_other_origins(server: Server) -> None:
    for origin in (
        "null",
        "http://evil.test",
        f"http://127.0.0.1:{server.port + 1}",
        f"https://127.0.0.1:{server.port}",
    ):
        assert server.ask("GET", "/api/v1/runs", {"Origin": origin}).status == 403
        body = f'{{"token": "{server.token}"}}'
        headers = {"Origin": origin, "Content-Type": "application/json"}
        assert server.ask("POST", "/api/v1/session", headers, body, token=False).status == 403
    for site in ("cross-site", "same-site"):
        assert (
            server.ask("GET", "/api/v1/runs", {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}).status
            == 403
        )
    # Nobody may log in from nowhere, or with a form.
    assert (
        server.ask("POST", "/api/v1/session", {"Content-Type": "application/json"}, "{}", token=False).status
        == 403
    )
    own = {"Origin": server.base, "Content-Type": "text/plain"}
    assert server.ask("POST", "/api/v1/session", own, "{}", token=False).status == 415


def test_no_answer_invites_other_sites(server: Server, run: str) -> None:
    for path in ("/", "/api/v1/runs", f"/api/v1/runs/{run}", "/nothing", "/metrics"):
        headers = server.ask("GET", path, {"Accept-Encoding": "gzip"}).headers
        assert not [name for name in headers if name.lower().startswith("access-control")]
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


def test_what_is_not_http(server: Server) -> None:
    host = f"Host: 127.0.0.1:{server.port}\r\n".encode()
    auth = f"Authorization: Bearer {server.token}\r\n".encode()
    get = b"GET /api/v1/runs HTTP/1.1\r\n"
    assert status(raw(server, b"hello\r\n\r\n")) == 400
    assert (
        status(raw(server, b"GET http://127.0.0.1/api/v1/runs HTTP/1.1\r\n" + host + auth + b"\r\n")) == 400
    )
    assert status(raw(server, get + host + b"Host: evil.test\r\n" + auth + b"\r\n")) == 400
    assert status(raw(server, get + auth + b"\r\n")) == 400
    assert status(raw(server, get + host + auth + auth + b"\r\n")) == 400
    assert status(raw(server, get + host + b"X: " + b"a" * 20_000 + b"\r\n\r\n")) in (400, 431)
    long = b"Content-Length: 1000000\r\n\r\n"
    assert status(raw(server, b"POST /api/v1/session HTTP/1.1\r\n" + host + long)) in (400, 413)
    twice = b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"
    assert status(raw(server, b"POST /api/v1/session HTTP/1.1\r\n" + host + twice)) in (400, 403)
    both = (
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /api/v1/runs HTTP/1.1\r\n\r\n"
    )
    answer = raw(server, b"POST /api/v1/session HTTP/1.1\r\n" + host + both)
    assert b" 200 " not in answer
    negative = b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n"
    assert status(raw(server, b"POST /api/v1/session HTTP/1.1\r\n" + host + negative)) in (400, 403)
    assert server.get("/api/v1/runs")["all"] == 3


def test_many_and_slow_clients_do_not_stop_it(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            client = stack.enter_context(
                socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT_S)
            )
            client.sendall(b"GET / HT")  # and never goes on
        begun = time.monotonic()
        assert server.get("/api/v1/runs")["all"] == 3
        assert time.monotonic() - begun < 10
    pipelined = f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode() * 2000
    assert raw(server, pipelined).count(b"HTTP/1.1 200 OK") == 2000


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
