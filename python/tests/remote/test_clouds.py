"""Google's and Azure's storage: an upload that is taken over, ranges, conditions, lists, races, and what goes wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from bucket_copies import copy_of
from gcs_server import STRANGER
from luff.remote import _client, _store
from luff.remote._errors import Absent, Conflict, Refused
from luff.remote._store import open_store
from luff.remote._uploader import Fenced, Uploader


@pytest.fixture(params=["gs", "az"])
def cloud(request):
    """The URL of a bucket of each of the two."""
    return request.getfixturevalue(request.param)


def test_a_run_goes_up_is_taken_over_and_comes_back(cloud, run, tmp_path):
    run.append("w0000/m-000001.lfm", b"rows" * 100)
    run.append("w0000/d-000001.lfd", bytes(range(256)) * 40_000)  # more than a window
    store = open_store(cloud)
    first = Uploader(str(run.path), store)
    first.begin()
    first.flush()
    second = Uploader(str(run.path), open_store(cloud))
    second.begin()
    run.append("w0000/m-000001.lfm", b"more")
    with pytest.raises(Fenced):
        first.flush()
    second.flush("ended")
    second.end()
    spool, copy = copy_of(store, run, tmp_path / "copy")
    assert copy == run.files()
    assert spool.over
    keys = [one.name for one in store.objects(f"runs/{run.run_id}/", 100)]
    payload = next(key for key in keys if "d-000001" in key)
    assert store.get_range(f"runs/{run.run_id}/{payload}", 255, 258) == b"\xff\x00\x01"
    # Conditions, as uploaders and commits use them.
    etag = store.put_new("object", b"one")
    assert store.get("object", 10, etag) is None
    with pytest.raises(Conflict):
        store.put_new("object", b"two")
    newer = store.put_if("object", b"three", etag)
    with pytest.raises(Conflict):
        store.put_if("object", b"four", etag)
    found = store.get("object", 10, etag)
    assert found == (b"three", newer)
    store.delete_all(["object", "nothing"])
    with pytest.raises(Absent):
        store.get("object", 10)
    assert store.children(f"live/{run.run_id[0]}/") == [run.run_id]


@pytest.mark.parametrize("obeys", [True, False])
def test_etags_without_quotes_are_believed_once_a_wrong_one_was_refused(s3, run, monkeypatch, obeys):
    """A server that refuses each etag in quotes: Ceph's, and one that ignores those without."""
    put = _store.RemoteStore._put

    def as_server(self, key, data, mode):
        if isinstance(mode, dict):
            if mode["e_tag"].startswith('"'):
                raise Conflict("quotes")
            mode = {"e_tag": f'"{mode["e_tag"]}"'} if obeys else "overwrite"
        return put(self, key, data, mode)

    monkeypatch.setattr(_store.RemoteStore, "_put", as_server)
    run.append("w0000/m-000001.lfm", b"rows")
    uploader = Uploader(str(run.path), open_store(s3))
    uploader.begin()
    if not obeys:
        with pytest.raises(Refused, match="does not obey them"):
            uploader.flush()
        return
    uploader.flush()
    store = open_store(s3)
    etag = store.put_new("object", b"one")
    newer = store.put_if("object", b"two", etag)
    for stale in (store, open_store(s3)):
        with pytest.raises(Conflict):
            stale.put_if("object", b"three", etag)
    assert store.get("object", 10) == (b"two", newer)


# ---- On every kind of store: `base` ----


def test_of_many_that_put_at_once_one_wins(base):
    """moto takes one request after the other. Commits and heads rest on this."""
    stores = [open_store(base) for _ in range(4)]
    stores[0].put("warm", b"")

    def attempt(what):
        try:
            what()
        except Conflict:
            return 0
        return 1

    with ThreadPoolExecutor(4) as pool:

        def winner(put, key, data):
            """Has all put at once. Returns which one has won."""
            tries = [pool.submit(attempt, lambda i=i: put(stores[i], key, data[i])) for i in range(4)]
            won = [one.result() for one in tries]
            assert sum(won) == 1, key
            return won.index(1)

        for turn in range(10):
            key, data = f"race/{turn}", [bytes([i]) * 100 for i in range(4)]
            first = winner(lambda store, key, data: store.put_new(key, data), key, data)
            found, etag = stores[0].get(key, 100)
            assert found == data[first]
            data = [bytes([i]) * 50 for i in range(4)]  # an etag may be a hash of the content
            second = winner(lambda store, key, data, etag=etag: store.put_if(key, data, etag), key, data)
            assert stores[0].get(key, 100)[0] == data[second]


@pytest.mark.thorough
def test_lists_of_more_than_a_page(base):
    store = open_store(base)
    names = [f"{i:05}" for i in range(2_300)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: store.put(f"cards/{name}", name.encode()), names))
    listed = store.objects("cards/", 10_000)
    assert [one.name for one in listed] == names
    assert {one.size for one in listed} == {5}
    assert len({one.etag for one in listed}) == len(names)
    assert len(store.objects("cards/", 1_500)) == 1_500
    store.delete_all([f"cards/{name}" for name in names])
    assert store.objects("cards/", 10) == []


def test_names_with_signs_of_urls(base):
    """Keys that no Luff makes: a list of a prefix of others must not go wrong over them."""
    store = open_store(base)
    for name in ("a b", "a%20b", "a+b&c", "\u00e4"):
        store.put(f"odd/{name}", name.encode())
    listed = [one.name for one in store.objects("odd/", 10)]
    assert sorted(listed) == sorted(store.children("odd/"))
    assert len(listed) == 4


# ---- What goes wrong ----


def sync(*words):
    return subprocess.run(
        [sys.executable, "-m", "luff._verbs.sync", *map(str, words)],
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip


def test_wrong_credentials_are_said_with_the_remedy(gs, run, monkeypatch):
    for token in (STRANGER, "unknown"):
        monkeypatch.setenv("GOOGLE_BEARER_TOKEN", token)
        done = sync(run.path, gs)
        assert done.returncode == 5, done.stderr
        assert done.stderr.count("no right to do this; see the credentials") == 1
        assert token not in done.stderr
    with pytest.raises(Refused, match="see the credentials"):
        open_store(gs).get("luff.json", 10)


@pytest.mark.thorough
def test_a_wrong_signature_is_said_with_the_remedy(rgw, run, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
    done = sync(run.path, rgw)
    assert done.returncode == 5, done.stderr
    assert done.stderr.count("no right to do this; see the credentials") == 1
    assert "another-secret" not in done.stderr


def test_a_wrong_key_of_azure_is_said_with_the_remedy(az, run, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "AAAA")
    done = sync(run.path, az)
    assert done.returncode == 5, done.stderr
    assert done.stderr.count("no right to do this; see the credentials") == 1


def test_no_such_bucket_is_said_for_good(cloud, run):
    scheme = cloud.split(":")[0]
    done = sync(run.path, f"{scheme}://luff-nowhere-1/x")
    assert done.returncode == 5, done.stderr
    assert done.stderr.count("no such bucket") == 1


def test_an_account_that_nobody_named_is_said_with_the_variable(run, monkeypatch):
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_USE_EMULATOR"):
        monkeypatch.delenv(name, raising=False)
    for words in ([], ["--try"]):  # as `luff run --sync` asks before the job begins
        done = sync(*words, run.path, "az://container/team")
        assert done.returncode == 2, done.stderr
        assert "set AZURE_STORAGE_ACCOUNT_NAME" in done.stderr


SECRET = "canary-7c1d"


@pytest.mark.parametrize(
    ("url", "variables", "named"),
    [
        (
            "gs://b/t",
            {"GOOGLE_APPLICATION_CREDENTIALS": f"/nowhere/{SECRET}"},
            "GOOGLE_APPLICATION_CREDENTIALS",
        ),
        ("gs://b/t", {"GOOGLE_SERVICE_ACCOUNT_KEY": f'{{"type": "{SECRET}"}}'}, "GOOGLE_SERVICE_ACCOUNT_KEY"),
        ("gs://b/t", {"GOOGLE_BEARER_TOKEN": f"{SECRET}\n"}, "GOOGLE_BEARER_TOKEN has a line break"),
        ("az://b/t", {"AZURE_STORAGE_ACCOUNT_KEY": f"_{SECRET}"}, "AZURE_STORAGE_ACCOUNT_KEY"),
        ("az://b/t", {"AZURE_STORAGE_SAS_TOKEN": f"%%%{SECRET}"}, "AZURE_STORAGE_SAS_TOKEN"),
        ("s3://b/t", {"AWS_ACCESS_KEY_ID": f"{SECRET}\n"}, "AWS_ACCESS_KEY_ID has a line break"),
        ("s3://b/t", {"AWS_SESSION_TOKEN": f"{SECRET}\r\n"}, "AWS_SESSION_TOKEN has a line break"),
    ],
)
def test_credentials_that_cannot_be_used_are_said_by_their_variable(run, monkeypatch, url, variables, named):
    pytest.importorskip("obstore")
    for name in os.environ:
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_")):
            monkeypatch.delenv(name)
    for name, value in ({"AZURE_STORAGE_ACCOUNT_NAME": "luffteam"} | variables).items():
        monkeypatch.setenv(name, value)
    for words in ([], ["--try"]):  # as `luff run --sync` asks before the job begins
        done = sync(*words, run.path, url)
        assert done.returncode == 5, done.stderr
        assert named in done.stderr
        assert "no store has this URL" not in done.stderr
        assert SECRET not in done.stderr
        assert "symbol" not in done.stderr  # a byte of the key
        assert "Traceback" not in done.stderr


def test_a_panic_of_obstore_is_an_error_with_a_remedy(s3, monkeypatch):
    store = open_store(s3)

    def request():
        raise type("PanicException", (BaseException,), {})(SECRET)

    with pytest.raises(Refused, match="line breaks") as told:
        store._ask("key", request)
    assert SECRET not in str(told.value)
    with pytest.raises(KeyboardInterrupt):
        store._ask("key", lambda: (_ for _ in ()).throw(KeyboardInterrupt))


def test_two_emulators_have_copies_of_their_own(monkeypatch):
    roots = set()
    for port in (1, 2):
        monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", f"http://127.0.0.1:{port}")
        roots.add(_client.fetcher_root())
    assert len(roots) == 2


def test_without_tls_only_where_the_address_says_so(monkeypatch):
    """A token does not travel in the open because of a variable that is for another store."""
    monkeypatch.setenv("GOOGLE_BASE_URL", "http://127.0.0.1:1")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    monkeypatch.delenv("AZURE_STORAGE_USE_EMULATOR", raising=False)
    assert [_store._clouds.configuration(f"{scheme}://b/t")[1] for scheme in ("s3", "gs", "az")] == [
        False,
        True,
        False,
    ]
