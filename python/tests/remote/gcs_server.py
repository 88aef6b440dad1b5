"""Google Cloud Storage on loopback, as far as clients of its XML interface use it: objects, ranges, lists, conditions.

A double of ours, after Google's reference. Emulators that can be installed know conditions on a generation in the JSON
interface only, which obstore does not speak: Luff refuses them, as a store without conditional puts.
"""

from __future__ import annotations

import base64
import hashlib
import re
import threading
from contextlib import contextmanager
from datetime import datetime, timezone
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

OWNER, STRANGER = "canary-token-77c1", "a-token-without-rights"
_PAGE = 1000
_FIRST_GENERATION = 1_790_000_000_000_000


class Stored(NamedTuple):
    data: bytes
    generation: int
    time: datetime

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.data).hexdigest()}"'


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    lock = threading.Lock()
    buckets: dict[str, dict[str, Stored]]
    generation = _FIRST_GENERATION
    page = _PAGE

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def fail(self, status: int, code: str) -> None:
        self.answer(status, f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>".encode())

    def do(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token == STRANGER:
            return self.fail(403, "AccessDenied")
        if token != OWNER:
            return self.fail(401, "AuthenticationRequired")
        place = urlsplit(self.path)
        bucket, _, key = unquote(place.path).lstrip("/").partition("/")
        with self.lock:
            objects = self.buckets.get(bucket)
            if self.command == "PUT" and not key:
                self.buckets.setdefault(bucket, {})
                return self.answer(200)
            if objects is None:
                return self.fail(404, "NoSuchBucket")
            if not key:
                return self.list(objects, {name: values[0] for name, values in parse_qs(place.query).items()})
            if self.command == "PUT":
                return self.put(objects, key, body)
            found = objects.get(key)
            if found is None:
                return self.fail(404, "NoSuchKey")
            if self.command == "DELETE":
                del objects[key]
                return self.answer(204)
        return self.get(found)

    do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = do

    def put(self, objects: dict[str, Stored], key: str, body: bytes) -> None:
        wanted = self.headers.get("x-goog-if-generation-match")
        now = objects[key].generation if key in objects else 0
        if wanted is not None and int(wanted) != now:
            return self.fail(412, "PreconditionFailed")
        type(self).generation += 1
        stored = objects[key] = Stored(body, self.generation, datetime.now(timezone.utc))
        return self.answer(200, ETag=stored.etag, x_goog_generation=str(stored.generation))

    def get(self, found: Stored) -> None:
        headers = {
            "ETag": found.etag,
            "x_goog_generation": str(found.generation),
            "Last_Modified": format_datetime(found.time, usegmt=True),
        }
        if found.etag in self.headers.get("If-None-Match", ""):
            return self.answer(304, **headers)
        wanted = re.fullmatch(r"bytes=([0-9]+)-([0-9]+)", self.headers.get("Range", ""))
        if wanted is None:
            return self.answer(200, found.data, **headers)
        begin, end = int(wanted[1]), min(int(wanted[2]) + 1, len(found.data))
        if begin >= end:
            return self.fail(416, "InvalidRange")
        headers["Content_Range"] = f"bytes {begin}-{end - 1}/{len(found.data)}"
        return self.answer(206, found.data[begin:end], **headers)

    def list(self, objects: dict[str, Stored], query: dict[str, str]) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = base64.b64decode(query.get("continuation-token", "")).decode() or query.get("start-after", "")
        rows: dict[str, Stored | None] = {}  # None: a common prefix
        for key in sorted(objects):
            if key.startswith(prefix):
                inner, cut, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
                rows[prefix + inner + delimiter if cut else key] = None if cut else objects[key]
        names = [name for name in rows if name > after]
        most = min(self.page, int(query.get("max-keys", self.page)))
        text = ""
        for name in names[:most]:
            stored = rows[name]
            if stored is None:
                text += f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
                continue
            text += (
                f"<Contents><Key>{escape(name)}</Key><Generation>{stored.generation}</Generation>"
                f"<LastModified>{stored.time:%Y-%m-%dT%H:%M:%S.%f}Z</LastModified><ETag>{escape(stored.etag)}</ETag>"
                f"<Size>{len(stored.data)}</Size></Contents>"
            )
        if len(names) > most:
            token = base64.b64encode(names[most - 1].encode()).decode()
            text += f"<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>"
        else:
            text += "<IsTruncated>false</IsTruncated>"
        name_space = "http://doc.s3.amazonaws.com/2006-03-01"
        body = f"<?xml version='1.0'?><ListBucketResult xmlns='{name_space}'>{text}</ListBucketResult>"
        return self.answer(200, body.encode(), Content_Type="application/xml")


@contextmanager
def serve_gcs():
    """A server for a block, as its address. Buckets are made by putting them."""
    handler = type("Handler", (Handler,), {"buckets": {}, "lock": threading.Lock()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
