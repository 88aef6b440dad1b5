"""Jobs with keys: what nobody with the right has signed does nothing; what is signed reaches all ranks."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import luff as package
import pytest

from .conftest import Luff, processes_with
from .test_requests import plain

_RANKS = str(Path(__file__).parent / "scripts" / "ranks.py")


def _lines_of_key(luff: Luff, file: Path, *options: str) -> str:
    code, out, err = luff("keys", "new", str(file), *options)
    assert code == 0, err
    assert "secret" not in out
    return str(out)


class _Keyed:
    """A job with keys, under `luff run`."""

    def __init__(
        self, luff: Luff, tmp: Path, *options: str, may: str = "stop", command: tuple[str, ...] = ()
    ) -> None:
        self.luff, self.run, self.key = luff, tmp / "run", tmp / "boss.key"
        config = tmp / "luff.toml"
        config.write_text(_lines_of_key(luff, self.key, "--id", "boss", "--may", may))
        script = tmp / "train.py"
        script.write_text(plain())
        self.process = luff.start(
            "run", "--run", str(self.run), "--config", str(config), *options, "--",
            sys.executable, *(command or (str(script), "100000")),
        )  # fmt: skip
        self.wait(lambda: "keys" in self.kinds())

    def control(self) -> list[dict[str, Any]]:
        return [json.loads(file.read_text()) for file in sorted((self.run / "control").glob("0*.json"))]

    def kinds(self) -> list[str]:
        return [record["kind"] for record in self.control()]

    def answers(self) -> list[dict[str, Any]]:
        return [record for record in self.control() if record["kind"] == "reply"]

    def wait(self, holds: Callable[[], bool], timeout_s: float = 120) -> None:
        until = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > until or self.process.poll() is not None:
                self.process.kill()
                pytest.fail(f"did not come: {self.kinds()} {self.process.communicate()[1]}")
            time.sleep(0.05)

    def write(self, **record: Any) -> None:
        """Writes a control record by hand, as another program of the same user might."""
        number = len(self.control()) + 1
        while not self._write(number, record):  # the supervisor writes, too
            number += 1

    def _write(self, number: int, record: dict[str, Any]) -> bool:
        """False if the number is taken."""
        whole = {
            "number": number, "kind": "request", "phase": "", "proposal": 0, "train_step": -1, "deadline_s": 10,
            "reason": "", "finding": "", "body": {"action": "stop"}, "author": "me", "key_id": "", "signature": "",
            "created_unix_ns": time.time_ns(),
        } | record  # fmt: skip
        file = self.run / "control" / f"{number:06d}.json"
        fd = os.open(file.with_suffix(".new"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(fd, json.dumps(whole).encode())
        os.close(fd)
        try:
            os.link(file.with_suffix(".new"), file)
        except FileExistsError:
            return False
        finally:
            file.with_suffix(".new").unlink()
        return True

    def end(self) -> tuple[int, str]:
        _, err = self.process.communicate(timeout=120)
        return self.process.returncode, err


def test_on_its_own_host_a_job_with_keys_obeys_only_what_is_signed(luff: Luff, tmp_path: Path) -> None:
    job = _Keyed(luff, tmp_path, "--rules", "none", "--tag", "night", may="stop,label")
    run = str(job.run)
    # The command says so before it asks.
    code, _, err = luff("stop", run)
    assert code == 2
    assert "obeys only what is signed" in err
    _lines_of_key(luff, tmp_path / "other.key", "--id", "other")
    code, _, err = luff("stop", run, "--key", str(tmp_path / "other.key"))
    assert code == 2
    assert "its luff.toml has the keys boss, not 'other'" in err
    code, _, err = luff("trace", run, "--key", str(job.key))
    assert code == 2
    assert "may not trace; it may stop, label" in err
    # So does the supervisor, whoever writes.
    job.write()
    job.wait(lambda: any("not signed" in answer["reason"] for answer in job.answers()))
    # Marks and labels too; the supervisor's own tag stands.
    job.write(kind="label", body={"title": "theirs"})
    job.wait(lambda: sum("not signed" in answer["reason"] for answer in job.answers()) == 2)
    code, _, err = luff("label", run, "--name", "ours", "--key", str(job.key))
    assert code == 0, err
    job.wait(lambda: sum(answer["phase"] == "done" for answer in job.answers()) == 2)
    code, out, _ = luff("label", run, "--json")
    assert json.loads(out) == {"tags": ["night"], "title": "ours", "note": ""}
    assert "propose" not in [record["phase"] for record in job.control()]
    code, out, err = luff("stop", run, "--key", str(job.key), "--json")
    assert code == 0, err
    code, err = job.end()
    assert code == 76, err
    assert "does nothing: it is not signed" in err
    _, out, _ = luff("show", run)
    assert re.search(r"commands  only signed, by\n    boss: may stop, label", out)
    # A job that has ended has nothing to protect.
    code, _, err = luff("label", run, "--note", "it was enough")
    assert code == 0, err


def test_without_a_supervisor_the_keys_that_the_run_names_count(luff: Luff, tmp_path: Path) -> None:
    job = _Keyed(luff, tmp_path, "--rules", "none")
    job.process.kill()
    job.process.wait()  # the training goes on, and holds its streams
    # Nobody says early that it must be signed; whoever carries it out, does.
    code, out, err = luff("stop", str(job.run), "--json")
    assert code == 1, err
    assert "not signed" in json.loads(out)["why"]
    code, out, err = luff("stop", str(job.run), "--key", str(job.key), "--json")
    assert code == 0, err
    assert json.loads(out)["state"] == "done"
    job.process.communicate(timeout=60)


def test_wrong_keys_in_a_configuration_are_told_with_their_line(luff: Luff, tmp_path: Path) -> None:
    lines = _lines_of_key(luff, tmp_path / "key", "--id", "a", "--expires", "90d")
    config = tmp_path / "luff.toml"
    code, _, err = luff("keys", "new", str(tmp_path / "dead"), "--expires", "2020-01-01")
    assert (code, "which is over" in err) == (2, True)
    assert not (tmp_path / "dead").exists()

    def said(text: str) -> str:
        config.write_text(text)
        code, _, err = luff("run", "--run", str(tmp_path / "run"), "--config", str(config), "--", "true")
        assert code == 2
        assert not (tmp_path / "run").exists()
        return str(err)

    assert "two keys have the id 'a'" in said(lines + lines)
    assert "'stopp' is nothing that a key may be allowed; nearest: stop" in said(
        lines.replace('"stop"', '"stopp"')
    )
    assert "unknown key 'mau'" in said(lines.replace("may =", "mau ="))
    assert "no base64 of 32 bytes" in said(lines.replace('ed25519 = "', 'ed25519 = "A'))
    assert "line 5" in said(lines.replace('expires = "', 'expires = "x'))
    assert "needs 'id', 'ed25519' and 'may'" in said('[[control.keys]]\nid = "a"\n')
    assert "says nothing" in said("[control]\n")
    # What is right passes; a key that others can read does not.
    config.write_text(lines)
    code, out, err = luff("keys", "check", str(tmp_path / "key"), "--config", str(config))
    assert code == 0, err
    assert "a: it may stop" in out
    (tmp_path / "key").chmod(0o644)
    code, _, err = luff("keys", "check", str(tmp_path / "key"))
    assert code == 2
    assert "chmod 600" in err
    code, _, err = luff("keys", "check", str(tmp_path / "lost"))
    assert code == 2
    assert "`luff keys new`" in err


def test_a_request_in_a_bucket_ends_both_ranks_after_the_same_step(luff: Luff, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={port}")
    bucket = f"file://{tmp_path}/bucket"
    job = _Keyed(luff, tmp_path, "--sync", bucket, command=(*torchrun, _RANKS, "--steps", "1000000"))
    run_id = json.loads((job.run / "run.json").read_text())["run_id"]
    cache = str(tmp_path / "cache")
    job.wait(lambda: len(package.open_trial(job.run).workers()) == 2)

    def known() -> bool:
        code, out, _ = luff(
            "keys",
            "check",
            "--run",
            f"{bucket}/{run_id}",
            "--json",
            LUFF_CACHE=cache,
            LUFF_FETCH_IDLE_S="0.5",
        )
        return code == 0 and bool(json.loads(out)["known"])

    job.wait(known)
    code, out, err = luff(
        "request",
        "stop",
        f"{bucket}/{run_id}",
        "--key",
        str(job.key),
        "--json",
        timeout_s=120,
        LUFF_CACHE=cache,
        LUFF_FETCH_IDLE_S="0.5",
    )
    assert code == 0, err
    answer = json.loads(out)
    code, err = job.end()
    assert code == 76, err
    last = {worker["last_train_step"] for worker in package.open_trial(job.run).workers()}
    assert last == {answer["train_step"] - 1}
    assert processes_with(_RANKS) == []
    code, out, _ = luff("show", f"{bucket}/{run_id}", LUFF_CACHE=cache, LUFF_FETCH_IDLE_S="0.5")
    assert "(key boss)" in out
