"""Encryption by the store: what its own variables say reaches each object, and `[bucket]` of luff.toml sets them."""

from __future__ import annotations

import base64
import sys
import threading
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from bucket_copies import copy_of
from luff.remote._store import open_store
from luff.remote._uploader import Uploader


def heads(s3, s3_endpoint, **more):
    import boto3

    bucket, prefix = s3.removeprefix("s3://").split("/")
    client = boto3.client("s3", endpoint_url=s3_endpoint)
    for one in client.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/")["Contents"]:
        yield one["Key"], client.head_object(Bucket=bucket, Key=one["Key"], **more)


def upload(run, url):
    run.append("w0000/m-000001.lfm", b"rows" * 100)
    run.append("w0000/d-000001.lfd", b"values" * 2_000_000)
    store = open_store(url)
    uploader = Uploader(str(run.path), store)
    uploader.begin()
    uploader.flush("ended")
    uploader.end()
    return store


def test_a_key_of_the_stores_service_encrypts_each_object(run, s3, s3_endpoint, monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_SERVER_SIDE_ENCRYPTION", "aws:kms")
    monkeypatch.setenv("AWS_SSE_KMS_KEY_ID", "arn:aws:kms:us-east-1:1:key/luff")
    monkeypatch.setenv("AWS_SSE_BUCKET_KEY_ENABLED", "true")
    store = upload(run, s3)
    found = list(heads(s3, s3_endpoint))
    assert len(found) >= 5
    for key, head in found:
        assert head["ServerSideEncryption"] == "aws:kms", key
        assert head["SSEKMSKeyId"] == "arn:aws:kms:us-east-1:1:key/luff", key
        assert head["BucketKeyEnabled"] is True, key
    assert copy_of(store, run, tmp_path / "copy")[1] == run.files()


def test_luff_toml_says_how_the_store_encrypts(luff, s3, s3_endpoint, tmp_path, with_findings):
    config = tmp_path / "luff.toml"
    config.write_text('[bucket]\nsse = "aws:kms"\nsse_kms_key_id = "luff"\nsse_bucket_key_enabled = true\n')
    luff("sync", with_findings, s3, "--config", config)
    assert {head.get("SSEKMSKeyId") for _, head in heads(s3, s3_endpoint)} == {"luff"}
    (tmp_path / "train.py").write_text(
        "import torch\nm = torch.nn.Linear(2, 1)\no = torch.optim.SGD(m.parameters(), 0.1)\n"
        "for _ in range(5):\n    o.zero_grad()\n    m(torch.ones(3, 2)).sum().backward()\n    o.step()\n"
    )  # fmt: skip
    config.write_text('[bucket]\nsse = "AES256"\n')
    luff(
        "run",
        "--run",
        tmp_path / "run",
        "--config",
        config,
        "--sync",
        f"{s3}-2",
        "--",
        sys.executable,
        tmp_path / "train.py",
    )
    assert {head.get("ServerSideEncryption") for _, head in heads(f"{s3}-2", s3_endpoint)} == {"AES256"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('sse = "rot13"', "'sse' in [bucket] is none of AES256, aws:kms, aws:kms:dsse: FILE, line 2"),
        ("sse_kms_key_id = 3", "'sse_kms_key_id' in [bucket] is no id or ARN of a key: FILE, line 2"),
        (
            'sse_bucket_key_enabled = "yes"',
            "'sse_bucket_key_enabled' in [bucket] is not true or false: FILE, line 2",
        ),
        ("encrypt_to = []", "'encrypt_to' in [bucket] is no list of 1 to 16 recipients"),
        ('encrypt_to = "x25519:a"', "'encrypt_to' in [bucket] is no list of 1 to 16 recipients"),
        ('encrypt_to = ["age1"]', "is x25519:KEY or command:/PATH/OF/PROGRAM, without commas: FILE, line 2"),
        (
            'encrypt_to = ["command:/a,b"]',
            "is x25519:KEY or command:/PATH/OF/PROGRAM, without commas: FILE, line 2",
        ),
        ('sse_kms_key_id = "luff"', "'sse_kms_key_id' in [bucket] needs sse = \"aws:kms\": FILE, line 2"),
        (
            'sse_bucket_key_enabled = true\nsse = "AES256"',
            "'sse_bucket_key_enabled' in [bucket] needs sse = \"aws:kms\": FILE, line 2",
        ),
        ("sse_kms = 1", "unknown key 'sse_kms' in [bucket]"),
    ],
)
def test_mistakes_are_named(luff, tmp_path, text, said):
    config = tmp_path / "luff.toml"
    config.write_text(f"[bucket]\n{text}\n")
    (tmp_path / "run").mkdir()
    done = luff("run", "--config", config, "--", "true", expect=2)
    assert said.replace("FILE", str(config)) in done.stderr


def test_a_store_that_knows_no_sse_is_named_before_anything_is_uploaded(luff, run, tmp_path):
    config = tmp_path / "luff.toml"
    config.write_text('[bucket]\nsse = "AES256"\n')
    bucket = f"file://{tmp_path}/bucket"
    said = "'sse' in [bucket] is for s3://BUCKET"
    words = ("--run", tmp_path / "new", "--config", config, "--sync", bucket, "--", "touch", tmp_path / "ran")
    assert said in luff("run", *words, expect=2).stderr
    assert said in luff("sync", run.path, bucket, "--config", config, expect=None).stderr
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "bucket").exists()


def test_a_customers_key_comes_from_the_environment(monkeypatch):
    """The server of the tests keeps no such key, so the requests are looked at."""
    pytest.importorskip("obstore")
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self):
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            seen.append((self.command, dict(self.headers.items())))
            self.send_response(200)
            for name, value in {
                "ETag": '"x"',
                "Content-Length": "0",
                "Last-Modified": formatdate(usegmt=True),
            }.items():
                self.send_header(name, value)
            self.end_headers()

        do_GET = do_PUT = answer

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        key = base64.b64encode(b"k" * 32).decode()
        environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_address[1]}", "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b", "AWS_SERVER_SIDE_ENCRYPTION": "sse-c", "AWS_SSE_CUSTOMER_KEY_BASE64": key,
        }  # fmt: skip
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        store = open_store("s3://bucket/team")
        store.put("object", b"data")
        store.get("object", 100)
        server.shutdown()
    assert [method for method, _ in seen] == ["PUT", "GET"]
    for _, headers in seen:
        assert headers["x-amz-server-side-encryption-customer-algorithm"] == "AES256"
        assert headers["x-amz-server-side-encryption-customer-key"] == key
