"""A folder as a bucket that others may write into: no link in it leads out of it."""

from __future__ import annotations

import errno
import os

import pytest
from luff.remote._errors import Conflict, Refused, Unreachable
from luff.remote._places import check_place
from luff.remote._store import open_store


@pytest.fixture
def home(tmp_path):
    """A folder of somebody, with files."""
    home = tmp_path / "home"
    (home / "sub").mkdir(parents=True)
    (home / "thesis").write_text("years")
    (home / "sub" / "photo").write_text("moments")
    return home


@pytest.fixture
def store(tmp_path):
    store = open_store(f"file://{tmp_path}/bucket")
    store.put("runs/a/w0000/part", b"part")
    return store


def test_a_durable_one_has_on_its_disk_what_it_says_it_has(tmp_path, monkeypatch):
    """Loss of power is not tried: what reaches the disk, and when, is."""
    kept: list[str] = []
    fsync, replace = os.fsync, os.replace

    def path(fd):
        return os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), tmp_path).split(".")[0] or "."

    monkeypatch.setattr(os, "fsync", lambda fd: (kept.append(path(fd)), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda *a, **k: (kept.append("replace"), replace(*a, **k)))
    store = open_store(f"file://{tmp_path}/disk/bucket", durable=True)
    store.put("runs/part", b"part")
    # The folders that were made, by their names in those above, before what lies in them.
    assert sorted(kept[:3]) == [".", "disk", "disk/bucket"]
    assert kept[3:] == ["disk/bucket/runs/part", "replace", "disk/bucket/runs"]
    kept.clear()
    store.put_if("runs/part", b"other", store.put_new("runs/head", b"head") and store.get("runs/part", 9)[1])
    assert kept == ["disk/bucket/runs/head", "replace", "disk/bucket/runs"] + [
        "disk/bucket/runs/part",
        "replace",
        "disk/bucket/runs",
    ]
    kept.clear()
    open_store(f"file://{tmp_path}/disk/bucket").put("runs/part", b"part")
    assert kept == ["replace"]


def test_a_durable_one_that_cannot_keep_says_so(store, tmp_path, monkeypatch):
    def full(fd):
        raise OSError(errno.ENOSPC, "No space left on device")

    durable = open_store(f"file://{tmp_path}/bucket", durable=True)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Unreachable, match="No space left"):
        durable.put("runs/a/w0000/part", b"new")
    assert store.get("runs/a/w0000/part", 99)[0] == b"part"


def _away(place, **_how):
    """An automounter answers so while its server is away."""
    raise FileNotFoundError(errno.ENOENT, "No such file or directory", place)


def test_a_folder_that_can_never_be_is_refused_and_one_that_may_come_is_not(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("data")
    for url in (f"file://{file}", f"file://{file}/team/x"):
        with pytest.raises(Refused, match=f"found a file where a folder is expected, {file}"):
            check_place(url)
        with pytest.raises(Refused, match="found a file where a folder is expected"):
            open_store(url).put_new("luff.json", b"{}")
    with pytest.raises(Refused, match="no folder can be made there"):
        open_store("file:///proc/luff").put_new("luff.json", b"{}")
    with monkeypatch.context() as automounter:
        automounter.setattr(os, "makedirs", _away)
        with pytest.raises(Unreachable):
            open_store(f"file://{tmp_path}/not-mounted").put_new("luff.json", b"{}")
    check_place(f"file://{tmp_path}/not/yet")
    (tmp_path / "mounted-later").symlink_to(tmp_path / "away")
    check_place(f"file://{tmp_path}/mounted-later/team")
    assert file.read_text() == "data"
    assert not (tmp_path / "not").exists()


def untouched(home):
    return (home / "thesis").read_text() == "years" and (home / "sub" / "photo").read_text() == "moments"


@pytest.mark.parametrize("link", ["live", "runs/b", "runs/a/w0001"])
def test_no_folder_that_is_a_link_is_listed_read_written_or_emptied(store, home, tmp_path, link):
    os.symlink(home, tmp_path / "bucket" / link)
    for ask in (
        lambda: store.objects(f"{link}/", 99),
        lambda: store.children(f"{link}/"),
        lambda: store.objects(f"{link}/sub/", 99),
        lambda: store.get(f"{link}/thesis", 99),
        lambda: store.get_range(f"{link}/sub/photo", 0, 2),
        lambda: store.put(f"{link}/thesis", b"mine"),
        lambda: store.put_new(f"{link}/new", b"mine"),
        lambda: store.put_if(f"{link}/thesis", b"mine", "etag"),
        lambda: store.delete(f"{link}/thesis"),
        lambda: store.delete_all([f"{link}/sub/photo"]),
    ):
        with pytest.raises(Refused, match=rf"a link or a file where the bucket has folders.*{link}"):
            ask()
    assert untouched(home)
    assert sorted(os.listdir(home)) == ["sub", "thesis"]


def test_an_object_that_is_a_link_is_not_read_and_goes_alone(store, home, tmp_path):
    os.symlink(home / "thesis", tmp_path / "bucket/runs/a/link")
    with pytest.raises(Refused, match="a link in the bucket"):
        store.get("runs/a/link", 99)
    with pytest.raises(Conflict):
        store.put_new("runs/a/link", b"mine")
    assert [o.name for o in store.objects("runs/", 99)] == ["a/link", "a/w0000/part"]
    store.put("runs/a/link", b"an object")  # in its place
    assert untouched(home)
    os.unlink(tmp_path / "bucket/runs/a/link")
    os.symlink(home, tmp_path / "bucket/runs/a/link")
    store.delete_all(["runs/a/link", "runs/a/w0000/part"])
    assert untouched(home)
    assert store.children("runs/") == []


def test_the_folder_itself_may_be_a_link(store, tmp_path):
    os.symlink(tmp_path / "bucket", tmp_path / "other")
    assert open_store(f"file://{tmp_path}/other").get("runs/a/w0000/part", 99)[0] == b"part"


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.mkdir(path)])
def test_what_is_no_file_is_refused(store, tmp_path, make):
    make(tmp_path / "bucket/runs/a/odd")
    with pytest.raises(Refused, match=r"is no file: .*runs/a/odd"):
        store.get("runs/a/odd", 99)


def test_a_folder_that_is_deeper_than_any_of_luff_is_refused(store, tmp_path):
    (tmp_path / "bucket/runs/a" / "/".join("x" * 12)).mkdir(parents=True)
    with pytest.raises(Refused, match="deeper"):
        store.objects("runs/", 99)


def test_a_planted_temporary_file_leads_nowhere(store, home, tmp_path, monkeypatch):
    monkeypatch.setattr("luff.remote._asides.secrets.token_hex", lambda size: "0" * 2 * size)
    os.symlink(home / "thesis", tmp_path / "bucket/runs/a/new.0000000000000000~")
    with pytest.raises(Unreachable, match="File exists"):
        store.put("runs/a/new", b"mine")
    assert untouched(home)
    monkeypatch.undo()  # nobody knows the next name before it is there
    store.put("runs/a/new", b"mine")
    assert store.get("runs/a/new", 99)[0] == b"mine"


def test_a_folder_that_is_removed_just_then_is_made_once_more(store, tmp_path, monkeypatch):
    removed, real = [], store._write_aside

    def write(folder, name, data):
        if not removed:
            removed.append(os.rmdir(tmp_path / "bucket/live/a"))  # by somebody who prunes
        return real(folder, name, data)

    monkeypatch.setattr(store, "_write_aside", write)
    store.put("live/a/one", b"one")
    removed.clear()
    store.delete("live/a/one")
    store.put_new("live/a/two", b"two")
    assert [o.name for o in store.objects("live/", 9)] == ["a/two"]
