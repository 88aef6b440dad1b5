"""The process that sends webhooks and mails, against real servers on loopback."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import luff
import pytest

_SCRIPT = Path(luff.__file__).parent / "actions" / "notify.py"
_KEY = "kEy-of-the-test"


def _document(**finding: Any) -> dict[str, Any]:
    told = {
        "id": "00112233aabbccdd", "rule": "NonFinite", "severity": "stop", "what": "weights are NaN",
        "why": "a batch held NaN", "remedy": "look at batch 7", "tensor": "Net_fc.weight", "step": 12,
    }  # fmt: skip
    return {
        "version": 1, "delivery": "0123456789abcdef", "event": "new", "action": "tell", "run": "/runs/r",
        "run_id": "ff", "command": "train.py", "train_step": 12, "finding": told | finding,
    }  # fmt: skip


def _notify(
    kind: str, settings: dict[str, Any], document: dict[str, Any] | None = None, **environment: str
) -> tuple[int, list[dict[str, Any]], str]:
    """Runs the process until it exits; returns exit code, attempts and all output."""
    order = {
        "kind": kind,
        "settings": {"timeout_s": 5, "attempts": 5, "backoff_s": 0.02, "give_up_s": 30} | settings,
        "document": document or _document(),
    }
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(_SCRIPT)],
        input=json.dumps(order), capture_output=True, text=True, timeout=60, env=environment, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stdout


class _Server:
    """An HTTP server with predefined answers; keeps the requests it received."""

    def __init__(
        self, answers: list[tuple[int, dict[str, str]]], context: ssl.SSLContext | None = None
    ) -> None:
        self.seen: list[tuple[str, dict[str, str], bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.seen.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                status, headers = answers[min(len(outer.seen), len(answers)) - 1]
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if context is not None:
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> _Server:  # noqa: PYI034
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def url(self, scheme: str = "http", host: str = "127.0.0.1") -> str:
        return f"{scheme}://{host}:{self.port}/hook?a=b"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A self-signed certificate for localhost, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", folder / "key.pem", "-out",
         folder / "cert.pem", "-days", "2", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        capture_output=True, check=False,
    )  # fmt: skip
    if made.returncode != 0:
        pytest.skip("no openssl command")
    return str(folder / "cert.pem"), str(folder / "key.pem")


def _server_context(certificate: tuple[str, str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


# Webhook -----------------------------------------------------------------------------------------------------------


def test_a_server_that_fails_twice_gets_it_signed_and_under_one_id() -> None:
    with _Server([(503, {}), (500, {}), (204, {})]) as server:
        settings = {"url": server.url(), "secret_env": "HOOK_KEY"}
        code, attempts, said = _notify("webhook", settings, HOOK_KEY=_KEY)
    assert code == 0
    assert [a["detail"] for a in attempts] == ["HTTP 503", "HTTP 500", "HTTP 204"]
    assert [a["final"] for a in attempts] == [False, False, True]
    assert len(server.seen) == 3
    for path, headers, body in server.seen:
        assert path == "/hook?a=b"
        stamp = headers["x-luff-timestamp"]
        assert abs(int(stamp) - time.time()) < 300
        signed = f"{stamp}.0123456789abcdef.".encode() + body
        assert (
            headers["x-luff-signature"] == "v1=" + hmac.new(_KEY.encode(), signed, hashlib.sha256).hexdigest()
        )
        assert headers["x-luff-delivery"] == "0123456789abcdef"
        assert json.loads(body) == _document()
    assert _KEY not in said


def test_the_key_may_stand_in_a_file_and_has_to_be_there(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(_KEY + "\n")
    with _Server([(200, {})]) as server:
        assert _notify("webhook", {"url": server.url(), "secret_file": str(file)})[0] == 0
        code, attempts, _ = _notify("webhook", {"url": server.url(), "secret_env": "NOT_SET"})
        assert code == 1
        assert "NOT_SET" in attempts[0]["detail"]
        assert _notify("webhook", {"url_env": "URL"}, URL=server.url())[0] == 0
    assert len(server.seen) == 2  # nothing is sent unsigned if a key was requested
    _, headers, body = server.seen[0]
    signed = f"{headers['x-luff-timestamp']}.0123456789abcdef.".encode() + body
    assert headers["x-luff-signature"] == "v1=" + hmac.new(_KEY.encode(), signed, hashlib.sha256).hexdigest()


@pytest.mark.parametrize(
    ("status", "headers"), [(302, {"Location": "http://127.0.0.1:9/"}), (404, {}), (401, {}), (100 * 3, {})]
)
def test_redirects_and_refusals_are_final(status: int, headers: dict[str, str]) -> None:
    with _Server([(status, headers)]) as server:
        code, attempts, _ = _notify("webhook", {"url": server.url()})
    assert code == 1
    assert len(attempts) == len(server.seen) == 1
    assert f"HTTP {status}" in attempts[0]["detail"]


def test_attempts_are_bounded_and_further_apart_each_time() -> None:
    with _Server([(503, {})]) as server:
        code, attempts, _ = _notify("webhook", {"url": server.url(), "attempts": 3})
        assert code == 1
        assert len(attempts) == len(server.seen) == 3
        assert [a["final"] for a in attempts] == [False, False, True]
    with _Server([(429, {"Retry-After": "3000"})]) as server:
        code, attempts, _ = _notify("webhook", {"url": server.url(), "give_up_s": 5})
        assert code == 1
        assert len(attempts) == 1  # the server asks for a longer wait than the limit


@contextmanager
def _silent(drip: bytes = b"") -> Iterator[int]:
    """A server that accepts connections and sends no answer, or now and then a byte."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        held: list[socket.socket] = []
        stop = threading.Event()

        def serve() -> None:
            listener.settimeout(0.05)
            while not stop.is_set():
                try:
                    held.append(listener.accept()[0])
                except TimeoutError:
                    pass
                for connection in held:
                    try:
                        if drip:
                            connection.send(drip)
                    except OSError:
                        pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            stop.set()
            thread.join()
            for connection in held:
                connection.close()


def test_a_server_that_hangs_is_left() -> None:
    with _silent() as port:
        settings = {"url": f"http://127.0.0.1:{port}/", "timeout_s": 0.3, "attempts": 2}
        code, attempts, _ = _notify("webhook", settings)
    assert code == 1
    assert [a["detail"] for a in attempts] == ["no answer in time"] * 2


def test_a_server_that_drips_is_ended_with_the_whole_time() -> None:
    with _silent(b"H") as port:
        order = {"url": f"http://127.0.0.1:{port}/", "timeout_s": 5, "give_up_s": 1}
        code, attempts, _ = _notify("webhook", order)
    assert code != 0
    assert not any(attempt["ok"] for attempt in attempts)


def test_nobody_there_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    code, attempts, _ = _notify("webhook", {"url": f"http://127.0.0.1:{port}/", "attempts": 2})
    assert code == 1
    assert len(attempts) == 2
    assert attempts[0]["detail"] == "Connection refused"


def test_a_certificate_of_ones_own_is_refused_unless_its_authority_is_named(
    certificate: tuple[str, str],
) -> None:
    with _Server([(200, {})], _server_context(certificate)) as server:
        code, attempts, _ = _notify("webhook", {"url": server.url("https", "localhost")})
        assert code == 1
        assert len(attempts) == 1
        assert "certificate is refused" in attempts[0]["detail"]
        assert server.seen == []
        settings = {"url": server.url("https", "localhost"), "ca_file": certificate[0]}
        assert _notify("webhook", settings)[0] == 0
        assert len(server.seen) == 1


@pytest.mark.parametrize(
    "url", ["ftp://127.0.0.1/", "file:///etc/passwd", "http://", "http://h:port/", "http://h/ x"]
)
def test_what_is_no_url_is_refused(url: str) -> None:
    code, attempts, _ = _notify("webhook", {"url": url})
    assert code == 1
    assert "URL" in attempts[0]["detail"]


# Mail --------------------------------------------------------------------------------------------------------------


class _Mails:
    """The mails that arrived at an aiosmtpd server."""

    def __init__(self) -> None:
        self.envelopes: list[Any] = []
        self.refusals: list[str] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        if self.refusals:
            return self.refusals.pop(0)
        self.envelopes.append((envelope, session.ssl is not None, session.authenticated))
        return "250 taken"


@pytest.fixture
def smtp(certificate: tuple[str, str]) -> Iterator[Callable[..., tuple[int, _Mails]]]:
    """Starts a mail server; returns its port and the mails that arrive."""
    controller = pytest.importorskip("aiosmtpd.controller")
    from aiosmtpd.smtp import AuthResult

    started: list[Any] = []

    def start(tls: str) -> tuple[int, _Mails]:
        mails = _Mails()

        def check(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> Any:
            good = data.login == b"luff" and data.password == b"pass-of-the-test"
            return AuthResult(success=good, handled=False)

        options: dict[str, Any] = {"authenticator": check}
        if tls == "starttls":
            options |= {"tls_context": _server_context(certificate)}
        elif tls == "tls":
            options |= {"ssl_context": _server_context(certificate), "auth_require_tls": False}
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        one = controller.Controller(mails, hostname="127.0.0.1", port=port, **options)
        one.start()
        started.append(one)
        return port, mails

    yield start
    for one in started:
        one.stop()


def _mail(port: int, tls: str, **more: Any) -> dict[str, Any]:
    return {
        "host": "localhost",
        "port": port,
        "tls": tls,
        "from": "luff@example.org",
        "to": ["a@example.org"],
    } | more


@pytest.mark.parametrize("tls", ["starttls", "tls"])
def test_a_mail_goes_encrypted_and_with_a_login(
    smtp: Callable[..., tuple[int, _Mails]], certificate: tuple[str, str], tls: str
) -> None:
    port, mails = smtp(tls)
    more = {"ca_file": certificate[0], "user": "luff", "password_env": "MAIL_PASSWORD"}
    code, attempts, said = _notify("mail", _mail(port, tls, **more), MAIL_PASSWORD="pass-of-the-test")
    assert code == 0, attempts
    [(envelope, _, authenticated)] = mails.envelopes
    assert authenticated
    assert envelope.rcpt_tos == ["a@example.org"]
    message = message_from_bytes(envelope.content)
    assert message["Subject"] == "[luff] NonFinite (stop) in train.py"
    text = message.get_payload(decode=True).decode()
    assert "weights are NaN" in text
    assert "look at batch 7" in text
    assert "pass-of-the-test" not in said
    code, attempts, said = _notify("mail", _mail(port, tls, **more), MAIL_PASSWORD="another")
    assert code == 1
    assert "login" in attempts[-1]["detail"]
    assert "another" not in said


@pytest.mark.parametrize("tls", ["starttls", "tls"])
def test_a_mail_server_that_nobody_vouches_for_is_refused(
    smtp: Callable[..., tuple[int, _Mails]], tls: str
) -> None:
    port, mails = smtp(tls)
    code, attempts, _ = _notify("mail", _mail(port, tls))
    assert code == 1
    assert "certificate is refused" in attempts[-1]["detail"]
    assert mails.envelopes == []


def test_starttls_is_never_left_out(smtp: Callable[..., tuple[int, _Mails]]) -> None:
    port, mails = smtp("none")
    code, attempts, _ = _notify("mail", _mail(port, "starttls"))
    assert code == 1
    assert "STARTTLS" in attempts[-1]["detail"]
    assert mails.envelopes == []


def test_plain_mail_is_for_this_machine_and_without_a_password(
    smtp: Callable[..., tuple[int, _Mails]],
) -> None:
    port, mails = smtp("none")
    assert _notify("mail", _mail(port, "none"))[0] == 0
    assert len(mails.envelopes) == 1
    more = {"user": "luff", "password_env": "MAIL_PASSWORD"}
    assert _notify("mail", _mail(port, "none", **more), MAIL_PASSWORD="p")[0] == 1
    assert _notify("mail", _mail(port, "none", host="mail.example.org"))[0] == 1
    assert len(mails.envelopes) == 1


def test_a_server_that_is_busy_is_asked_again(smtp: Callable[..., tuple[int, _Mails]]) -> None:
    port, mails = smtp("none")
    mails.refusals = ["451 later"]
    code, attempts, _ = _notify("mail", _mail(port, "none"))
    assert code == 0
    assert [a["detail"] for a in attempts] == ["SMTP 451: the mail is refused", "accepted"]
    mails.refusals = ["554 never"]
    code, attempts, _ = _notify("mail", _mail(port, "none"))
    assert code == 1
    assert len(attempts) == 1


@pytest.mark.parametrize(
    "evil", ["x\r\nBcc: thief@example.org", "x\nBcc: thief@example.org\n\nbody", "\r\n.\r\nMAIL"]
)
def test_text_of_a_run_cannot_become_a_header(smtp: Callable[..., tuple[int, _Mails]], evil: str) -> None:
    port, mails = smtp("none")
    document = _document(rule=evil, what=evil, severity=evil, tensor=evil) | {"command": evil, "run": evil}
    code, attempts, _ = _notify("mail", _mail(port, "none"), document)
    assert code == 0, attempts
    [(envelope, _, _)] = mails.envelopes
    assert envelope.rcpt_tos == ["a@example.org"]
    message = message_from_bytes(envelope.content)
    assert message["Bcc"] is None
    wanted = {"From", "To", "Subject", "Date", "Message-ID", "Auto-Submitted"}
    assert (
        wanted
        <= set(message.keys())
        <= wanted
        | {"Content-Type", "Content-Transfer-Encoding", "MIME-Version", "X-Peer", "X-MailFrom", "X-RcptTo"}
    )
