"""Who uploads an encrypted run: every later upload of it is encrypted with the same key, or refused with the remedy."""

from __future__ import annotations

import base64
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from bucket_copies import copy_of
from luff.remote import _recipients, _uploader
from luff.remote._errors import Absent, Refused, Unreachable
from luff.remote._recipients import CommandFailed, get_key, identities, new_key_file
from luff.remote._store import FolderStore
from luff.remote._upload_key import uploading
from luff.remote._uploader import Uploader
from sealed_runs import every_object, fetched, fill, is_told, upload

pytest.importorskip("cryptography")

START = Path(_uploader.__file__).parents[1] / "_verbs" / "_start.py"


class Failing:
    """A bucket some of whose requests fail: `fails(method, key)` raises."""

    def __init__(self, inner, fails):
        self._inner, self._fails = inner, fails

    def __getattr__(self, name):
        what = getattr(self._inner, name)
        if not callable(what):
            return what

        def call(key, *more):
            self._fails(name, key)
            return what(key, *more)

        return call


@pytest.fixture
def folder(tmp_path):
    return FolderStore(f"file://{tmp_path}/bucket", str(tmp_path / "bucket"))


def nobody_reads(store):
    objects = every_object(store)
    assert objects
    for name, data in objects.items():
        assert not is_told(data[:200_000]), name


def away(_method, key):
    raise Unreachable(f"nobody answers: {key}")


def test_who_goes_on_has_the_key_of_the_run_or_is_refused(run, store, tmp_path, key_file, monkeypatch):
    fill(run)
    upload(run, store)
    run.append("w0000/m-000001.lfm", b"more")
    monkeypatch.delenv("LUFF_BUCKET_ENCRYPT_TO")  # the run is encrypted, whatever the next upload was told
    upload(run, store)
    shutil.rmtree(run.path / "sync")  # as on another host
    with pytest.raises(Refused, match="encrypted in the bucket, and was to be uploaded without"):
        upload(run, store)
    monkeypatch.setenv("LUFF_BUCKET_ENCRYPT_TO", new_key_file(str(tmp_path / "another.key")))
    with pytest.raises(Refused, match="encrypted with a key that is not here"):
        upload(run, store)
    assert not (run.path / "sync" / "key").exists()
    monkeypatch.setenv("LUFF_BUCKET_KEY", str(key_file))
    upload(run, store)
    monkeypatch.setenv("LUFF_BUCKET_KEY", str(tmp_path / "another.key"))  # who was added
    assert fetched(store, run, tmp_path / "copy") == run.files()


def test_of_two_hosts_that_begin_at_once_one_is_refused(run, store, tmp_path, key_file, monkeypatch):
    """Each makes a key before it sees that of the other one."""
    fill(run)
    other = tmp_path / "other"
    subprocess.run(["cp", "-r", run.path, other], check=True)
    first = uploading(store, str(run.path), run.run_id)
    with pytest.raises(Refused, match="another host uploads the run"):
        uploading(store, str(other), run.run_id)
    assert not (other / "sync" / "key").exists()
    Uploader(str(run.path), first).begin()
    (other / "sync" / "key").write_bytes(b"k" * 32)  # it was killed before it saw that
    (other / "sync" / "key").chmod(0o600)
    with pytest.raises(Refused, match="another host uploads the run"):
        uploading(store, str(other), run.run_id)
    (other / "sync" / "key").unlink()
    monkeypatch.setenv("LUFF_BUCKET_KEY", str(key_file))
    second = Uploader(str(other), uploading(store, str(other), run.run_id), uploader=1)
    second.begin()
    assert (other / "sync" / "key").read_bytes() == (run.path / "sync" / "key").read_bytes()


def test_a_run_that_is_there_unencrypted_stays_so(run, store, tmp_path, monkeypatch):
    fill(run)
    upload(run, store)
    assert copy_of(store, run, tmp_path / "copy")[1] == run.files()
    monkeypatch.setenv("LUFF_BUCKET_ENCRYPT_TO", new_key_file(str(tmp_path / "secret.key")))
    with pytest.raises(Refused, match="in the bucket already and not encrypted"):
        upload(run, store)


def test_an_upload_that_never_reached_the_bucket_is_encrypted_when_it_goes_on(
    run, folder, tmp_path, key_file, monkeypatch
):
    """The command that goes on is told nothing of encryption."""
    fill(run)
    with pytest.raises(Unreachable):
        uploading(Failing(folder, away), str(run.path), run.run_id)
    note = run.path / "sync" / "encrypt_to"
    assert stat.S_IMODE(note.stat().st_mode) == 0o600
    monkeypatch.delenv("LUFF_BUCKET_ENCRYPT_TO")
    upload(run, folder)
    nobody_reads(folder)
    monkeypatch.setenv("LUFF_BUCKET_KEY", str(key_file))
    assert fetched(folder, run, tmp_path / "copy") == run.files()


def test_the_note_of_recipients_is_taken_from_this_user_only(run, folder, key_file, monkeypatch):
    fill(run)
    with pytest.raises(Unreachable):
        uploading(Failing(folder, away), str(run.path), run.run_id)
    note = run.path / "sync" / "encrypt_to"
    text = os.environ["LUFF_BUCKET_ENCRYPT_TO"]
    monkeypatch.delenv("LUFF_BUCKET_ENCRYPT_TO")
    note.chmod(0o666)
    with pytest.raises(Refused, match="chmod 600"):
        upload(run, folder)
    note.chmod(0o600)
    note.write_text("")
    with pytest.raises(Refused, match="damaged; set LUFF_BUCKET_ENCRYPT_TO anew"):
        upload(run, folder)
    note.write_text("x" * 70_000)
    with pytest.raises(Refused, match="damaged"):
        upload(run, folder)
    with monkeypatch.context() as other:
        other.setattr(os, "geteuid", lambda: os.stat(note).st_uid + 1)
        with pytest.raises(Refused, match="another user's"):
            upload(run, folder)
    with pytest.raises(Absent):
        folder.get(f"runs/{run.run_id}/run.json", 100)
    monkeypatch.setenv("LUFF_BUCKET_ENCRYPT_TO", text)
    upload(run, folder)
    assert note.read_text() == text
    nobody_reads(folder)


def test_the_command_that_goes_on_names_the_configuration(luff, run, tmp_path, monkeypatch):
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "REGION"):
        monkeypatch.setenv(f"AWS_{name}", "any")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    config = tmp_path / "luff.toml"
    config.write_text('[bucket]\nsse = "AES256"\n')
    words = ("sync", run.path, "s3://bucket/team", "--drain", "0", "--config", config)
    done = luff(*words, expect=6)
    assert f"`luff sync {run.path} s3://bucket/team --config {config}` goes on" in done.stderr


def test_another_host_without_recipients_puts_nothing_readable(run, store, tmp_path, key_file, monkeypatch):
    fill(run)
    upload(run, store)
    other = tmp_path / "other"
    subprocess.run(["cp", "-r", run.path, other], check=True)
    shutil.rmtree(other / "sync")
    monkeypatch.delenv("LUFF_BUCKET_ENCRYPT_TO")
    before = every_object(store)
    for host in (1, 0):
        for name in store.children(f"live/{run.run_id[0]}/{run.run_id}/"):  # as after the run's end
            store.delete(f"live/{run.run_id[0]}/{run.run_id}/{name}")
        with pytest.raises(Refused, match="encrypted in the bucket, and was to be uploaded without"):
            Uploader(str(other), uploading(store, str(other), run.run_id), uploader=host).begin()
    assert set(every_object(store)) <= set(before)


def test_of_two_first_uploads_the_second_is_as_the_first(run, folder, tmp_path, key_file, monkeypatch):
    """Neither sees the other one when it looks; the first run.json decides."""
    fill(run)
    other = tmp_path / "other"
    subprocess.run(["cp", "-r", run.path, other], check=True)
    encrypted = uploading(folder, str(run.path), run.run_id)
    monkeypatch.delenv("LUFF_BUCKET_ENCRYPT_TO")
    readable = uploading(folder, str(other), run.run_id)
    Uploader(str(other), readable, uploader=1).begin()
    with pytest.raises(Refused, match="the run is encrypted, and this object of it is not"):
        Uploader(str(run.path), encrypted).begin()


def test_a_put_of_the_key_that_fails_once_leaves_the_run_to_the_other_host(
    run, folder, tmp_path, key_file, monkeypatch
):
    """It has kept a key that nobody can open, and another host has put its own meanwhile."""
    fill(run)
    other = tmp_path / "other"
    subprocess.run(["cp", "-r", run.path, other], check=True)

    def fails(method, key):
        if method == "put_new" and key.startswith("keys/"):
            raise Unreachable("a stall")

    with pytest.raises(Unreachable):
        uploading(Failing(folder, fails), str(other), run.run_id)
    uploading(folder, str(run.path), run.run_id)
    with pytest.raises(Refused, match=r"another host .* LUFF_BUCKET_KEY and remove .*/other/sync/key"):
        uploading(folder, str(other), run.run_id)
    (other / "sync" / "key").unlink()
    monkeypatch.setenv("LUFF_BUCKET_KEY", str(key_file))
    Uploader(str(other), uploading(folder, str(other), run.run_id), uploader=1).begin()
    Uploader(str(run.path), uploading(folder, str(run.path), run.run_id)).begin()
    fetched(folder, run, tmp_path / "copy")


def test_hosts_with_other_recipients_agree_on_one_key(run, folder, tmp_path, monkeypatch):
    fill(run)
    other = tmp_path / "other"
    subprocess.run(["cp", "-r", run.path, other], check=True)
    monkeypatch.setenv("LUFF_BUCKET_ENCRYPT_TO", new_key_file(str(tmp_path / "a.key")))
    uploading(folder, str(run.path), run.run_id)
    monkeypatch.setenv("LUFF_BUCKET_ENCRYPT_TO", new_key_file(str(tmp_path / "b.key")))
    with pytest.raises(Refused, match="another host uploads the run"):
        uploading(folder, str(other), run.run_id)
    assert not (other / "sync" / "key").exists()
    assert len(folder.children(f"keys/{run.run_id}/")) == 2


def kms(tmp_path, name, code="data"):
    """A service of its own; `code` says what it answers to `data`."""
    program = tmp_path / name
    program.write_text(
        f"#!{sys.executable}\nimport os, sys\ndata = sys.stdin.buffer.read()\n"
        f"if os.path.exists({str(tmp_path / 'away')!r}):\n    sys.exit('the service is away')\n"
        f"mark = {name.encode()!r}\n"
        "if sys.argv[-1] == 'unwrap':\n"
        "    if not data.startswith(mark):\n        sys.exit('not mine')\n"
        "    data = data[len(mark):]\nelse:\n    data = mark + data\n"
        f"sys.stdout.buffer.write({code})\n"
    )
    program.chmod(0o755)
    return f"command:{program}"


def test_a_recipient_that_fails_leaves_nothing_in_the_bucket(run, folder, tmp_path, monkeypatch):
    fill(run)
    good = kms(tmp_path, "good")
    no_point = f"x25519:{base64.b64encode(bytes(32)).decode()}"
    for bad in (kms(tmp_path, "bad", "b''"), no_point, "command:/no/such/program"):
        monkeypatch.setenv("LUFF_BUCKET_ENCRYPT_TO", f"{good},{bad}")
        with pytest.raises(Refused, match=r"printed 0 bytes|no public key|does not start"):
            uploading(folder, str(run.path), run.run_id)
        assert folder.children(f"keys/{run.run_id}/") == []
        assert not (run.path / "sync" / "key").exists()
    monkeypatch.setenv("LUFF_BUCKET_ENCRYPT_TO", good)
    upload(run, folder)
    monkeypatch.setenv("LUFF_BUCKET_KEY_COMMAND", good.removeprefix("command:"))
    assert fetched(folder, run, tmp_path / "copy") == run.files()


def test_a_service_that_is_away_does_not_end_the_upload(run, folder, tmp_path, monkeypatch):
    fill(run)
    monkeypatch.setenv("LUFF_BUCKET_ENCRYPT_TO", kms(tmp_path, "kms"))
    (tmp_path / "away").touch()
    with pytest.raises(Unreachable, match=r"exit code 1.*the service is away"):
        uploading(folder, str(run.path), run.run_id)
    (tmp_path / "away").unlink()
    upload(run, folder)
    (tmp_path / "away").touch()  # what is wrapped need not be wrapped again
    run.append("w0000/m-000001.lfm", b"more")
    upload(run, folder)
    monkeypatch.setattr(_recipients, "_COMMAND_S", 0.0)
    monkeypatch.setenv("LUFF_BUCKET_KEY_COMMAND", str(tmp_path / "kms"))
    with pytest.raises(CommandFailed, match="has not ended"):
        get_key(folder, run.run_id, identities())


def test_a_command_that_is_added_gets_the_key_wherever_its_name_sorts(run, folder, tmp_path, monkeypatch):
    fill(run)
    first, added = kms(tmp_path, "bkms"), kms(tmp_path, "akms")
    monkeypatch.setenv("LUFF_BUCKET_ENCRYPT_TO", first)
    upload(run, folder)
    monkeypatch.setenv("LUFF_BUCKET_ENCRYPT_TO", f"{first},{added}")
    upload(run, folder)
    monkeypatch.delenv("LUFF_BUCKET_ENCRYPT_TO")
    for number, one in enumerate((first, added, f"{added} with-other-words")):
        monkeypatch.setenv("LUFF_BUCKET_KEY_COMMAND", one.removeprefix("command:"))
        assert fetched(folder, run, tmp_path / f"copy{number}") == run.files()


def test_a_key_that_others_can_read_is_refused(run, folder, key_file):
    fill(run)
    upload(run, folder)
    (run.path / "sync" / "key").chmod(0o644)
    with pytest.raises(Refused, match=r"others can read the key of the run; .*chmod 600"):
        upload(run, folder)


def test_a_store_without_conditional_puts_keeps_the_key_that_it_has(run, folder, tmp_path, key_file):
    """On such a store a second key would take the place of the first."""

    class Careless(FolderStore):
        def put_new(self, key, data):
            self.put(key, data)
            return ""

    fill(run)
    upload(run, folder)
    before = every_object(folder)
    (run.path / "sync" / "key").unlink()
    for one in folder.objects(f"runs/{run.run_id}/", 1000):
        folder.delete(f"runs/{run.run_id}/{one.name}")
    with pytest.raises(Refused, match="does not obey them"):
        uploading(Careless(folder.url, str(tmp_path / "bucket")), str(run.path), run.run_id)
    after = every_object(folder)
    assert {name: data for name, data in after.items() if name.startswith("keys/")} == {
        name: data for name, data in before.items() if name.startswith("keys/")
    }


@pytest.mark.parametrize("encrypted", [True, False])
def test_an_upload_says_whether_it_is_encrypted(run, base, key_file, monkeypatch, encrypted):
    if not encrypted:
        monkeypatch.delenv("LUFF_BUCKET_ENCRYPT_TO")
    words = [sys.executable, "-I", START, "sync", "--until-closed", "--", run.path, base]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    assert f"/{run.run_id} ({'' if encrypted else 'not '}encrypted)" in done.stderr
    again = subprocess.run([*words[:4], "--", run.path, base], capture_output=True, text=True, check=True)
    assert again.stdout == f"{base}/{run.run_id}\n"
    assert again.stderr == ("luff: sync: the upload is encrypted\n" if encrypted else "")
