"""Encrypted runs: nothing of a run is readable in the bucket, and with its key everything is as without encryption."""

from __future__ import annotations

import base64
import errno
import json
import os
import random
import secrets
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from luff._verbs import cards
from luff.remote import _recipients, _run_store, _uploader
from luff.remote._errors import Absent, Refused, Unreachable
from luff.remote._files import MAX_CARD, card_key
from luff.remote._recipients import (
    CommandFailed,
    get_key,
    identities,
    new_key_file,
    parse_recipients,
    put_check,
    put_wrapped,
    read_key_file,
    wrap_key,
)
from luff.remote._run_store import open_card, reading, seal_card
from luff.remote._seal import SEGMENT, BadSeal, is_sealed, seal, sealed_size, unseal
from luff.remote._store import FolderStore, open_store
from sealed_runs import CANARY, every_object, fetched, fill, is_told, upload

pytest.importorskip("cryptography")

FIRST = SEGMENT - 40 - 16
BORDERS = (0, 1, FIRST - 1, FIRST, FIRST + 1, FIRST + SEGMENT - 16, FIRST + SEGMENT - 15, 3 * SEGMENT)
START = Path(_uploader.__file__).parents[1] / "_verbs" / "_start.py"


def put_key(store, run_id, key, recipients):
    wrapped = wrap_key(store, run_id, key, recipients)
    put_check(store, run_id, key)
    put_wrapped(store, wrapped)


def test_an_object_comes_back_and_its_size_is_known_before():
    for size in BORDERS:
        key, data = secrets.token_bytes(32), secrets.token_bytes(size)
        sealed = seal(key, "runs/x/part", data)
        assert len(sealed) == sealed_size(size)
        assert unseal(key, "runs/x/part", sealed) == data
        assert seal(key, "runs/x/part", data) != sealed  # nobody sees that two are the same


@pytest.mark.parametrize("size", BORDERS)
def test_what_was_changed_cut_off_or_moved_is_not_opened(size):
    key, draw = secrets.token_bytes(32), random.Random(size)
    sealed = seal(key, "runs/x/part", secrets.token_bytes(size))
    segments = [sealed[:at] for at in range(SEGMENT, len(sealed), SEGMENT)]  # whole segments, but not all
    turned = [bytearray(sealed) for _ in range(20)]
    for one in turned:
        one[draw.randrange(len(one))] ^= 1 << draw.randrange(8)
    for bad in (
        b"",
        sealed[:40],
        sealed[:-1],
        sealed + b"x",
        sealed + sealed[-16:],
        *segments,
        *map(bytes, turned),
    ):
        with pytest.raises(BadSeal):
            unseal(key, "runs/x/part", bad)
    for other in ("runs/y/part", "runs/x/par", ""):
        with pytest.raises(BadSeal):
            unseal(key, other, sealed)
    with pytest.raises(BadSeal):
        unseal(secrets.token_bytes(32), "runs/x/part", sealed)


def test_the_library_of_tink_opens_ours_and_we_open_its(tmp_path):
    pytest.importorskip("tink")
    from io import BytesIO

    import tink
    from tink import cleartext_keyset_handle, streaming_aead
    from tink.proto import aes_gcm_hkdf_streaming_pb2, common_pb2, tink_pb2

    streaming_aead.register()
    for size in BORDERS:
        key, data = secrets.token_bytes(32), secrets.token_bytes(size)
        params = aes_gcm_hkdf_streaming_pb2.AesGcmHkdfStreamingParams(
            ciphertext_segment_size=SEGMENT, derived_key_size=32, hkdf_hash_type=common_pb2.SHA256
        )
        made = aes_gcm_hkdf_streaming_pb2.AesGcmHkdfStreamingKey(version=0, params=params, key_value=key)
        keyset = tink_pb2.Keyset(primary_key_id=1)
        keyset.key.add(
            key_data=tink_pb2.KeyData(
                type_url="type.googleapis.com/google.crypto.tink.AesGcmHkdfStreamingKey",
                value=made.SerializeToString(),
                key_material_type=tink_pb2.KeyData.SYMMETRIC,
            ),
            status=tink_pb2.ENABLED,
            key_id=1,
            output_prefix_type=tink_pb2.RAW,
        )
        handle = cleartext_keyset_handle.read(tink.BinaryKeysetReader(keyset.SerializeToString()))
        primitive = handle.primitive(streaming_aead.StreamingAead)
        theirs = primitive.new_decrypting_stream(BytesIO(seal(key, "runs/x/part", data)), b"runs/x/part")
        assert theirs.read() == data
        kept = tmp_path / f"{size}"
        with primitive.new_encrypting_stream(kept.open("wb"), b"runs/x/part") as stream:
            stream.write(data)
        assert unseal(key, "runs/x/part", kept.read_bytes()) == data
        with pytest.raises(tink.TinkError):
            primitive.new_decrypting_stream(BytesIO(seal(key, "runs/y/part", data)), b"runs/x/part").read()


def test_a_range_is_opened_by_its_segments(tmp_path):
    inner = open_store(f"file://{tmp_path}/bucket")
    run_id, data, draw = "a" * 32, secrets.token_bytes(5 * SEGMENT + 77), random.Random(1)
    store = _run_store.RunStore(inner, run_id, lambda: b"k" * 32, sealed=True)
    name = f"runs/{run_id}/w0000/d-000001.lfd/800000-{0x800000 + len(data):x}"
    store.put(name, data)
    for _ in range(200):
        begin = draw.randrange(len(data))
        end = draw.randrange(begin, len(data) + 1)
        assert store.get_range(name, begin, end) == data[begin:end]
    before = inner.received
    store.get_range(name, 3 * SEGMENT, 3 * SEGMENT + 10)
    assert inner.received - before <= SEGMENT + 40
    with pytest.raises(Refused, match="shorter"):
        store.get_range(name, 0, len(data) + 1)
    store.put(f"runs/{run_id}/other", b"packed")  # whose size its name does not say
    assert store.get_range(f"runs/{run_id}/other", 1, 4) == b"ack"
    writer = _run_store.RunStore(inner, run_id, lambda: b"k" * 32, sealed=True)
    writer.put(name, data)  # by an uploader after a crash: the same bytes, another header
    assert store.get_range(name, 3 * SEGMENT, 3 * SEGMENT + 10) == data[3 * SEGMENT :][:10]
    inner.put(name, inner.get(name, 1 << 24)[0][: 3 * SEGMENT])
    with pytest.raises(Refused):
        store.get_range(name, 4 * SEGMENT, 4 * SEGMENT + 1)


@pytest.fixture
def with_key(key_file, monkeypatch):
    monkeypatch.setenv("LUFF_BUCKET_KEY", str(key_file))
    return key_file


def test_nothing_of_a_run_is_readable_and_with_the_key_it_is_the_run(run, store, tmp_path, with_key):
    fill(run)
    uploader = upload(run, store)
    card = {"card": 1, "run_id": run.run_id, "name": CANARY.decode(), "verdict": "ok", "took_s": 1.5}
    uploader.put_card(json.dumps({**card, "findings": {"count": 2, "rules": [CANARY.decode()]}}).encode())
    objects = every_object(store)
    assert len(objects) >= 8
    key = (run.path / "sync" / "key").read_bytes()
    assert stat.S_IMODE((run.path / "sync" / "key").stat().st_mode) == 0o600
    for name, data in objects.items():
        assert not is_told(data[:200_000]), name
        assert key not in data
        assert base64.b64encode(key) not in data
        assert is_sealed(data) == name.startswith(("runs/", "live/")), name
    assert fetched(store, run, tmp_path / "copy") == run.files()


def test_without_its_key_nobody_reads_a_run(run, store, tmp_path, key_file, monkeypatch):
    fill(run)
    upload(run, store)
    with pytest.raises(Refused, match=r"the run is encrypted, and no key here opens it; .*LUFF_BUCKET_KEY"):
        fetched(store, run, tmp_path / "copy")
    other = tmp_path / "other.key"
    new_key_file(str(other))
    monkeypatch.setenv("LUFF_BUCKET_KEY", str(other))
    with pytest.raises(Refused, match="no key here opens it"):
        fetched(store, run, tmp_path / "copy")
    monkeypatch.setenv("LUFF_BUCKET_KEY", f"{other}:{key_file}")
    assert fetched(store, run, tmp_path / "copy") == run.files()


def test_objects_that_were_moved_or_replaced_are_refused(run, store, tmp_path, with_key):
    fill(run)
    upload(run, store)
    objects = every_object(store)
    part = next(name for name in objects if "w0000/d-000001.lfd/0-" in name)
    head = next(name for name in objects if name.startswith("live/"))
    end = next(name for name in objects if name.endswith("/end"))
    for at, (name, data) in enumerate(
        {
            part: objects[part][:-1000] + bytes(1000),
            head: objects[end],  # both are heads of this run, by their content
        }.items()
    ):
        store.put(name, data)
        with pytest.raises(Refused, match=r"encrypted|not one"):
            fetched(store, run, tmp_path / f"copy{at}")
        store.put(name, objects[name])
    store.put(f"runs/{run.run_id}/run.json", b'{"run_id": "of nobody"}')  # the head has what is read of it
    assert fetched(store, run, tmp_path / "copy") == run.files()


COMMAND = """
import sys
data = sys.stdin.buffer.read()
if sys.argv[1] == "fails":
    sys.exit("the service says no")
assert sys.argv[1] in ("wrap", "unwrap")
sys.stdout.buffer.write(bytes(b ^ 0x5A for b in data))
"""


def test_a_command_may_wrap_the_key(run, store, tmp_path, monkeypatch):
    program = tmp_path / "kms.py"
    program.write_text(COMMAND)
    monkeypatch.setenv("LUFF_BUCKET_ENCRYPT_TO", f"command:{sys.executable} {program}")
    fill(run)
    upload(run, store)
    with pytest.raises(Refused, match="LUFF_BUCKET_KEY_COMMAND"):
        fetched(store, run, tmp_path / "copy")
    monkeypatch.setenv("LUFF_BUCKET_KEY_COMMAND", f"{sys.executable} {program}")
    assert fetched(store, run, tmp_path / "copy") == run.files()
    monkeypatch.setenv("LUFF_BUCKET_KEY_COMMAND", f"{sys.executable} {program} fails")
    with pytest.raises(CommandFailed, match=r"exit code 1.*the service says no"):
        fetched(store, run, tmp_path / "copy2")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x25519:abc", "expected x25519:KEY"),
        ("age1qqqq", "expected x25519:KEY"),
        ("command:kms", "absolute path"),
        ("command:", "absolute path|expected x25519"),
        ("x25519:" + base64.b64encode(bytes(32)).decode(), "no public key"),
        (",".join(["x25519:" + base64.b64encode(b"k" * 32).decode()] * 17), "at most 16"),
    ],
)
def test_wrong_recipients_are_named(text, said, tmp_path):
    with pytest.raises(Refused, match=said):
        put_key(open_store(f"file://{tmp_path}/b"), "a" * 32, b"k" * 32, parse_recipients(text))


def test_keys_are_whole_and_readable_by_their_owner_only(tmp_path):
    path = tmp_path / "secret.key"
    public = new_key_file(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert base64.b64decode(public.removeprefix("x25519:")) == read_key_file(str(path)).public
    with pytest.raises(Refused, match="File exists"):
        new_key_file(str(path))
    path.chmod(0o640)
    with pytest.raises(Refused, match="chmod 600"):
        read_key_file(str(path))
    path.chmod(0o600)
    for text in ("", "[]", "{}", '{"format": "luff-key"}', '{"format": "luff-bucket-key", "version": 2}'):
        path.write_text(text)
        with pytest.raises(Refused, match="found no key"):
            read_key_file(str(path))
    path.write_text('{"format": "luff-bucket-key", "version": 1, "secret": "AAAA"}')
    with pytest.raises(Refused, match="damaged"):
        read_key_file(str(path))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Refused, match="no file"):
        read_key_file(str(tmp_path / "pipe"))


def test_a_key_that_cannot_be_written_leaves_no_file(tmp_path, monkeypatch):
    def full(_fd):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as other:
        other.setattr(os, "fsync", full)
        with pytest.raises(Refused, match="No space left"):
            new_key_file(str(tmp_path / "a.key"))
    assert list(tmp_path.iterdir()) == []
    assert new_key_file(str(tmp_path / "a.key"))


def test_a_run_that_just_begins_is_none_that_does_not_open(run, tmp_path, with_key):
    base = f"file://{tmp_path}/bucket"
    store = open_store(base)
    fill(run)
    upload(run, store)
    store.put(f"runs/{'b' * 32}/u0000/end", b"no run.json")
    assert verb("seal", "check", base).stdout.startswith("1 runs: 1 open with the keys here")


def test_a_wrapped_key_that_was_changed_or_moved_opens_nothing(tmp_path, with_key):
    store, run_id = open_store(f"file://{tmp_path}/bucket"), "a" * 32
    put_key(store, run_id, b"k" * 32, parse_recipients(os.environ["LUFF_BUCKET_ENCRYPT_TO"]))
    assert get_key(store, run_id, identities()) == b"k" * 32
    (name,) = [name for name in store.children(f"keys/{run_id}/") if name != "check"]
    good = json.loads(store.get(f"keys/{run_id}/{name}", 1 << 14)[0])
    moved = "b" * 32
    store.put(f"keys/{moved}/{name}", json.dumps({**good, "run_id": moved}).encode())
    assert get_key(store, moved, identities()) is None
    wrong = [b"", b"[" * 10_000, b"{}", b"\xff"]
    for member in ("wrapped", "ephemeral"):
        for value in ("", "AAAA", 3, None, base64.b64encode(bytes(32)).decode(), "!" * 9000):
            wrong.append(json.dumps({**good, member: value}).encode())
    wrong += [json.dumps({**good, "kind": "command"}).encode()]
    for data in wrong:
        store.put(f"keys/{run_id}/{name}", data)
        assert get_key(store, run_id, identities()) is None, data[:80]
    for version in (0, 2):
        store.put(f"keys/{run_id}/{name}", json.dumps({**good, "version": version}).encode())
        with pytest.raises(Refused, match=f"version {version} of the bucket format"):
            get_key(store, run_id, identities())
    store.put(f"keys/{run_id}/{name}", b" " * (1 << 20))  # not read
    assert get_key(store, run_id, identities()) is None


def test_a_card_tells_numbers_to_all_and_the_rest_to_who_has_the_key(tmp_path, with_key, monkeypatch):
    store, run_id = open_store(f"file://{tmp_path}/bucket"), "a" * 32
    put_key(store, run_id, b"k" * 32, parse_recipients(os.environ["LUFF_BUCKET_ENCRYPT_TO"]))
    card = {
        "card": 1, "run_id": run_id, "name": "a name", "command": ["train.py", "--user", "me"], "verdict": "findings",
        "outcome": "running", "steps": {"TRAIN": 60}, "findings": {"count": 2, "rules": ["Mine"]}, "took_s": 2.5,
        "scalars": [{"name": "loss", "last": 0.5}], "parameters": {"lr": 0.1},
    }  # fmt: skip
    sealed = seal_card(b"k" * 32, card_key(run_id), json.dumps(card).encode())
    told = json.loads(sealed)
    assert set(told) == {"card", "run_id", "verdict", "outcome", "steps", "findings", "took_s", "sealed"}
    assert told["findings"] == {"count": 2}
    assert json.loads(open_card(store, run_id, sealed)) == card
    assert json.loads(open_card(store, run_id, json.dumps({**told, "pruned": "all"}).encode())) == card | {
        "pruned": "all"
    }
    for wrong in ("", "AAAA", "!", 3, base64.b64encode(b"(" * 500).decode()):
        damaged = json.loads(open_card(store, run_id, json.dumps({**told, "sealed": wrong}).encode()))
        assert "name" not in damaged
    monkeypatch.delenv("LUFF_BUCKET_KEY")
    public = json.loads(open_card(store, run_id, sealed))
    assert "name" not in public
    assert "sealed" not in public
    with monkeypatch.context() as other:
        other.setenv("LUFF_BUCKET_KEY", "/no/such/file")
        assert json.loads(open_card(store, run_id, sealed)) == public
        other.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
        assert json.loads(open_card(store, run_id, sealed)) == public
    pruned = json.dumps({**told, "pruned": "all"}).encode()
    assert seal_card(b"k" * 32, card_key(run_id), pruned) == pruned  # as `luff prune` puts it
    large = {**card, "scalars": [{"name": secrets.token_hex(50), "last": 0.5} for _ in range(50)]}
    assert len(seal_card(b"k" * 32, card_key(run_id), json.dumps(large).encode())) <= MAX_CARD
    huge = {**card, "note": secrets.token_urlsafe(12_000)}
    assert "sealed" not in json.loads(seal_card(b"k" * 32, card_key(run_id), json.dumps(huge).encode()))


def test_a_list_has_all_runs_also_those_whose_key_a_service_denies(tmp_path, monkeypatch, capfdbinary):
    store, program = open_store(f"file://{tmp_path}/bucket"), tmp_path / "kms.py"
    program.write_text(COMMAND)
    told = []
    for run_id in ("a" * 32, "b" * 32):
        put_key(store, run_id, b"k" * 32, parse_recipients(f"command:{sys.executable} {program}"))
        card = {"card": 1, "run_id": run_id, "name": "secret", "verdict": "ok"}
        store.put(card_key(run_id), seal_card(b"k" * 32, card_key(run_id), json.dumps(card).encode()))
    known = {}
    for words, names in ((f"{sys.executable} {program} fails", 0), (f"{sys.executable} {program}", 2)):
        monkeypatch.setenv("LUFF_BUCKET_KEY_COMMAND", words)
        for _ in range(2):
            cards.look(store, known)
            sys.stdout.flush()
            told = capfdbinary.readouterr().out.decode().splitlines()
            listed = [line.split() for line in told if line.startswith("+ ")]
            known |= {run_id: int(stamp) for _, run_id, stamp, *_ in listed}
            if names == 0:  # asked again each time: the service may only be away
                assert len(listed) == 2
                assert not any("secret" in line for line in told)
            assert not [line for line in told if line.startswith("!")]
        assert len([line for line in told if line.startswith("= ")]) == names
    monkeypatch.delenv("LUFF_BUCKET_KEY_COMMAND")
    monkeypatch.setenv("LUFF_BUCKET_KEY", str(tmp_path / "mistyped.key"))
    with pytest.raises(Refused, match=r"the key cannot be read .*mistyped\.key"):
        cards.look(store, {})


def verb(name, *words, expect=0):
    done = subprocess.run(
        [sys.executable, "-I", str(START), name, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == expect, done.stdout + done.stderr
    return done


def test_verbs_read_an_encrypted_run_with_its_key(luff, with_findings, base, key_file, tmp_path, monkeypatch):
    monkeypatch.setenv("LUFF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    subprocess.run(["cp", "-r", with_findings, run], check=True)
    url = luff("sync", run, base).stdout.strip()
    refused = luff("show", url, expect=None)
    assert refused.returncode != 0
    assert "no key here opens it" in refused.stderr
    (card,) = [json.loads(line) for line in luff("runs", base, "--json").stdout.splitlines()]
    assert (card["verdict"], card["name"], card["command"]) == ("findings", "", [])
    assert "1 do not open" in verb("seal", "check", base, expect=1).stdout
    monkeypatch.setenv("LUFF_BUCKET_KEY", "secret.key")  # relative: the process that fetches is elsewhere
    told, wanted = (luff("check", one, "--json", expect=3).stdout for one in (url, run))
    assert told == wanted != ""
    assert "WeightUpdateRatio" in luff("show", url).stdout
    (card,) = [json.loads(line) for line in luff("runs", base, "--json").stdout.splitlines()]
    assert card["name"] == "run"
    assert "1 open with the keys here" in verb("seal", "check", base).stdout


def test_the_command_makes_keys(tmp_path):
    done = verb("seal", "new", tmp_path / "a.key")
    assert done.stdout.startswith('[bucket]\nencrypt_to = ["x25519:')
    assert read_key_file(str(tmp_path / "a.key")).secret
    assert (
        base64.b64encode(read_key_file(str(tmp_path / "a.key")).secret).decode()
        not in done.stdout + done.stderr
    )
    assert "File exists" in verb("seal", "new", tmp_path / "a.key", expect=5).stderr
    verb("seal", "old", tmp_path / "a.key", expect=2)


def test_the_configuration_of_a_job_encrypts_its_upload(luff, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LUFF_HOME", str(tmp_path / "home"))
    (tmp_path / "luff.toml").write_text(luff("keys", "new", "reader.key", "--encryption").stdout)
    base = f"file://{tmp_path}/bucket"
    (tmp_path / "train.py").write_text(
        "import torch\nm = torch.nn.Linear(2, 1)\no = torch.optim.SGD(m.parameters(), 0.1)\n"
        "for _ in range(5):\n    o.zero_grad()\n    m(torch.ones(3, 2)).sum().backward()\n    o.step()\n"
    )
    luff("run", "--run", "run", "--config", "luff.toml", "--sync", base, "--", sys.executable, "train.py")
    store = open_store(base)
    (run,) = store.children("runs/")
    assert is_sealed(store.get(f"runs/{run}/run.json", 1 << 20)[0])
    closed = luff("keys", "check", base, expect=1)
    assert "1 do not open" in closed.stdout
    assert "LUFF_BUCKET_KEY" in luff("show", f"{base}/@1", expect=None).stderr
    monkeypatch.setenv("LUFF_BUCKET_KEY", "reader.key")
    assert "1 open with the keys here" in luff("keys", "check", base).stdout
    assert json.loads(luff("show", f"{base}/@1", "--json").stdout)["steps"] == 5
    assert "excludes" in luff("keys", "new", "x", "--encryption", "--id", "me", expect=2).stderr


def test_a_wrong_recipient_is_said_before_the_job_begins(luff, tmp_path, monkeypatch):
    monkeypatch.setenv("LUFF_BUCKET_ENCRYPT_TO", "x25519:oops")
    done = luff(
        "run",
        "--run",
        tmp_path / "run",
        "--sync",
        f"file://{tmp_path}/bucket",
        "--",
        "touch",
        tmp_path / "ran",
        expect=2,
    )
    assert "expected x25519:KEY" in done.stderr
    assert not (tmp_path / "ran").exists()


def test_encrypted_runs_are_pruned_by_who_has_the_key(run, tmp_path, key_file, monkeypatch):
    from luff.remote import _prune

    store = FolderStore(f"file://{tmp_path}/bucket", str(tmp_path / "bucket"))
    fill(run)
    upload(run, store)
    old = {"older_ns": -3600 * 10**9, "dry_run": False}  # all are older than in an hour
    (left,) = _prune.prune(store, "metadata", **old)
    assert "no key here opens it" in left.problem
    monkeypatch.setenv("LUFF_BUCKET_KEY", str(key_file))
    (done,) = _prune.prune(store, "metadata", **old)
    assert done.problem == ""
    assert done.objects >= 1
    assert not [name for name in every_object(store) if ".lfd/" in name]
    assert all(is_sealed(data) for name, data in every_object(store).items() if name.startswith("live/"))
    (done,) = _prune.prune(store, "nothing", **old)
    assert done.problem == ""
    assert every_object(store) == {}


def test_a_run_whose_key_is_lost_can_be_removed_whole(run, tmp_path, key_file, monkeypatch):
    from luff.remote import _prune

    store = FolderStore(f"file://{tmp_path}/bucket", str(tmp_path / "bucket"))
    fill(run)
    upload(run, store)
    store.put(card_key(run.run_id), json.dumps({"card": 1, "run_id": run.run_id}).encode())
    other = tmp_path / "other.key"
    new_key_file(str(other))
    for key in (None, other):  # no key, and one that is not the run's
        if key is not None:
            monkeypatch.setenv("LUFF_BUCKET_KEY", str(key))
        (left,) = _prune.prune(store, "metadata", older_ns=-3600 * 10**9, dry_run=False)
        assert "no key here opens it" in left.problem
    before = every_object(store)
    (told,) = _prune.prune(store, "nothing", older_ns=-3600 * 10**9, dry_run=True)
    assert (told.problem, every_object(store)) == ("", before)
    assert told.objects >= 3
    assert list(_prune.prune(store, "nothing", older_ns=3600 * 10**9, dry_run=False)) == []  # it is not old
    (done,) = _prune.prune(store, "nothing", older_ns=-3600 * 10**9, dry_run=False)
    assert (done.problem, done.objects) == ("", told.objects)
    assert list(every_object(store)) == [card_key(run.run_id)]
    assert json.loads(store.get(card_key(run.run_id), MAX_CARD)[0])["pruned"] == "all"


@pytest.mark.parametrize("fenced", [False, True])
def test_a_run_whose_key_was_lost_while_its_values_went_can_be_removed_whole(
    run, tmp_path, with_key, monkeypatch, fenced
):
    from luff.remote import _prune

    store = FolderStore(f"file://{tmp_path}/bucket", str(tmp_path / "bucket"))
    fill(run)
    upload(run, store)
    now = {"older_ns": -3600 * 10**9, "dry_run": False}

    def cut_off(*_):
        raise Unreachable("no network")

    with monkeypatch.context() as cut:
        cut.setattr(_prune._Run, "_delete" if fenced else "_fence", cut_off)
        with pytest.raises(Unreachable):
            list(_prune.prune(store, "metadata", **now))
    assert run.run_id in [one.name for one in store.objects("pruning/", 10)]
    monkeypatch.delenv("LUFF_BUCKET_KEY")
    (left,) = _prune.prune(store, "metadata", **now)
    assert "no key here opens it" in left.problem
    (done,) = _prune.prune(store, "nothing", **now)
    assert done.problem == ""
    assert every_object(store) == {}


def test_without_cryptography_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(Refused, match="pip install 'luff\\[remote\\]'"):
        _recipients.check_cryptography()


def test_a_run_that_was_pruned_and_uploaded_anew_opens_with_its_new_key(run, tmp_path, with_key):
    from luff.remote import _prune

    store = FolderStore(f"file://{tmp_path}/bucket", str(tmp_path / "bucket"))
    fill(run)
    upload(run, store)
    reader, first = reading(store, run.run_id), f"runs/{run.run_id}/run.json"
    text = reader.get(first, 1 << 20)[0]
    assert [one.problem for one in _prune.prune(store, "nothing", -3600 * 10**9, False)] == [""]
    (run.path / "sync" / "key").unlink()
    upload(run, store)
    with pytest.raises(Refused, match="of another key"):
        reader.get(first, 1 << 20)
    assert reader.get(first, 1 << 20)[0] == text


def test_what_is_no_card_is_refused():
    for data in (b"", b"[]", b"[" * 100_000, b"\xff"):
        with pytest.raises(Refused, match="no object of JSON"):
            seal_card(b"k" * 32, card_key("a" * 32), data)


def test_absent_objects_are_absent(tmp_path, with_key):
    store = reading(open_store(f"file://{tmp_path}/bucket"), "a" * 32)
    with pytest.raises(Absent):
        store.get(f"runs/{'a' * 32}/run.json", 100)
