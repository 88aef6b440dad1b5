"""Pages of attackers in a real browser that has a session: of another site, of another port of this machine, which gets
the same cookies, and of a name that is bound to this machine after the page was loaded. Prints how many succeeded."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser import Browser, executable

from .conftest import LIMIT_S, Server, record

#: Each probe ends with true if it has learned or changed something. `at`: the server, `run`: a run of it.
PROBES = """
const load = (name, set) => new Promise((end) => {
  const one = document.createElement(name);
  one.onload = () => end(true);
  one.onerror = () => end(false);
  set(one);
  document.body.append(one);
});
const asked = (path, more) => fetch(at + path, more).then((r) => r.ok || r.type === "opaque");
const form = (path, type, name, value) => {
  const frame = document.createElement("iframe");
  frame.name = "f" + Math.random();
  document.body.append(frame);
  const one = document.createElement("form");
  Object.assign(one, {method: "POST", action: at + path, enctype: type, target: frame.name});
  const field = document.createElement("input");
  Object.assign(field, {name, value});
  one.append(field);
  document.body.append(one);
  one.submit();
  return new Promise((end) => setTimeout(() => end(false), 1000));  // the server's records tell
};
const label = `/api/v1/runs/${run}/labels`, requests = `/api/v1/runs/${run}/requests`;
const simple = {method: "POST", credentials: "include", mode: "no-cors"};
const beacon = (type) => (navigator.sendBeacon(at + label, new Blob(['{"add": ["evil"]}'], {type})), false);
const probes = {
  "fetch with cookies": () => asked("/api/v1/runs", {credentials: "include"}),
  "fetch without cookies": () => asked("/api/v1/runs", {credentials: "omit"}),
  "fetch without CORS": () => asked("/api/v1/runs", {credentials: "include", mode: "no-cors"}),
  "fetch of the page": () => asked("/", {credentials: "include"}),
  "fetch of the page without CORS": () => asked("/", {credentials: "include", mode: "no-cors"}),
  "fetch of metrics": () => asked("/metrics", {credentials: "include"}),
  "fetch with a token": () => asked("/api/v1/runs", {headers: {Authorization: "Bearer x"}}),
  "fetch as a proxy": () =>
    asked("/api/v1/runs", {headers: {"X-Forwarded-User": "root", "X-Forwarded-Host": "127.0.0.1"}}),
  "log-in": () => asked("/api/v1/session", {method: "POST", credentials: "include", body: '{"token": "x"}'}),
  "log-out": () => asked("/api/v1/session", {method: "DELETE", credentials: "include"}),
  "label as JSON": () => asked(label, {method: "POST", credentials: "include", body: '{"add": ["evil"]}',
    headers: {"Content-Type": "application/json", "X-Luff-CSRF": "x"}}),
  "label as text": () => asked(label, {...simple, body: '{"add": ["evil"]}'}),
  "stop as text": () => asked(requests, {...simple, body: '{"action": "stop"}'}),
  "beacon": () => beacon("text/plain"),
  "beacon as JSON": () => beacon("application/json"),
  "form": () => form(label, "text/plain", '{"add": ["evil"], "x": "', '"}'),
  "form with fields": () => form(label, "application/x-www-form-urlencoded", "add", "evil"),
  "form with files": () => form(requests, "multipart/form-data", "action", "stop"),
  "image": () => load("img", (one) => one.src = at + "/icon.svg"),
  "script": () => load("script", (one) => one.src = at + "/api/v1/openapi.json"),
  "style": () => load("link", (one) => Object.assign(one, {rel: "stylesheet", href: at + "/api/v1/openapi.json"})),
  "events": () => new Promise((end) => {
    const events = new EventSource(at + "/api/v1/live", {withCredentials: true});
    events.onopen = () => end(true);
    events.onerror = () => (events.close(), end(false));
  }),
  "web socket": () => new Promise((end) => {
    const one = new WebSocket(at.replace("http", "ws") + "/api/v1/live");
    one.onopen = () => end(true);
    one.onerror = () => end(false);
  }),
  "worker": () => navigator.serviceWorker ? navigator.serviceWorker.register(at + "/sw.js").then(() => true) : false,
  "frame": async () => {  // the list of frames tells
    for (const name of ["iframe", "object", "embed"]) {
      const one = document.createElement(name);
      one[name === "object" ? "data" : "src"] = at + "/";
      document.body.append(one);
    }
    await new Promise((end) => setTimeout(end, 1500));
    return false;
  },
  "sizes": async () => performance.getEntriesByType("resource").some((e) => e.name.startsWith(at) && e.transferSize > 0
    && at !== location.origin),
};
window.told = null;
(async () => {
  const told = {};
  for (const [name, act] of Object.entries(probes))
    told[name] = await Promise.race([
      Promise.resolve().then(act).catch(() => false), new Promise((end) => setTimeout(() => end(false), 5000))]);
  window.told = told;
})();
"""


class Site:
    """Serves an empty page to a browser. Once it is `rebound`, everything that comes goes to `to` as it is, as if the
    page's name were an address of that server."""

    def __init__(self, at: tuple[str, int], to: tuple[str, int]) -> None:
        self._listens, self._to, self.rebound = socket.create_server(at), to, False
        self.port = int(self._listens.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def end(self) -> None:
        self._listens.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listens.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            begin = client.recv(65536)
            if not self.rebound:
                page = b"<!doctype html><title>evil</title><body>"
                head = f"Content-Type: text/html\r\nContent-Length: {len(page)}\r\nConnection: close\r\n\r\n"
                client.sendall(b"HTTP/1.1 200 OK\r\n" + head.encode() + page)
                return
            with socket.create_connection(self._to, timeout=LIMIT_S) as server:
                server.sendall(begin)
                back = threading.Thread(target=self._copy, args=(server, client), daemon=True)
                back.start()
                self._copy(client, server)
                back.join(LIMIT_S)

    @staticmethod
    def _copy(source: socket.socket, to: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while part := source.recv(65536):
                to.sendall(part)
            to.shutdown(socket.SHUT_WR)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Browser]]:
    executable()
    home = tmp_path_factory.mktemp("home")
    hook = record(home / "runs" / "one", close=False)  # a job that could be stopped
    server = Server(home, home / "runs")
    names = "MAP rebound.test 127.0.0.2,MAP evil.test 127.0.0.1"
    browser = Browser(tmp_path_factory.mktemp("profile"), f"--host-resolver-rules={names}")
    try:
        server.require_page()
        browser.open(server.link)
        browser.until("document.querySelector('table') !== null")
        assert server.token not in browser.evaluate("location.href")
        yield server, browser
    finally:
        browser.close()
        server.end()
        hook.close()


@pytest.mark.parametrize("kind", ["another site", "another port", "a rebound name"])
def test_no_page_learns_or_changes_anything(
    house: tuple[Server, Browser], kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server, browser = house
    run = server.get("/api/v1/runs")["runs"][0]["id"]
    rebound = kind == "a rebound name"
    site = Site(("127.0.0.2", server.port) if rebound else ("127.0.0.1", 0), ("127.0.0.1", server.port))
    host = {"another site": "evil.test", "another port": "127.0.0.1", "a rebound name": "rebound.test"}[kind]
    try:
        browser.open(f"http://{host}:{site.port}/")
        browser.until("document.title === 'evil'")
        at = browser.evaluate("location.origin") if rebound else server.base
        site.rebound = rebound
        browser.evaluate(f"{{ const at = '{at}', run = '{run}'; {PROBES} }}; 1")
        told: dict[str, Any] = dict(browser.until("window.told"))
        told["frame"] = any(url.startswith(at) and not rebound for url in browser.frames())
        opened = browser.evaluate(f"(window.other = open('{at}/')) !== null", clicked=True)
        assert opened  # else the probe says nothing
        time.sleep(1.5)
        # Its document, its frames and messages to it are out of reach once the handle says that it is closed.
        told["window"] = browser.evaluate(
            "(() => { try { return other.document.title !== 'evil' && other.document.body.innerText !== '' &&"
            " !other.document.body.innerText.includes('Wrong host'); } catch { return !other.closed; } })()"
        )
    finally:
        site.end()
    told["a label"] = server.get(f"/api/v1/runs/{run}/labels")["tags"] != []
    told["a request"] = server.get(f"/api/v1/runs/{run}/requests")["requests"] != []
    succeeded = [name for name, yes in told.items() if yes]
    with capsys.disabled():
        print(f"\n{kind}: {len(succeeded)} of {len(told)} probes succeeded")
    assert succeeded == []
    assert len(told) == 29


def test_the_page_itself_may_still_read_and_needs_its_mark_to_change(house: tuple[Server, Browser]) -> None:
    server, browser = house
    run = server.get("/api/v1/runs")["runs"][0]["id"]
    browser.open(server.base + "/")
    browser.until("document.querySelector('table') !== null")
    browser.evaluate(f"{{ const at = '{server.base}', run = '{run}'; {PROBES} }}; 1")
    told = dict(browser.until("window.told"))
    for name in ("fetch with cookies", "fetch of the page", "fetch of metrics", "image", "events"):
        assert told[name], name  # so the probes above do what they say
    for name in ("log-out", "label as JSON", "label as text", "stop as text", "worker"):
        assert not told[name], name
    assert server.get(f"/api/v1/runs/{run}/labels")["tags"] == []
