"""Sends one webhook or one mail, and reports each attempt; started by ``luff run`` as a script.

Standard input: one JSON object with ``kind``, ``settings`` and ``document`` (docs/spec/control.md). Standard
output: one JSON object a line for each attempt: ``attempt``, ``ok``, ``detail``, ``final``. Exit code 0: delivered.

It imports nothing of Luff, so that it starts fast and runs with ``python -I -S``. It reads secrets itself, from the
environment variable or the file that the settings name, and sends them only to the server. Text from the run is
untrusted: it never reaches a header or an address.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import os
import random
import signal
import smtplib
import socket
import ssl
import sys
import time
import urllib.parse
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from typing import Any

_MAX_INPUT = 4 << 20
_MAX_SECRET = 64 << 10
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_MAX_SUBJECT = 180


class Refused(Exception):
    """A failure that a retry would not fix."""


class Again(Exception):
    """A failure that a retry may fix; `wait_s` is the wait that the server asked for, if any."""

    def __init__(self, text: str, wait_s: float | None = None) -> None:
        super().__init__(text)
        self.wait_s = wait_s


def secret(settings: dict[str, Any], name: str) -> str | None:
    """Reads a secret from the variable or file that the settings name; None if they name none."""
    variable, path = settings.get(f"{name}_env"), settings.get(f"{name}_file")
    if variable:
        value = os.environ.get(variable)
        if not value:
            raise Refused(f"the environment variable {variable} ({name}_env) is not set")
        return value
    if path:
        try:
            with open(path, encoding="utf-8") as file:
                value = file.read(_MAX_SECRET).strip()
        except (OSError, ValueError) as error:
            raise Refused(f"the file of {name}_file cannot be read: {type(error).__name__}") from None
        if not value:
            raise Refused(f"the file of {name}_file is empty")
        return value
    return None


def tls(settings: dict[str, Any]) -> ssl.SSLContext:
    """Returns a TLS context, which always checks certificates and host names; `ca_file` names further authorities."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.get("ca_file"):
        try:
            context.load_verify_locations(cafile=settings["ca_file"])
        except (OSError, ssl.SSLError) as error:
            raise Refused(f"ca_file cannot be read: {type(error).__name__}") from None
    return context


def why(error: BaseException) -> str:
    """Describes a network error in one line, without addresses or secrets."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or type(error).__name__}"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, socket.gaierror):
        return "the host's name is not known"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__


# Webhook -----------------------------------------------------------------------------------------------------------


def signature(key: str, timestamp: str, delivery: str, body: bytes) -> str:
    """Returns ``v1=`` and the HMAC-SHA256 over ``TIMESTAMP.DELIVERY.BODY``."""
    signed = timestamp.encode() + b"." + delivery.encode() + b"." + body
    return "v1=" + hmac.new(key.encode(), signed, hashlib.sha256).hexdigest()


def _retry_after(text: str | None) -> float | None:
    try:
        return min(max(float(text), 0.0), 3600.0) if text else None
    except ValueError:
        return None


def send_webhook(settings: dict[str, Any], document: dict[str, Any]) -> str:
    """Makes one attempt; returns the answer's status as text."""
    given = secret(settings, "url") or settings.get("url") or ""
    try:
        url = urllib.parse.urlsplit(given)
        host, port = url.hostname, url.port
    except ValueError:
        raise Refused("the URL has no valid host and port") from None
    if url.scheme not in ("http", "https") or not host or any(ord(c) <= 32 or ord(c) == 127 for c in given):
        raise Refused("the URL is none of http or https")
    key = secret(settings, "secret")
    # ASCII without control characters: safe to show on a terminal
    body = json.dumps(document, allow_nan=False).encode()
    stamp, delivery = str(int(time.time())), str(document["delivery"])
    headers = {
        "Content-Type": "application/json; charset=utf-8",
        "User-Agent": "luff",
        "X-Luff-Delivery": delivery,
        "X-Luff-Timestamp": stamp,
    }
    if key is not None:
        headers["X-Luff-Signature"] = signature(key, stamp, delivery, body)
    timeout = float(settings["timeout_s"])
    connection: http.client.HTTPConnection
    if url.scheme == "https":
        connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=tls(settings))
    else:
        connection = http.client.HTTPConnection(host, port, timeout=timeout)
    target = urllib.parse.quote(url.path or "/", safe="/%:@!$&'()*+,;=~-._")
    if url.query:
        target += "?" + urllib.parse.quote(url.query, safe="/?%:@!$&'()*+,;=~-._")
    try:
        connection.request("POST", target, body, headers)
        answer = connection.getresponse()
        status, later = answer.status, _retry_after(answer.getheader("Retry-After"))
    except ssl.SSLCertVerificationError as error:
        raise Refused(why(error)) from None
    except (OSError, http.client.HTTPException) as error:
        raise Again(why(error)) from None
    finally:
        connection.close()
    if 200 <= status < 300:
        return f"HTTP {status}"
    if status in _AGAIN:
        raise Again(f"HTTP {status}", later)
    raise Refused(f"HTTP {status}" + (", a redirect, is not followed" if 300 <= status < 400 else ""))


# Mail --------------------------------------------------------------------------------------------------------------


def one_line(text: object) -> str:
    """Returns the text without anything that could begin a line or a header."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())


def compose(settings: dict[str, Any], document: dict[str, Any]) -> EmailMessage:
    """Composes the mail about a finding."""
    finding = document.get("finding") or {}
    message = EmailMessage()
    message["From"] = settings["from"]
    message["To"] = ", ".join(settings["to"])
    what = one_line(
        f"[luff] {finding.get('rule', '')} ({finding.get('severity', '')}) in {document.get('command', '')}"
    )
    message["Subject"] = what[:_MAX_SUBJECT]
    message["Date"] = formatdate(usegmt=True)
    message["Message-ID"] = make_msgid(idstring=str(document["delivery"]), domain="luff.invalid")
    message["Auto-Submitted"] = "auto-generated"
    lines = [one_line(finding.get("what", "")), ""]
    for name, label in (("why", "Why"), ("remedy", "What to do"), ("threshold", "Limit")):
        if finding.get(name):
            lines += [f"{label}: {one_line(finding[name])}", ""]
    for name, label in (
        ("tensor", "Tensor"),
        ("step", "Step"),
        ("since_step", "Since step"),
        ("worker", "Worker"),
    ):
        if finding.get(name) not in (None, ""):
            lines.append(f"{label}: {one_line(finding[name])}")
    lines += [
        f"Run: {one_line(document.get('run', ''))}",
        f"Finding: {one_line(finding.get('id', ''))}; delivery {document['delivery']} ({document.get('event', '')})",
    ]
    message.set_content("\n".join(lines) + "\n", cte="quoted-printable")
    return message


def send_mail(settings: dict[str, Any], document: dict[str, Any]) -> str:
    """Makes one attempt; returns the server's answer as text."""
    host, mode, timeout = settings["host"], settings["tls"], float(settings["timeout_s"])
    password = secret(settings, "password")
    if mode == "none" and (password is not None or host not in _LOOPBACK):
        raise Refused('tls = "none" is for a server on this machine, without a password')
    message = compose(settings, document)
    context = None if mode == "none" else tls(settings)
    try:
        if mode == "tls":
            client: smtplib.SMTP = smtplib.SMTP_SSL(host, settings["port"], timeout=timeout, context=context)
        else:
            client = smtplib.SMTP(host, settings["port"], timeout=timeout)
        with client:
            if mode == "starttls":
                client.starttls(context=context)  # fails if the server does not offer it
            if password is not None:
                _log_in(client, settings["user"], password)
            left = client.send_message(message, from_addr=settings["from"], to_addrs=settings["to"])
    except ssl.SSLCertVerificationError as error:
        raise Refused(why(error)) from None
    except smtplib.SMTPNotSupportedError:
        raise Refused("the server does not offer what is needed (STARTTLS, or a login)") from None
    except smtplib.SMTPAuthenticationError as error:
        raise Refused(f"SMTP {error.smtp_code}: the login is refused") from None
    except smtplib.SMTPRecipientsRefused as error:
        codes = [code for code, _ in error.recipients.values()]
        _again_or_refused(min(codes, default=550), "the recipients are refused")
    except smtplib.SMTPResponseException as error:
        _again_or_refused(error.smtp_code, "the mail is refused")
    except (smtplib.SMTPException, OSError) as error:
        raise Again(why(error)) from None
    return "accepted" if not left else f"accepted, but for {len(left)} of {len(settings['to'])} recipients"


def _log_in(client: smtplib.SMTP, user: str, password: str) -> None:
    try:
        client.login(user, password)
    except (
        smtplib.SMTPServerDisconnected
    ):  # not retried: many servers lock an account after some wrong passwords
        raise Refused("the server hung up at the login") from None


def _again_or_refused(code: int, text: str) -> None:
    if 400 <= code < 500:
        raise Again(f"SMTP {code}: {text}")
    raise Refused(f"SMTP {code}: {text}")


# Attempts ----------------------------------------------------------------------------------------------------------


def say(attempt: int, ok: bool, detail: str, final: bool) -> None:
    """Prints one line for the supervisor, which may no longer exist."""
    try:
        line = json.dumps({"attempt": attempt, "ok": ok, "detail": detail, "final": final})
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except (OSError, ValueError):
        pass


def deliver(kind: str, settings: dict[str, Any], document: dict[str, Any], until: float) -> bool:
    """Tries until the message is delivered or refused, or time or attempts are used up."""
    send = {"webhook": send_webhook, "mail": send_mail}[kind]
    attempts, pause = int(settings["attempts"]), float(settings["backoff_s"])
    for attempt in range(1, attempts + 1):
        try:
            say(attempt, True, send(settings, document), True)
            return True
        except Refused as error:
            say(attempt, False, str(error), True)
            return False
        except Again as error:
            wait = error.wait_s if error.wait_s is not None else pause * random.uniform(0.5, 1.0)
            final = attempt == attempts or time.monotonic() + wait >= until
            say(attempt, False, str(error), final)
            if final:
                return False
            time.sleep(wait)
            pause *= 2
        except Exception as error:  # a bug here is reported like any other failure
            say(attempt, False, f"internal error: {type(error).__name__}", True)
            return False
    return False


def main() -> int:
    """Reads the order from standard input; returns the exit code."""
    try:
        order = json.loads(sys.stdin.buffer.read(_MAX_INPUT))
        kind, settings, document = order["kind"], order["settings"], order["document"]
        give_up = min(max(float(settings["give_up_s"]), 1.0), 3600.0)
        # Socket time-outs apply to each read, so a server that sends a byte now and then is cut off here.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(give_up) + 2)
        return 0 if deliver(kind, settings, document, time.monotonic() + give_up) else 1
    except Exception as error:
        say(1, False, f"internal error: {type(error).__name__}", True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
