"""Every probe of one table, over real sockets: what a hostile client, page or neighbour would send, and the status
that refuses it. Prints how many of them succeeded."""

from __future__ import annotations

import contextlib
import re
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from .conftest import LIMIT_S, Server, add_token

#: What a probe gets to see: status 0 is a connection that was closed without an answer.
Refused = int | tuple[int, ...]


@dataclass
class House:
    """A server with tokens of every role, one that is revoked and one that has expired."""

    server: Server
    run: str
    tokens: dict[str, str]
    cookie: str
    csrf: str

    def raw(self, sent: bytes, *, shut: bool = True) -> bytes:
        """Sends bytes and returns all that comes back until the server closes."""
        got = b""
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=LIMIT_S) as client:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                client.sendall(sent)
                if shut:
                    client.shutdown(socket.SHUT_WR)
                while part := client.recv(65536):
                    got += part
        return got

    def status(self, sent: str, *, shut: bool = True) -> int:
        """Sends a request as it is written, with {host}, {auth} and {run} filled in; returns the status."""
        host = f"Host: 127.0.0.1:{self.server.port}\r\n"
        auth = f"Authorization: Bearer {self.server.token}\r\n"
        answer = self.raw(sent.format(host=host, auth=auth, run=self.run).encode("latin-1"), shut=shut)
        return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.") else 0

    def get(self, path: str, headers: dict[str, str] | None = None, token: bool | str = True) -> int:
        path = path.format(run=self.run, token=self.server.token)
        filled = {name: value.format(port=self.server.port) for name, value in (headers or {}).items()}
        return self.server.ask("GET", path, filled, token=token).status

    def post(self, path: str, headers: dict[str, str], body: str = "{}", token: bool | str = False) -> int:
        filled = {name: value.format(port=self.server.port) for name, value in headers.items()}
        return self.server.ask("POST", path.format(run=self.run), filled, body, token=token).status


@pytest.fixture(scope="module")
def house(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    home = tmp_path_factory.mktemp("home")
    tokens = {role: add_token(home, role, "--role", role) for role in ("metrics", "viewer", "operator")}
    tokens["elsewhere"] = add_token(home, "elsewhere", "--root", str(home))
    tokens["expired"] = add_token(home, "expired")
    file = home / "serve" / "tokens.json"
    text = re.sub(r'("name": "expired".*?"expires_unix_s": )0', r"\g<1>1", file.read_text(), flags=re.DOTALL)
    assert '"expires_unix_s": 1,' in text
    file.write_text(text)
    server = Server(home, runs)
    run = str(server.get("/api/v1/runs")["runs"][0]["id"])
    own = {"Origin": server.base, "Content-Type": "application/json"}
    begun = server.ask("POST", "/api/v1/session", own, f'{{"token": "{tokens["operator"]}"}}', token=False)
    cookie = begun.headers["Set-Cookie"].split(";")[0]
    yield House(server, run, tokens, cookie, begun.json()["csrf"])
    server.end()


Act = Callable[[House], int]


def get(path: str, headers: dict[str, str] | None = None, token: bool | str = True) -> Act:
    return lambda house: house.get(path, headers, token)


def as_role(role: str, path: str) -> Act:
    return lambda house: house.get(path, token=house.tokens[role])


def raw(sent: str) -> Act:
    return lambda house: house.status(sent)


def host(value: str) -> Act:
    return get("/api/v1/runs", {"Host": value})


def page(change: dict[str, str], *, session: bool = True) -> Act:
    """A change that the page of a session asks for, with some headers otherwise ("": absent)."""

    def act(house: House) -> int:
        headers = {
            "Origin": "http://127.0.0.1:{port}", "Content-Type": "application/json", "X-Luff-CSRF": house.csrf,
        } | ({"Cookie": house.cookie} if session else {}) | change  # fmt: skip
        return house.post(
            "/api/v1/runs/{run}/requests",
            {name: value for name, value in headers.items() if value},
            '{"action": "stop"}',
        )

    return act


def rides(method: str, change: dict[str, str], path: str = "/api/v1/runs/{run}/labels") -> Act:
    """A request that another site's page has caused in a browser that sends the cookie along all the same."""

    def act(house: House) -> int:
        headers = {"Cookie": house.cookie} | change
        if method == "GET":
            return house.get(path, headers, False)
        return house.post(path, headers, '{"add": ["evil"]}')

    return act


def acts(role: str, what: str) -> Act:
    return lambda house: house.post(
        f"/api/v1/runs/{{run}}/{what}",
        {"Content-Type": "application/json"},
        '{"action": "stop"}',
        house.tokens[role],
    )


def beats(word: str) -> str:
    return f"POST /api/v1/session HTTP/1.1\r\n{{host}}Content-Type: application/json\r\n{word}"


def smuggled(rest: str) -> Act:
    """How often a request is answered that a proxy in front may take for the body of the one before it."""

    def act(house: House) -> int:
        host = f"Host: 127.0.0.1:{house.server.port}\r\n"
        behind = f"GET /healthz HTTP/1.1\r\n{host}\r\n"
        sent = f"POST /api/v1/session HTTP/1.1\r\n{host}Content-Type: application/json\r\n{rest}{behind}"
        return house.raw(sent.encode()).count(b"ok\n")

    return act


def with_method(method: str) -> str:
    return f"{method} /api/v1/runs/{{run}} HTTP/1.1\r\n{{host}}{{auth}}Content-Type: application/json\r\n\r\n"


RUNS, RUN = "/api/v1/runs", "/api/v1/runs/{run}"
PROBES: dict[str, tuple[Act, Refused]] = {
    # Who asks.
    "no token": (get(RUNS, token=False), 401),
    "no token, metrics": (get("/metrics", token=False), 401),
    "no token, events": (get("/api/v1/live", token=False), 401),
    "no token, a tile": (get(RUN + "/heat/l2/0/0/0", token=False), 401),
    "wrong token": (get(RUNS, token="x" * 43), 401),
    "empty token": (get(RUNS, {"Authorization": "Bearer "}, False), 401),
    "other scheme": (get(RUNS, {"Authorization": "Basic eDp4"}, False), 401),
    "expired token": (as_role("expired", RUNS), 401),
    "token in the query": (get(RUNS + "?token={token}", token=False), 401),
    "cookie of another port": (get(RUNS, {"Cookie": "luff_1=abc"}, False), 401),
    "guessed cookie": (get(RUNS, {"Cookie": "luff_{port}=abc"}, False), 401),
    "token of metrics reads runs": (as_role("metrics", RUNS), 403),
    "token of metrics listens": (as_role("metrics", "/api/v1/live"), 403),
    "viewer posts stop": (acts("viewer", "requests"), 403),
    "viewer marks": (acts("viewer", "marks"), 403),
    "token of another root reads a run": (as_role("elsewhere", RUN), 404),
    "token of another root listens": (as_role("elsewhere", "/api/v1/live?runs={run}"), 404),
    "a user without a proxy": (get(RUNS, {"X-Forwarded-User": "admin", "X-Forwarded-Groups": "admin"}, False), 401),
    # Names of the server.
    "other host": (host("evil.test"), 421),
    "other host, our port": (host("evil.test:{port}"), 421),
    "host without port": (host("127.0.0.1"), 421),
    "host of another port": (host("127.0.0.1:1"), 421),
    "host with a dot": (host("127.0.0.1.:{port}"), 421),
    "port with a dot": (host("127.0.0.1:{port}."), 421),
    "any address": (host("[::]:{port}"), 421),
    "0.0.0.0": (host("0.0.0.0:{port}"), 421),
    "localhost.evil": (host("localhost.evil.test:{port}"), 421),
    "user in the host": (host("127.0.0.1:{port}@evil.test"), 421),
    "number as address": (host("2130706433:{port}"), 421),
    "absolute target": (raw("GET http://127.0.0.1/api/v1/runs HTTP/1.1\r\n{host}{auth}\r\n"), 400),
    "two hosts": (raw("GET /api/v1/runs HTTP/1.1\r\n{host}Host: evil.test\r\n{auth}\r\n"), 400),
    "no host": (raw("GET /api/v1/runs HTTP/1.1\r\n{auth}\r\n"), 400),
    "two tokens": (raw("GET /api/v1/runs HTTP/1.1\r\n{host}{auth}{auth}\r\n"), 400),
    # Pages of other sites.
    "origin null": (get(RUNS, {"Origin": "null"}), 403),
    "other origin": (get(RUNS, {"Origin": "http://evil.test"}), 403),
    "origin of another port": (get(RUNS, {"Origin": "http://127.0.0.1:1"}), 403),
    "origin with https": (get(RUNS, {"Origin": "https://127.0.0.1:{port}"}), 403),
    "cross-site fetch": (get(RUNS, {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}), 403),
    "same-site fetch": (get(RUNS, {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}), 403),
    "cross-site navigation to data": (get(RUNS, {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}), 403),
    "cross-site script of the page": (get("/", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}), 403),
    "post without origin": (page({"Origin": ""}), 403),
    "post from another origin": (page({"Origin": "http://evil.test"}), 403),
    "post from null": (page({"Origin": "null"}), 403),
    "post without the page's mark": (page({"X-Luff-CSRF": ""}), 403),
    "post with a wrong mark": (page({"X-Luff-CSRF": "x"}), 403),
    "post of a form": (page({"Content-Type": "text/plain"}), 415),
    "post without a session": (page({}, session=False), 401),
    "log-in without origin": (lambda house: house.post("/api/v1/session", {"Content-Type": "application/json"}), 403),
    "cookie rides on a form": (rides("POST", {"Origin": "http://evil.test", "Content-Type": "text/plain"}), 403),
    "cookie rides on a form of another port": (
        rides("POST", {"Origin": "http://127.0.0.1:1", "Content-Type": "application/x-www-form-urlencoded"}), 403),
    "cookie rides on a form without origin": (rides("POST", {"Content-Type": "text/plain"}), 403),
    "cookie rides on JSON without origin": (rides("POST", {"Content-Type": "application/json"}), 403),
    "cookie rides on JSON with our origin": (
        rides("POST", {"Origin": "http://127.0.0.1:{port}", "Content-Type": "application/json"}), 403),
    "cookie rides on a fetch": (rides("GET", {"Origin": "http://127.0.0.1:1"}), 403),
    "cookie rides on an image of another port": (
        rides("GET", {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}, "/api/v1/runs"), 403),
    "cookie rides on events": (rides("GET", {"Origin": "null"}, "/api/v1/live"), 403),
    # Addresses.
    "run ..": (get(RUNS + "/.."), 400),
    "encoded ..": (get(RUNS + "/%2e%2e%2f%2e%2e%2fetc"), 400),
    "twice encoded": (get(RUNS + "/%252e%252e%252f"), 400),
    "backslash": (get(RUNS + "/..%5c..%5c"), 400),
    "semicolon": (get(RUNS + "/x;y=1"), 400),
    "NUL": (get(RUNS + "/x%00"), 400),
    "newline": (get(RUNS + "/x%0d%0aSet-Cookie:a"), 400),
    "half an escape": (get(RUNS + "/x%4"), 400),
    "path out of the page": (get("/assets/..%2f..%2fetc%2fpasswd"), 400),
    "two slashes": (get("//evil.test/"), 400),
    "path as run": (get(RUNS + "/etc/passwd"), 404),
    "other route": (get("/api/v1/files"), 404),
    "9 KB of address": (get(RUNS + "/" + "a" * 9000), 414),
    "64 KiB of address": (get(RUNS + "/" + "a" * 65_000), (413, 414, 431)),
    "100 parameters": (get(RUNS + "?" + "x=1&" * 100), 400),
    # Questions.
    "catastrophic regex": (get(RUNS + "?where=name+~+%22(a%2B)%2B%24%22"), 200),  # there is no regex in the language
    "huge limit": (get(RUNS + "?limit=99999999999999999999"), 400),
    "negative limit": (get(RUNS + "?limit=-1"), 400),
    "broken UTF-8 in a question": (get(RUNS + "?where=%ff%fe"), 400),
    "overlong UTF-8 in the path": (get(RUNS + "/%c0%ae%c0%ae/"), 404),
    "a question 2,000 deep": (get(RUNS + "?where=" + "(" * 2000), 400),
    "a question 1,500 times not": (get(RUNS + "?where=" + "not+" * 1500 + "x"), 400),
    "a field of controls": (get(RUNS + "?brief=1&fields=%1b%5b31m"), 400),
    "points=10^12": (get(RUN + "/columns?tensor=0&points=1000000000000"), 400),
    "from > to": (get(RUN + "/columns?tensor=0&from=5&to=1"), 400),
    "from NaN": (get(RUN + "/columns?tensor=0&from=nan"), 400),
    "1000 tensors": (get(RUN + "/columns?tensor=" + ",".join(["0"] * 1000)), 400),
    "tile at infinity": (get(RUN + "/heat/l2/0/18446744073709551615/0"), 404),
    "1000 runs of one stream": (get("/api/v1/live?runs=" + ",".join(["{run}"] * 100)), 400),
    # HTTP.
    "no HTTP": (raw("hello\r\n\r\n"), 400),
    "20 KB of headers": (raw("GET /api/v1/runs HTTP/1.1\r\n{host}X: " + "a" * 20_000 + "\r\n\r\n"), (400, 431)),
    "1 MB of body": (raw(beats("Content-Length: 1000000\r\n\r\n")), (400, 413)),
    "two lengths": (raw(beats("Content-Length: 1\r\nContent-Length: 2\r\n\r\nab")), 400),
    "length and chunks": (raw(beats("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")), 400),
    "a request behind length and chunks": (
        smuggled("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 0),
    "a request behind two lengths": (smuggled("Content-Length: 2\r\nContent-Length: 0\r\n\r\n"), 0),
    "a request behind other codings": (smuggled("Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"), 0),
    "a request behind a coding that is none": (smuggled("Transfer-Encoding: xchunked\r\n\r\n"), 0),
    "a request behind a folded header": (smuggled("Content-Length: 0\r\n Transfer-Encoding: chunked\r\n\r\n"), 0),
    "a request behind a header with a blank": (smuggled("Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"), 0),
    "a request behind bare line feeds": (smuggled("Content-Length: 0\n\n"), 0),
    "a chunk that is larger than it says": (smuggled("Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n"), 0),
    "a length with a sign": (raw(beats("Content-Length: +1\r\n\r\na")), 400),
    "a length in hexadecimal": (raw(beats("Content-Length: 0x1\r\n\r\na")), 400),
    "HTTP 0.9": (raw("GET /api/v1/runs\r\n\r\n"), (0, 400)),
    "HTTP 1.0 without host": (raw("GET /api/v1/runs HTTP/1.0\r\n{auth}\r\n"), 400),
    "ranges": (get(RUNS, {"Range": "bytes=0-0,1-1,2-2", "Authorization": "Bearer x"}, False), 401),
    "negative chunk": (raw(beats("Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n")), 400),
    "negative length": (raw(beats("Content-Length: -1\r\n\r\n")), 400),
    "endless chunks": (raw(beats("Transfer-Encoding: chunked\r\n\r\n" + ("1000\r\n" + "a" * 4096 + "\r\n") * 100)),
                       (0, 400, 413)),
    "body of JSON, 30 KB deep": (
        lambda house: house.post(
            "/api/v1/runs/{run}/marks", {"Content-Type": "application/json"}, "[" * 30_000, house.tokens["operator"]),
        400),
    "other method": (raw(with_method("BREW")), (400, 405)),
    "TRACE": (raw(with_method("TRACE")), (400, 405)),
    "write into a run": (raw(with_method("PUT")), 405),
}  # fmt: skip


def test_no_probe_succeeds(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {}
    for name, (act, expected) in PROBES.items():
        status = act(house)
        if status not in (expected if isinstance(expected, tuple) else (expected,)):
            wrong[name] = (status, expected)
    with capsys.disabled():
        print(f"\n{len(wrong)} of {len(PROBES)} probes succeeded")
    assert wrong == {}
    assert house.server.get(RUNS)["all"] == 3  # and it answers as before


@pytest.mark.thorough  # it compares times
def test_wrong_tokens_take_as_long_wherever_they_are_wrong(house: House) -> None:
    token = house.tokens["viewer"]
    first, last = "_" + token[1:], token[:-1] + ("A" if token[-1] != "A" else "B")
    times: dict[str, list[float]] = {first: [], last: []}
    for _ in range(100):
        for wrong, taken in times.items():
            begun = time.perf_counter()
            assert house.get(RUNS, token=wrong) == 401
            taken.append(time.perf_counter() - begun)
    early, late = (statistics.median(taken) for taken in times.values())
    assert 0.5 < early / late < 2  # neither says how much of it was right


def test_requests_a_second_are_bounded(house: House) -> None:
    request = (
        f"GET /api/v1/session HTTP/1.1\r\nHost: 127.0.0.1:{house.server.port}\r\n"
        f"Authorization: Bearer {house.tokens['viewer']}\r\n\r\n"
    ).encode()
    answers = house.raw(request * 2000)
    assert answers.count(b"HTTP/1.1 429 ") > 0
    assert answers.count(b"HTTP/1.1 200 ") >= 200
    assert b"Retry-After: 1" in answers
    assert house.server.get(RUNS)["all"] == 3  # others are not held up


def test_more_connections_than_there_are_places(house: House) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(900):
            client = stack.enter_context(
                socket.create_connection(("127.0.0.1", house.server.port), timeout=LIMIT_S)
            )
            with contextlib.suppress(ConnectionError):
                client.sendall(b"GET / HT")  # and never goes on
        assert house.server.get(RUNS)["all"] == 3


@pytest.mark.thorough
def test_a_request_has_ten_seconds_for_its_headers(house: House) -> None:
    begun = time.monotonic()
    assert house.status("GET / HTTP/1.1\r\nX-Slow: ", shut=False) == 0
    assert time.monotonic() - begun < 25


def test_pipelined_requests_are_answered_one_by_one(house: House) -> None:
    request = f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{house.server.port}\r\n\r\n".encode()
    assert house.raw(request * 10_000).count(b"HTTP/1.1 200 OK") == 10_000


def test_no_answer_invites_other_sites(house: House) -> None:
    for path in ("/", RUNS, RUN.format(run=house.run), "/nothing", "/metrics"):
        headers = house.server.ask("GET", path, {"Accept-Encoding": "gzip"}).headers
        assert not [name for name in headers if name.lower().startswith("access-control")]
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
