"""The policies of `deploy/policies`: each role does what it is for, and is refused everything else."""

from __future__ import annotations

import json
import secrets
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from bucket_copies import contents
from luff.remote import _prune
from luff.remote._commits import Ledger
from luff.remote._errors import Absent, Refused
from luff.remote._files import head_key
from luff.remote._head import MAX_HEAD
from luff.remote._recipients import new_key_file
from luff.remote._requests import put_request
from luff.remote._run_store import reading
from luff.remote._spool import Cache, Spool
from luff.remote._store import open_store
from luff.remote._upload_key import uploading
from luff.remote._uploader import Uploader
from s3_server import serve_s3

POLICIES = Path(__file__).parents[3] / "deploy" / "policies"
ROLES = ("trainer", "reader", "requester", "judge", "janitor")
BUCKET = "luff-roles"
REGION = "us-east-1"


def policy(role):
    """The policy as it is to be given, and as the server of the test understands it.

    That knows no conditions, and asks for the right to delete several objects at once on the bucket.
    """
    given = json.loads(
        (POLICIES / f"{role}.json").read_text().replace("BUCKET", BUCKET).replace("PREFIX", "team")
    )
    statements = [{k: v for k, v in one.items() if k != "Condition"} for one in given["Statement"]]
    for one in statements:
        if one["Action"] == "s3:DeleteObject":
            one["Resource"] = [*one["Resource"], f"arn:aws:s3:::{BUCKET}"]
    return given, {**given, "Statement": statements}


@pytest.fixture(scope="module")
def server():
    """The address of a server that obeys policies, and credentials by role."""
    pytest.importorskip("moto")
    pytest.importorskip("obstore")
    import boto3

    with serve_s3() as endpoint:
        admin = {"endpoint_url": endpoint, "region_name": REGION}
        admin |= {"aws_access_key_id": "any", "aws_secret_access_key": "any"}  # rights are not asked for yet
        boto3.client("s3", **admin).create_bucket(Bucket=BUCKET)
        iam, keys = boto3.client("iam", **admin), {}
        for role in ROLES:
            iam.create_user(UserName=role)
            iam.put_user_policy(UserName=role, PolicyName=role, PolicyDocument=json.dumps(policy(role)[1]))
            key = iam.create_access_key(UserName=role)["AccessKey"]
            keys[role] = key["AccessKeyId"], key["SecretAccessKey"]
        plain = {"Content-Type": "text/plain"}
        with urllib.request.urlopen(urllib.request.Request(f"{endpoint}/moto-api/reset-auth", b"0", plain)):
            pass
        yield endpoint, keys


@pytest.fixture
def store_of(server, monkeypatch):
    """The bucket as a role sees it; `prefix`: another tenant's."""
    endpoint, keys = server

    def open_as(role, prefix="team"):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        monkeypatch.setenv("AWS_REGION", REGION)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", keys[role][0])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", keys[role][1])
        return open_store(f"s3://{BUCKET}/{prefix}")

    return open_as


def upload(run, store):
    run.append("w0000/m-000001.lfm", b"rows" * 100)
    run.append("w0000/d-000001.lfd", secrets.token_bytes(9 << 20))
    uploader = Uploader(str(run.path), uploading(store, str(run.path), run.run_id))
    uploader.begin()
    uploader.flush()
    uploader.put_card(json.dumps({"card": 1, "run_id": run.run_id, "verdict": "ok"}).encode())
    uploader.flush("ended")
    uploader.end()


def part_of(run):
    return f"runs/{run.run_id}/w0000/d-000001.lfd/0-800000"


def fetched(store, run, folder):
    pool = ThreadPoolExecutor(4)
    own = reading(store, run.run_id)
    spool = Spool(str(folder), f"{store.url}/{run.run_id}", own, run.run_id, "/socket", Cache(1 << 30), pool)
    spool.open()
    return contents(spool)


def refused(action):
    with pytest.raises(
        Refused, match=r"no right to do this; see the credentials and the policy of the bucket"
    ):
        action()


def test_a_trainer_uploads_and_hears_requests_and_no_more(run, store_of):
    store = store_of("trainer")
    upload(run, store)
    put_request(store_of("requester"), run.run_id, b"{}")
    store = store_of("trainer")
    assert store.get(f"requests/{run.run_id}/000001.json", 100)[0] == b"{}"
    with pytest.raises(Absent):
        store.get(f"requests/{run.run_id}/000002.json", 100)
    refused(lambda: store.put_new(f"requests/{run.run_id}/000002.json", b"{}"))
    message = f"jobs/{'0' * 32}/000001.json"  # to the other hosts of the job
    store.put_new(message, b"{}")
    assert store.get(message, 100)[0] == b"{}"
    assert store.children(f"jobs/{'0' * 32}/") == ["000001.json"]
    refused(lambda: store.delete(message))
    refused(lambda: store.delete(part_of(run)))
    refused(lambda: store.put("pruning/x", b"{}"))
    other = store_of("trainer", "other")
    refused(lambda: other.put(f"cards/{run.run_id}", b"{}"))
    refused(lambda: other.get(f"cards/{run.run_id}", 100))


def test_a_trainer_may_encrypt(run, store_of, tmp_path, monkeypatch):
    pytest.importorskip("cryptography")
    monkeypatch.setenv("LUFF_BUCKET_ENCRYPT_TO", new_key_file(str(tmp_path / "secret.key")))
    upload(run, store_of("trainer"))
    monkeypatch.setenv("LUFF_BUCKET_KEY", str(tmp_path / "secret.key"))
    assert fetched(store_of("reader"), run, tmp_path / "copy") == run.files()


def test_a_reader_reads(run, store_of, tmp_path):
    upload(run, store_of("trainer"))
    store = store_of("reader")
    assert fetched(store, run, tmp_path / "copy") == run.files()
    assert run.run_id in [one.name for one in store.objects("cards/", 100)]
    for key in ("luff.json", f"live/{run.run_id[0]}/{run.run_id}/u0000", part_of(run), f"cards/{run.run_id}"):
        refused(lambda key=key: store.put(key, b"{}"))
        refused(lambda key=key: store.delete(key))
    refused(lambda: put_request(store, run.run_id, b"{}"))
    refused(lambda: store_of("reader", "other").get("luff.json", 100))


def test_a_requester_asks(run, store_of, tmp_path):
    upload(run, store_of("trainer"))
    store = store_of("requester")
    assert fetched(store, run, tmp_path / "copy") == run.files()
    assert [put_request(store, run.run_id, b'{"n": %d}' % n) for n in range(2)] == [1, 2]
    refused(lambda: store.put(f"live/{run.run_id[0]}/{run.run_id}/u0000", b"{}"))
    refused(lambda: store.put(f"cards/{run.run_id}", b"{}"))
    refused(lambda: store.delete(f"requests/{run.run_id}/000001.json"))


def test_a_judge_commits_and_changes_nothing_of_a_run(run, store_of, tmp_path):
    upload(run, store_of("trainer"))
    store = store_of("judge")
    assert fetched(store, run, tmp_path / "copy") == run.files()
    ledger = Ledger(store, run.run_id, "a" * 32)
    ledger.load()
    ledger.commit(['{"id": "f1"}'], 1, {}, lambda *_: None)
    ledger.done(1)
    store.put_new("judges/luff", b"{}")
    assert put_request(store, run.run_id, b"{}") == 1
    refused(lambda: store.put(head_key(run.run_id, 0), b"{}"))
    refused(lambda: store.put(part_of(run), b"x"))
    refused(lambda: store.put(f"cards/{run.run_id}", b"{}"))
    refused(lambda: store.delete(f"rules/luff/{run.run_id}/000001"))
    refused(lambda: store_of("judge", "other").put_new("judges/luff", b"{}"))
    reader = store_of("reader")
    refused(lambda: Ledger(reader, run.run_id, "b" * 32).commit(['{"id": "f2"}'], 1, {}, lambda *_: None))


@pytest.mark.parametrize("keep", ["metadata", "nothing"])
def test_a_janitor_prunes_and_reads_no_more_than_heads_and_cards(run, store_of, keep):
    upload(run, store_of("trainer"))
    store = store_of("janitor")
    assert store.get(head_key(run.run_id, 0), MAX_HEAD) is not None  # with the newest of the run
    refused(lambda: store.get_range(part_of(run), 0, 10))
    refused(lambda: store.get(f"runs/{run.run_id}/run.json", 1 << 20))
    refused(lambda: store.put(part_of(run), b"x"))
    refused(lambda: store.put("luff.json", b"x"))
    done = {one.run_id: one for one in _prune.prune(store, keep, -3600 * 10**9, False)}
    assert done[run.run_id].problem == ""
    left = [one.name for one in store.objects(f"runs/{run.run_id}/", 100)]
    assert [name for name in left if ".lfd/" in name] == []
    assert left == [] or keep == "metadata"
    assert json.loads(store.get(f"cards/{run.run_id}", 8192)[0])["pruned"] == {"metadata": "payload"}.get(
        keep, "all"
    )


def test_an_upload_that_may_not_put_says_so_once_and_what_to_look_at(run, store_of):
    store = store_of("reader")
    refused(lambda: upload(run, store))


@pytest.mark.parametrize("role", ROLES)
def test_policies_name_the_prefix_and_lists_are_bound_to_it(role):
    given, _ = policy(role)
    for one in given["Statement"]:
        resources = one["Resource"] if isinstance(one["Resource"], list) else [one["Resource"]]
        if one["Action"] == "s3:ListBucket":
            assert resources == [f"arn:aws:s3:::{BUCKET}"]
            assert all(p.startswith("team/") for p in one["Condition"]["StringLikeIfExists"]["s3:prefix"])
        else:
            assert all(resource.startswith(f"arn:aws:s3:::{BUCKET}/team/") for resource in resources)
        if one["Action"] == "s3:DeleteObject":  # cards stay; the server cannot tell which objects are deleted
            assert role == "janitor"
            kept = [f"arn:aws:s3:::{BUCKET}/team/{name}" for name in ("cards/*", "luff.json", "*")]
            assert not set(kept) & set(resources)
    assert not any("*" in action for one in given["Statement"] for action in one["Action"])
