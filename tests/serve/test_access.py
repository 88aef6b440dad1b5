"""Who may look at `luff serve`, and from where: tokens, roles, roots, Unix sockets, users of a proxy, the audit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import LIMIT_S, Server, add_token, executable, record


def luff(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [executable(), *words], capture_output=True, text=True, timeout=LIMIT_S, check=False,
        env=os.environ | {"LUFF_HOME": str(home)},
    )  # fmt: skip


def audit(home: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (home / "serve" / "audit.jsonl").read_text().splitlines()]


def log_in(server: Server, token: str) -> dict[str, str]:
    """Returns the headers of a session."""
    headers = {"Origin": server.base, "Content-Type": "application/json"}
    begun = server.ask("POST", "/api/v1/session", headers, json.dumps({"token": token}), token=False)
    assert begun.status == 200, begun.body
    cookie = begun.headers["Set-Cookie"].split(";")[0]
    return {"Origin": server.base, "Cookie": cookie, "X-Luff-CSRF": begun.json()["csrf"]}


def test_named_tokens_with_roles_and_roots_until_they_are_revoked(runs: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    viewer = add_token(home, "ann")
    inner = add_token(home, "inner", "--root", str(runs / "inner"), "--expires", "30d")
    scrape = add_token(home, "prometheus", "--role", "metrics")
    listed = luff(home, "serve", "token", "list").stdout
    assert [line.split()[:2] for line in listed.splitlines()] == [
        ["ann", "viewer"], ["inner", "viewer"], ["prometheus", "metrics"],
    ]  # fmt: skip
    assert viewer not in listed
    tokens = home / "serve" / "tokens.json"
    assert stat.S_IMODE(tokens.stat().st_mode) == 0o600
    assert viewer not in tokens.read_text()
    server = Server(home, runs)
    try:
        assert server.ask("GET", "/api/v1/runs", token=viewer).json()["all"] == 3
        assert server.ask("GET", "/api/v1/runs", token=scrape).status == 403
        assert server.ask("GET", "/metrics", token=scrape).status == 200
        seen = server.ask("GET", "/api/v1/runs", token=inner).json()
        assert [run["place"] for run in seen["runs"]] == ["inner/three"]
        assert (seen["all"], seen["matching"]) == (1, 1)
        for run in server.get("/api/v1/runs")["runs"]:
            status = server.ask("GET", f"/api/v1/runs/{run['id']}", token=inner).status
            assert status == (200 if run["place"] == "inner/three" else 404)
            at = f"/api/v1/runs/{run['id']}/requests"
            asked = server.ask(
                "POST", at, {"Content-Type": "application/json"}, '{"action": "stop"}', token=viewer
            )
            assert asked.status == 403
        session = log_in(server, viewer)
        assert server.ask("GET", "/api/v1/runs", session, token=False).status == 200
        run = server.get("/api/v1/runs")["runs"][0]["id"]
        stream = socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT_S)
        stream.sendall(
            f"GET /api/v1/live?runs={run} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
            f"Cookie: {session['Cookie']}\r\n\r\n".encode()
        )
        assert stream.recv(12) == b"HTTP/1.1 200"
        assert luff(home, "serve", "token", "revoke", "ann").returncode == 0
        begun = time.monotonic()
        while stream.recv(65536):  # the stream ends by itself
            assert time.monotonic() - begun < LIMIT_S
        stream.close()
        assert server.ask("GET", "/api/v1/runs", session, token=False).status == 401
        assert server.ask("GET", "/api/v1/runs", token=viewer).status == 401
        assert server.ask("GET", "/api/v1/runs", token=inner).status == 200
        # A file that others can read is refused, and so are its tokens.
        tokens.chmod(0o644)
        time.sleep(1.1)
        assert server.ask("GET", "/api/v1/runs", token=inner).status == 401
        assert server.get("/api/v1/runs")["all"] == 3  # the link's own token is not in the file
    finally:
        server.end()
    refused = luff(home, "serve", str(runs))
    assert refused.returncode == 2
    assert "chmod 600" in refused.stderr
    lines = audit(home)
    assert {line["event"] for line in lines} == {"token added", "token revoked", "log-in", "refused"}
    text = (home / "serve" / "audit.jsonl").read_text()
    assert not [token for token in (viewer, inner, scrape, server.token) if token in text]
    assert stat.S_IMODE((home / "serve" / "audit.jsonl").stat().st_mode) == 0o600


def test_token_mistakes_are_named(tmp_path: Path) -> None:
    add_token(tmp_path, "ann")
    for words, told in {
        ("add", "ann"): "already",
        ("add", "a b"): "letters",
        ("add", "bob", "--role", "king"): "metrics, viewer, operator and admin",
        ("add", "bob", "--expires", "soon"): "30d",
        ("add", "bob", "--root", str(tmp_path / "none")): "no directory",
        ("revoke", "anne"): "nearest: ann",
    }.items():
        done = luff(tmp_path, "serve", "token", *words)
        assert done.returncode == 2, words
        assert told in done.stderr, done.stderr


def test_a_unix_socket_is_its_owners_and_replaces_one_that_a_killed_server_left(
    runs: Path, tmp_path: Path
) -> None:
    path = tmp_path / "luff.sock"
    words = ("--listen", f"unix:{path}")
    server = Server(tmp_path, runs, words=words)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert server.get("/api/v1/runs")["all"] == 3
    assert server.ask("GET", "/api/v1/runs", token=False).status == 401
    assert "another program listens" in luff(tmp_path, "serve", *words, str(runs)).stderr
    os.kill(server.pid, signal.SIGKILL)
    server.end()
    assert path.exists()
    server = Server(tmp_path, runs, words=words)
    assert server.get("/api/v1/runs")["all"] == 3
    server.end()
    assert not path.exists()
    path.write_text("mine")
    assert "no socket" in luff(tmp_path, "serve", *words, str(runs)).stderr
    assert path.read_text() == "mine"


def test_what_cannot_be_safe_is_refused_with_a_sentence(tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    group = '[[proxy.group]]\nname = "ml"\nrole = "viewer"\n'
    secret = tmp_path / "secret"
    secret.write_text("x" * 32)
    secret.chmod(0o644)

    def refused(text: str, *words: str) -> str:
        config.write_text(text)
        done = luff(tmp_path, "serve", "--config", str(config), *words, str(tmp_path))
        assert done.returncode == 2, done.stderr
        return done.stderr

    assert "--auth proxy --tls-by-proxy" in refused("", "--listen", "0.0.0.0:0")
    assert "--tls-by-proxy" in refused(group, "--listen", "0.0.0.0:0", "--auth", "proxy")
    assert "--public-url" in refused(group, "--listen", "0.0.0.0:0", "--auth", "proxy", "--tls-by-proxy")
    assert "belongs to --auth proxy" in refused("", "--tls-by-proxy", "--listen", "0.0.0.0:0")
    assert "secret_file" in refused(group, "--auth", "proxy")
    assert "chmod 600" in refused(f'[proxy]\nsecret_file = "{secret}"\n{group}', "--auth", "proxy")
    assert "[[proxy.group]]" in refused("", "--auth", "proxy")
    assert "expected token or proxy" in refused('auth = "basic"')
    assert "https" in refused('public_url = "http://luff.example.org"')
    assert "nearest: public_url" in refused('public_ur = "x"')
    assert "line 2" in refused('listen = "6006"\nvalues = "king"')
    assert "needs 'name' and 'role'" in refused('[[proxy.group]]\nname = "ml"')
    assert "expected ADDRESS:PORT or unix:PATH" in refused('listen = "here"')
    config.chmod(0o664)  # who can write it could make anybody an admin
    assert "chmod go-w" in refused('listen = "127.0.0.1:0"')


def _stream(server: Server, token: str) -> tuple[socket.socket, int]:
    """Opens an event stream; returns it and the status of the answer."""
    while True:
        client = socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT_S)
        client.sendall(
            f"GET /api/v1/live?runs= HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
            f"Authorization: Bearer {token}\r\n\r\n".encode()
        )
        status = int(client.recv(12).split()[1])
        if status != 429:  # more than 200 requests within a second
            return client, status
        client.close()


def test_nobody_takes_the_event_streams_of_all(tmp_path: Path) -> None:
    home, runs = tmp_path / "home", tmp_path / "runs"
    runs.mkdir()
    ann, bob = add_token(home, "ann"), add_token(home, "bob")
    server = Server(home, runs)
    opened = []
    try:
        for _ in range(256):
            opened.append(_stream(server, ann))
            assert opened[-1][1] == 200
        opened.append(_stream(server, ann))
        assert opened[-1][1] == 503
        opened.append(_stream(server, bob))
        assert opened[-1][1] == 200
        while opened[0][0].recv(65536):  # the oldest of whoever has most ends
            continue
        scraped = server.ask("GET", "/metrics").body.decode()
        assert "\nluff_serve_streams 256\n" in scraped
    finally:
        for stream, _ in opened:
            stream.close()
        server.end()


def test_a_stream_ends_when_its_run_is_where_its_token_may_not_look(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for folder in ("mine", "mine-too"):  # one name begins as the other
        (tmp_path / "runs" / folder).mkdir(parents=True)
    record(tmp_path / "runs" / "mine" / "one")
    token = add_token(home, "ann", "--root", str(tmp_path / "runs" / "mine"))
    server = Server(home, tmp_path / "runs")
    try:
        [run] = server.get("/api/v1/runs")["runs"]
        with socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT_S) as stream:
            stream.sendall(
                f"GET /api/v1/live?runs={run['id']} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
                f"Authorization: Bearer {token}\r\n\r\n".encode()
            )
            assert stream.recv(12) == b"HTTP/1.1 200"
            (tmp_path / "runs" / "mine" / "one").rename(tmp_path / "runs" / "mine-too" / "one")
            begun = time.monotonic()
            while stream.recv(65536):
                assert time.monotonic() - begun < LIMIT_S
        assert server.ask("GET", f"/api/v1/runs/{run['id']}", token=token).status == 404
        assert server.ask("GET", "/api/v1/runs", token=token).json()["all"] == 0
        assert server.get("/api/v1/runs")["all"] == 1
    finally:
        server.end()


def test_a_proxy_signs_users_on_and_their_groups_say_what_they_may(runs: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the proxy, long enough\n")
    secret.chmod(0o600)
    config = tmp_path / "serve.toml"
    config.write_text(
        f'auth = "proxy"\npublic_url = "https://luff.example.org/studio"\nroots = ["{runs}"]\nvalues = "operator"\n'
        f'[proxy]\nuser_header = "X-User"\ngroups_header = "X-Groups"\nsecret_file = "{secret}"\n'
        '[[proxy.group]]\nname = "ops"\nrole = "operator"\n'
        f'[[proxy.group]]\nname = "inner"\nrole = "viewer"\nroots = ["{runs}/inner"]\n'
    )
    home = tmp_path / "home"
    scrape = add_token(home, "prometheus", "--role", "metrics")
    server = Server(home, words=("--config", str(config), "--listen", f"127.0.0.1:{free_port()}"))
    signed = {"X-Luff-Proxy-Secret": "of the proxy, long enough", "Host": "luff.example.org"}
    ops = signed | {"X-User": "ann", "X-Groups": "staff,ops"}
    inner = signed | {"X-User": "bob", "X-Groups": "inner"}
    at = "/studio/api/v1"
    try:
        assert server.link == "https://luff.example.org/studio/"  # no token in it
        assert server.ask("GET", f"{at}/runs", ops).json()["all"] == 3
        assert server.ask("GET", f"{at}/runs", inner).json()["all"] == 1
        assert server.ask("GET", f"{at}/runs", signed | {"X-User": "eve", "X-Groups": "x"}).status == 403
        for wrong in ({"X-Luff-Proxy-Secret": "guess"}, {"X-Luff-Proxy-Secret": ""}, {"X-User": ""}):
            assert server.ask("GET", f"{at}/runs", ops | wrong).status == 401
        assert server.ask("GET", "/api/v1/runs", ops).status == 404  # everything is below the path
        moved = server.ask("GET", "/studio", ops)
        assert (moved.status, moved.headers["Location"]) == (308, "/studio/")
        local = {"Host": f"127.0.0.1:{server.port}"}
        assert server.ask("GET", "/studio/metrics", local, token=scrape).status == 200
        run = server.ask("GET", f"{at}/runs", inner).json()["runs"][0]["id"]
        assert server.ask("GET", f"{at}/runs/{run}/boosting", inner).status == 403  # values = "operator"
        assert server.ask("GET", f"{at}/runs/{run}/boosting", ops).status == 200
        # A change needs the mark of the page, though the proxy vouches for the user.
        csrf = server.ask("GET", f"{at}/session", ops).json()["csrf"]
        page = {"Origin": "https://luff.example.org", "Content-Type": "application/json"}
        stop = '{"action": "stop"}'
        asked = server.ask("POST", f"{at}/runs/{run}/requests", ops | page, stop)
        assert asked.status == 403
        asked = server.ask("POST", f"{at}/runs/{run}/requests", ops | page | {"X-Luff-CSRF": csrf}, stop)
        assert asked.status == 409  # nobody trains
        assert (
            server.ask("POST", f"{at}/runs/{run}/requests", inner | page | {"X-Luff-CSRF": csrf}, stop).status
            == 403
        )
    finally:
        server.end()
    lines = audit(home)
    assert ("ann", "values") in {(line["who"], line["event"]) for line in lines}
    assert "of the proxy" not in (home / "serve" / "audit.jsonl").read_text()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def test_secrets_of_a_command_line_are_hidden(tmp_path: Path) -> None:
    root = tmp_path / "root"
    script = tmp_path / "train.py"
    script.write_text(
        "import luff.numpy\nimport numpy as np\nhook = luff.numpy.attach({'w': np.ones(3)})\n"
        "with hook.step() as step:\n    step.loss(1.0)\nhook.close()\n"
    )
    done = luff(
        tmp_path, "run", "--run", str(root / "run"), "--", sys.executable,
        str(script), "--api-key", "hunter2", "--hf_token=hunter2", "--max-tokens", "77", "db=pg://me:hunter2@host",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    server = Server(tmp_path, root)
    try:
        [run] = server.get("/api/v1/runs")["runs"]
        assert "--max-tokens" in run["command"]
        for path in ("/api/v1/runs", f"/api/v1/runs/{run['id']}"):
            body = server.ask("GET", path).body
            assert b"hunter2" not in body
            assert b"(hidden)" in body
            assert b"77" in body
    finally:
        server.end()


NGINX = """
daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 1; user root;
events {{ worker_connections 64; }}
http {{
  access_log off; client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  server {{
    listen 127.0.0.1:{port} ssl;
    ssl_certificate {folder}/cert.pem; ssl_certificate_key {folder}/key.pem;
    auth_basic "luff"; auth_basic_user_file {folder}/users;
{recipe}
  }}
}}
"""


@pytest.fixture
def nginx(runs: Path, tmp_path: Path) -> Iterator[tuple[Server, int, Path]]:
    """Debian's nginx with TLS before a server on a Unix socket, by the recipe of docs/serve.md."""
    found = shutil.which("nginx") or ("/usr/sbin/nginx" if os.access("/usr/sbin/nginx", os.X_OK) else None)
    openssl = shutil.which("openssl")
    if found is None or openssl is None:
        pytest.skip("no nginx; install nginx-light and openssl")
    page = (Path(__file__).parents[2] / "docs" / "serve.md").read_text()
    recipe = (
        page.split("```nginx\n")[1]
        .split("```")[0]
        .replace("/run/luff/luff.sock", str(tmp_path / "luff.sock"))
    )
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", tmp_path / "key.pem", "-out",
         tmp_path / "cert.pem", "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
        check=True, capture_output=True, timeout=LIMIT_S,
    )  # fmt: skip
    (tmp_path / "users").write_text("ann:{PLAIN}pass\n")
    port = free_port()
    config = tmp_path / "serve.toml"
    config.write_text(
        f'listen = "unix:{tmp_path}/luff.sock"\nauth = "proxy"\npublic_url = "https://localhost:{port}/luff"\n'
        '[[proxy.group]]\nname = "*"\nrole = "operator"\n'
    )
    server = Server(tmp_path / "home", runs, words=("--config", str(config)))
    server.socket = str(tmp_path / "luff.sock")
    (tmp_path / "nginx.conf").write_text(NGINX.format(folder=tmp_path, port=port, recipe=recipe))
    process = subprocess.Popen([found, "-c", tmp_path / "nginx.conf", "-p", tmp_path], stderr=subprocess.PIPE)
    try:
        yield server, port, tmp_path
    finally:
        process.terminate()
        process.communicate(timeout=LIMIT_S)
        server.end()


def test_behind_nginx_with_tls_on_a_sub_path(nginx: tuple[Server, int, Path]) -> None:
    server, port, folder = nginx
    context = ssl.create_default_context(cafile=str(folder / "cert.pem"))
    base = f"https://localhost:{port}/luff"

    def ask(path: str, headers: dict[str, str], body: bytes | None = None) -> tuple[int, bytes]:
        request = urllib.request.Request(base + path, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=LIMIT_S, context=context) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    ann = {"Authorization": "Basic YW5uOnBhc3M="}
    end = time.monotonic() + LIMIT_S
    while True:
        try:
            ask("/healthz", ann)
            break
        except OSError:
            assert time.monotonic() < end, (folder / "error.log").read_text()
            time.sleep(0.05)
    assert ask("/api/v1/runs", {})[0] == 401  # nginx itself
    code, body = ask("/api/v1/runs", ann)
    assert code == 200, body
    assert json.loads(body)["all"] == 3
    assert json.loads(ask("/api/v1/session", ann)[1])["name"] == "ann"
    # Who claims to be another user, or to have groups, is still who the proxy says.
    forged = ann | {"X-Forwarded-User": "root", "X-Forwarded-Groups": "admins"}
    assert json.loads(ask("/api/v1/session", forged)[1])["name"] == "ann"
    assert ask("/api/v1/runs", ann | {"Origin": "https://evil.test"})[0] == 403
    # Events come one by one: nothing on the way keeps them back.
    run = json.loads(body)["runs"][0]["id"]
    request = urllib.request.Request(f"{base}/api/v1/live?runs={run}", headers=ann)
    with urllib.request.urlopen(request, timeout=LIMIT_S, context=context) as stream:
        assert stream.headers["Content-Type"] == "text/event-stream"
        lines = [stream.readline() for _ in range(8)]
    assert b"event: hello\n" in lines[:3], lines
    assert any(b"event: run" in line for line in lines), lines


@pytest.mark.parametrize("kills", [4, pytest.param(100, marks=pytest.mark.thorough)])
def test_a_job_is_the_same_however_often_servers_are_killed(tmp_path: Path, kills: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import hashlib, os, sys, time\nimport numpy as np\nimport luff.numpy\n"
        "random = np.random.default_rng(0)\nw = random.normal(size=(64, 64))\n"
        "hook = luff.numpy.attach({'w': w})\n"
        "steps = 0\n"
        "while steps < 400 or (len(sys.argv) > 2 and not os.path.exists(sys.argv[2])):\n"
        "    with hook.step() as step:\n"
        "        if steps < 400:\n            w += 0.01 * random.normal(size=w.shape) - 0.1 * w ** 3\n"
        "        step.loss(float((w ** 2).mean()))\n    steps += 1\n    time.sleep(0.005)\n"
        "hook.close()\nprint(hashlib.sha256(w.tobytes()).hexdigest())\n"
    )
    environment = os.environ | {"LUFF_HOME": str(tmp_path / "home")}
    root = tmp_path / "root"

    def train(name: str, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [executable(), "run", "--run", str(root / name), "--", sys.executable, str(script), *words],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
        )  # fmt: skip

    alone, _ = train("alone").communicate(timeout=LIMIT_S)
    done = tmp_path / "done"
    job = train("watched", "x", str(done))
    for i in range(kills):
        server = Server(tmp_path / "home", root)
        runs = server.get("/api/v1/runs")["runs"]
        for run in runs:
            server.ask("GET", f"/api/v1/runs/{run['id']}/heat/l2/0/0/0")
            server.ask("GET", f"/api/v1/runs/{run['id']}/columns?tensor=0")
        time.sleep(0.002 * (i % 20))
        os.kill(server.pid, signal.SIGKILL)
        server.end()
    done.touch()
    watched, _ = job.communicate(timeout=LIMIT_S)
    assert job.returncode == 0
    assert watched == alone
    assert luff(tmp_path, "verify", str(root / "watched")).returncode == 0


def test_runs_that_an_attacker_put_into_a_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    record(root / "good", 5)
    outside = tmp_path / "outside"
    record(outside, 5)
    (root / "link").symlink_to(outside)
    worker = root / "linked-worker"
    worker.mkdir()
    shutil.copy(outside / "run.json", worker / "run.json")
    (worker / "w0000").symlink_to(outside / "w0000")
    control = root / "linked-control"
    shutil.copytree(root / "good", control)
    secret = tmp_path / "secret.json"
    secret.write_text('{"number": 1, "kind": "request", "reason": "hunter2"}')
    (control / "control" / "000099.json").symlink_to(secret)
    for name in ("fifo", "device", "deep", "huge"):
        (root / name).mkdir()
        live = root / name / "w0000"
        live.mkdir()
        if name == "fifo":
            os.mkfifo(root / name / "run.json")
            os.mkfifo(live / "live")
        else:
            (live / "live").write_bytes(b"\0" * 4096)
    (root / "device" / "run.json").symlink_to("/dev/zero")
    (root / "deep" / "run.json").write_text("[" * 1_000_000)
    with (root / "huge" / "run.json").open("wb") as huge:
        huge.truncate(1 << 30)
    pipes = root / "pipes"  # whatever is opened here waits for ever, leads outside or is as large as can be
    shutil.copytree(root / "good", pipes)
    (pipes / "rules" / "luff").mkdir(parents=True, exist_ok=True)
    (pipes / "log").mkdir()
    for name in ("rules/luff/findings.jsonl", "log/stdout", "supervisor", "control/000001.json"):
        (pipes / name).unlink(missing_ok=True)
        os.mkfifo(pipes / name)
    (pipes / "log" / "stderr").symlink_to(secret)
    for name in ("log/times", "control/000002.json", "rules/luff/actions.jsonl"):
        with (pipes / name).open("wb") as sparse:
            sparse.truncate(1 << 40)
    begun = time.monotonic()
    server = Server(tmp_path, root)
    try:
        answer = server.get("/api/v1/runs")
        places = {run["place"]: run["id"] for run in answer["runs"]}
        assert "good" in places
        assert "link" not in places
        for place, run in places.items():
            for what in ("requests", "marks"):  # nobody trains there, and nothing waits
                asked = server.ask(
                    "POST",
                    f"/api/v1/runs/{run}/{what}",
                    {"Content-Type": "application/json"},
                    '{"action": "stop"}',
                )
                assert asked.status in (400, 403, 404, 409, 422), (place, what, asked.body)
            for path in (
                "",
                "/tensors",
                "/steps",
                "/findings",
                "/requests",
                "/columns?tensor=0",
                "/heat",
                "/log",
                "/labels",
                "/samples",
            ):
                got = server.ask("GET", f"/api/v1/runs/{run}{path}")
                assert got.status in (200, 404, 422), (place, path, got.body)
                assert b"hunter2" not in got.body
        if "linked-worker" in places:  # what is outside the root is not in it
            tensors = server.ask("GET", f"/api/v1/runs/{places['linked-worker']}/tensors")
            assert tensors.status != 200 or tensors.json()["tensors"] == []
        resident = [
            line for line in Path(f"/proc/{server.pid}/status").read_text().splitlines() if "VmHWM" in line
        ]
        assert int(resident[0].split()[1]) < 400_000, resident
    finally:
        code, _ = server.end()
    assert code == 0
    assert time.monotonic() - begun < LIMIT_S
