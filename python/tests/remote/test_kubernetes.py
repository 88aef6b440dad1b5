"""The recipes of `deploy/kubernetes`: valid for three versions, and what their containers run does what it is for."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from luff.remote._store import open_store

yaml = pytest.importorskip("yaml")

RECIPES = Path(__file__).parents[3] / "deploy" / "kubernetes"
VERSIONS = ("1.30", "1.32", "1.34")  # 1.29 is the first with native sidecars
OWN_KINDS = ("Kustomization",)  # of kustomize


def objects():
    return [
        (path.name, one)
        for path in sorted(RECIPES.rglob("*.yaml"))
        for one in yaml.safe_load_all(path.read_text())
        if one["kind"] not in OWN_KINDS
    ]


def named(kind, name):
    (found,) = (one for _, one in objects() if (one["kind"], one["metadata"]["name"]) == (kind, name))
    return found


def containers(one):
    pod = one["spec"]["template"]["spec"]
    return {c["name"]: c for c in [*pod.get("initContainers", []), *pod["containers"]]}


@pytest.mark.parametrize("version", VERSIONS)
def test_each_object_is_valid(version):
    validate = pytest.importorskip("kubernetes_validate")
    found = objects()
    assert {one["kind"] for _, one in found} == {
        "Job", "NetworkPolicy", "PersistentVolumeClaim", "Service", "ServiceAccount", "StatefulSet",
    }  # fmt: skip
    for _, one in found:
        validate.validate(one, version, strict=True)
    wrong = copy.deepcopy(named("StatefulSet", "luff-watch"))
    container = wrong["spec"]["template"]["spec"]["containers"][0]
    container["livenesProbe"] = {"tcpSocket": {"port": 80}}
    with pytest.raises(Exception, match="livenesProbe"):
        validate.validate(wrong, version, strict=True)


def test_kustomize_names_files_that_are_there():
    for folder, name in ((RECIPES, "luff-watch"), (RECIPES / "bucket", "luff-watch-bucket")):
        text = yaml.safe_load((folder / "kustomization.yaml").read_text())
        assert all((folder / resource).is_file() for resource in text["resources"])
        assert text["images"][0]["name"] == containers(named("StatefulSet", name))["watch"]["image"]


def test_pods_run_as_a_user_with_no_more_rights_than_needed():
    pods = [one for _, one in objects() if "template" in one.get("spec", {})]
    assert len(pods) == 5
    for one in pods:
        pod = one["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["terminationGracePeriodSeconds"] >= 20
        mounted = {volume["name"] for volume in pod["volumes"]}
        for container in containers(one).values():
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert {mount["name"] for mount in container["volumeMounts"]} <= mounted


@pytest.mark.parametrize("name", ["luff-watch", "luff-watch-bucket"])
def test_as_many_shards_as_pods(name):
    watch = named("StatefulSet", name)
    environment = {e["name"]: e["value"] for e in containers(watch)["watch"]["env"]}
    assert int(environment["LUFF_SHARDS"]) == watch["spec"]["replicas"]


def start(luff, tmp_path, container, **variables):
    """Runs the command of a container as a process, with the folders of the test in the place of its volumes."""
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    for name, target in {"luff": luff.executable, "python": sys.executable}.items():
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_text(f'#!/bin/sh\nexec "{target}" "$@"\n')
        (folder / name).chmod(0o755)
    given = {e["name"]: e["value"] for e in container.get("env", [])} | variables
    given["PATH"] = f"{folder}:{os.environ['PATH']}"
    replaced = {
        "/run/luff": str(tmp_path / "pod"), "/runs": str(tmp_path / "runs"), "/etc/luff": str(tmp_path / "etc"),
        "s3://bucket/team": f"file://{tmp_path}/bucket",
    }  # fmt: skip
    words = [*container["command"], *container.get("args", [])]
    for before, after in replaced.items():
        words = [word.replace(before, after) for word in words]
        given = {name: value.replace(before, after) for name, value in given.items()}
    return subprocess.Popen(
        words, cwd=tmp_path, env=os.environ | given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


TRAIN = """
import sys, time
import numpy as np
import luff.numpy
hook = luff.numpy.attach({"w": np.ones(4, np.float32)})
for i in range(40):
    with hook.step() as step:
        step.loss(1 / (i + 1))
    time.sleep(0.02)
hook.close()
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "pod").mkdir()
    return tmp_path


def test_the_job_trains_and_uploads(luff, script, tmp_path):
    job = start(luff, tmp_path, containers(named("Job", "train"))["train"])
    _, err = job.communicate(timeout=120)
    assert job.returncode == 0, err
    (run,) = open_store(f"file://{tmp_path}/bucket").children("runs/")
    assert json.loads(luff("show", f"file://{tmp_path}/bucket/{run}", "--json").stdout)["steps"] == 40


def test_the_sidecar_waits_for_the_run_and_uploads_the_rest_when_it_is_ended(luff, script, tmp_path):
    both = containers(named("Job", "train-sidecar"))
    upload = start(luff, tmp_path, both["upload"])
    train = start(luff, tmp_path, both["train"])
    _, err = train.communicate(timeout=120)
    assert train.returncode == 0, err
    assert upload.stdout is not None
    assert upload.stdout.readline().startswith("file://")  # it uploads
    upload.send_signal(signal.SIGTERM)  # as Kubernetes does after the training
    _, err = upload.communicate(timeout=60)
    assert upload.returncode == 0, err
    (run,) = open_store(f"file://{tmp_path}/bucket").children("runs/")
    assert json.loads(luff("show", f"file://{tmp_path}/bucket/{run}", "--json").stdout)["steps"] == 40


def test_a_sidecar_without_a_run_leaves_when_it_is_told(luff, tmp_path):
    upload = start(luff, tmp_path, containers(named("Job", "train-sidecar"))["upload"])
    time.sleep(0.5)  # its shell must have set the trap; else the signal ends it, which is as good
    upload.send_signal(signal.SIGTERM)
    upload.communicate(timeout=10)
    assert upload.returncode in (0, -signal.SIGTERM)


def test_the_pod_that_watches_has_its_shard_and_leaves_in_time(luff, tmp_path):
    (tmp_path / "runs").mkdir()
    watch = start(
        luff, tmp_path, containers(named("StatefulSet", "luff-watch"))["watch"], HOSTNAME="luff-watch-1"
    )
    assert watch.stderr is not None
    assert "judging the runs" in watch.stderr.readline()
    watch.send_signal(signal.SIGTERM)
    _, err = watch.communicate(timeout=30)
    assert watch.returncode == 0, err
    assert (tmp_path / "runs/.luff-watch/1-of-2/findings.jsonl").exists()


def test_a_container_that_is_started_again_copies_its_key_again():
    """/tmp outlives it, with a copy that not even its user may write."""
    # Root may write it.
    user = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    command = containers(named("StatefulSet", "luff-watch-bucket"))["watch"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "key").mkdir()
        (folder / "key/stop.key").write_text("first")
        (folder / "luff").write_text('#!/bin/sh\nwhile [ "$1" != --key ]; do shift; done\ncat "$2"\n')
        (folder / "luff").chmod(0o755)
        words = [w.replace("/etc/luff", name) for w in [*command["command"], *command["args"]]]
        given = {
            "PATH": f"{name}:{os.environ['PATH']}",
            "HOME": name,
            "HOSTNAME": "watch-0",
            "LUFF_SHARDS": "2",
        }
        for key in ("first", "second"):
            (folder / "key/stop.key").unlink()
            (folder / "key/stop.key").write_text(key)
            (folder / "key/stop.key").chmod(0o444)
            done = subprocess.run(words, env=given, capture_output=True, text=True, **user)
            assert (done.returncode, done.stdout) == (0, key), done.stderr
            assert (folder / "stop.key").stat().st_mode & 0o777 == 0o400


def test_pods_that_watch_the_bucket_judge_its_jobs_and_stop_them_with_their_key(luff, script, tmp_path):
    (tmp_path / "train.py").write_text(
        TRAIN.replace("range(40)", "range(6000)").replace(
            "1 / (i + 1)", "float('nan') if i > 20 else 1 / (i + 1)"
        )
    )
    (tmp_path / "etc/key").mkdir(parents=True)
    lines = luff("keys", "new", tmp_path / "etc/key/stop.key", "--id", "watch", "--may", "stop").stdout
    (tmp_path / "etc/key/stop.key").chmod(0o444)  # as in the volume of a secret
    (tmp_path / "etc/luff.toml").write_text(lines)
    container = containers(named("StatefulSet", "luff-watch-bucket"))["watch"]
    watches = []
    for number in range(2):
        (home := tmp_path / f"home-{number}").mkdir()
        given = {
            "HOSTNAME": f"luff-watch-bucket-{number}",
            "HOME": str(home),
            "LUFF_CACHE": str(home / "cache"),
        }
        watches.append(start(luff, tmp_path, container, **given))
        assert "judging the runs" in watches[-1].stderr.readline()
        assert (home / "stop.key").stat().st_mode & 0o077 == 0
    job = start(luff, tmp_path, containers(named("Job", "train-watched"))["train"])
    _, err = job.communicate(timeout=170)
    said = []
    for watch in watches:
        watch.send_signal(signal.SIGTERM)
        said.append(watch.communicate(timeout=30)[1])
        assert watch.returncode == 0, said
    assert job.returncode == 76, (err, said)
    assert sum("NonFinite" in one for one in said) == 1, said  # one of the shards
    (run,) = open_store(f"file://{tmp_path}/bucket").children("runs/")
    shown = luff("show", f"file://{tmp_path}/bucket/{run}", "--json", expect=None).stdout
    assert "NonFinite" in shown
