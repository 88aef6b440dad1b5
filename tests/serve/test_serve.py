"""`luff serve` as a program: starting, answering, errors, and its end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest

from .conftest import LIMIT_S, Server, executable, numbers, record


def test_lists_runs_and_shows_them(server: Server) -> None:
    answer = server.get("/api/v1/runs?sort=name")
    assert (answer["all"], answer["matching"]) == (3, 3)
    places = {run["place"] for run in answer["runs"]}
    assert places == {"one", "two", "inner/three"}
    run = next(run for run in answer["runs"] if run["place"] == "one")
    document = server.get(f"/api/v1/runs/{run['id']}")
    assert document["steps"]["count"] == 60
    assert document["outcome"]["state"] == "completed"
    names = [tensor["name"] for tensor in server.get(f"/api/v1/runs/{run['id']}/tensors")["tensors"]]
    assert "block.1.weight" in " ".join(names)


def test_numbers_are_safetensors(server: Server) -> None:
    run = server.get("/api/v1/runs")["runs"][0]["id"]
    loss = server.get(f"/api/v1/runs/{run}")["losses"][0]
    answer = server.ask("GET", f"/api/v1/runs/{run}/columns?tensor={loss['tensor']}&points=4096")
    arrays = numbers(answer.body)
    key = loss["tensor"]
    assert arrays[f"{key}.step"].tolist() == list(range(60))
    assert arrays[f"{key}.mean"].tolist() == [1.0 / (i + 1) for i in range(60)]
    steps = numbers(server.ask("GET", f"/api/v1/runs/{run}/steps").body)
    assert steps["mode"].tolist() == [1] * 60


def test_the_filter_is_that_of_luff_runs(server: Server) -> None:
    assert server.get("/api/v1/runs?where=steps+%3D+60+and+name+~+tw")["matching"] == 1
    wrong = server.ask("GET", "/api/v1/runs?where=losss+%3C+1")
    assert wrong.status == 400
    assert "nearest" in wrong.json()["detail"]


def test_a_run_alone_and_one_that_begins_later(tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    server = Server(tmp_path, alone)
    try:
        assert server.get("/api/v1/runs")["runs"] == []
        hook = record(alone, 10, close=False)
        run = server.get("/api/v1/runs")["runs"][0]
        assert run["outcome"] == "running"
        hook.close()
        time.sleep(0.15)
        assert server.get(f"/api/v1/runs/{run['id']}")["outcome"]["state"] == "completed"
    finally:
        server.end()


def test_ends_within_two_seconds_even_with_open_streams(runs: Path, tmp_path: Path) -> None:
    server = Server(tmp_path, runs)
    run = server.get("/api/v1/runs")["runs"][0]["id"]
    headers = {"Authorization": f"Bearer {server.token}"}
    request = urllib.request.Request(f"{server.base}/api/v1/live?runs={run}", headers=headers)
    with urllib.request.urlopen(request, timeout=LIMIT_S) as stream:
        while b'"step_count":60' not in (line := stream.readline()):
            assert line, "the stream has ended"
        begun = time.monotonic()
        code, said = server.end()
        assert time.monotonic() - begun < 2
        with contextlib.suppress(ConnectionError):
            assert b"event" not in stream.read()
    assert code == 0
    assert "serving 3 runs" in said


def test_errors_name_what_to_do(tmp_path: Path, server: Server) -> None:
    def refused(*words: str) -> str:
        done = subprocess.run(
            [executable(), "serve", *words], capture_output=True, text=True, timeout=LIMIT_S, check=False,
            env=os.environ | {"LUFF_HOME": str(tmp_path)},
        )  # fmt: skip
        assert done.returncode == 2, done.stderr
        return done.stderr

    assert "give another port, or 0 for any" in refused("--listen", f"127.0.0.1:{server.port}", str(tmp_path))
    assert "ssh -L" in refused("--listen", "0.0.0.0:0", str(tmp_path))
    assert "no address" in refused("--listen", "evil.test:1", str(tmp_path))
    assert "expected ADDRESS:PORT" in refused("--listen", "127.0.0.1:http", str(tmp_path))
    assert "no such" in refused(str(tmp_path / "nothing"))
    file = tmp_path / "file"
    file.write_text("x")
    assert "no directory" in refused(str(file))


def test_a_run_that_takes_the_place_of_another(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    record(root / "run", 12)
    server = Server(tmp_path, root)
    try:
        first = server.get("/api/v1/runs")["runs"][0]["id"]
        assert server.get(f"/api/v1/runs/{first}")["steps"]["count"] == 12
        shutil.rmtree(root / "run")
        record(root / "run", 7)
        assert server.get("/api/v1/runs")["runs"][0]["steps"] == {"TRAIN": 7}
        second = server.get("/api/v1/runs")["runs"][0]["id"]
        assert second != first
        assert server.get(f"/api/v1/runs/{second}")["steps"]["count"] == 7
    finally:
        server.end()


def test_a_root_full_of_other_things(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    record(root / "good", 5)
    os.mkfifo(root / "pipe")
    (root / "link").symlink_to(root / "good")
    (root / "broken").mkdir()
    (root / "broken" / "run.json").write_text("{" * 100_000)
    os.symlink("/etc", root / "etc")
    server = Server(tmp_path, root)
    try:
        answer = server.get("/api/v1/runs")
        states = {run["place"]: run["verdict"] for run in answer["runs"]}
        assert states["good"] == "ok"
        assert states.get("broken", "damaged") == "damaged"
        assert "link" not in states
        broken = next((run for run in answer["runs"] if run["place"] == "broken"), None)
        if broken:
            wrong = server.ask("GET", f"/api/v1/runs/{broken['id']}")
            assert wrong.status == 422
            assert wrong.json()["detail"]
    finally:
        server.end()


@pytest.mark.slow
def test_killing_the_server_harms_no_run(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    hook = record(root / "live", 5, close=False)
    for _ in range(5):
        server = Server(tmp_path, root)
        run = server.get("/api/v1/runs")["runs"][0]["id"]
        end = time.monotonic() + LIMIT_S
        while server.get(f"/api/v1/runs/{run}")["steps"]["count"] == 0:  # the writer has a thread of its own
            assert time.monotonic() < end
            time.sleep(0.05)
        assert server.ask("GET", f"/api/v1/runs/{run}/heat/l2/0/0/0").status == 200
        os.kill(server.pid, signal.SIGKILL)
        server.end()
        with hook.step() as step:
            step.loss(1.0)
    hook.close()
    done = subprocess.run(
        [executable(), "verify", str(root / "live")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def ask_until_it_ends(request: urllib.request.Request) -> None:
    for _ in range(20):
        urllib.request.urlopen(request, timeout=LIMIT_S).close()
        time.sleep(0.1)


def watch_beside(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    line = process.stderr.readline()
    assert "watch it in a browser: http://127.0.0.1:" in line, line
    link, where = line.split("browser: ")[1].strip().split("/?await=")
    assert where == "run"  # the page opens it when it is there
    base, token = link.split("/#token=")
    request = urllib.request.Request(f"{base}/api/v1/runs", headers={"Authorization": f"Bearer {token}"})
    end = time.monotonic() + LIMIT_S
    runs = []
    while not runs:
        assert time.monotonic() < end
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            runs = json.load(answer)["runs"]
        time.sleep(0.05)  # who asks without a pause is refused
    assert runs[0]["outcome"] == "running"
    said, told = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, said) == (0, "trained\n"), told  # nothing of ours on standard output
    assert "luff: ok: 400 steps" in told
    with pytest.raises(OSError, match="refused"):  # it ends with the job
        ask_until_it_ends(request)


def test_beside_a_training(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import time\nimport numpy as np\nimport luff.numpy\n"
        "hook = luff.numpy.attach({'w': np.ones(3)})\n"
        "for i in range(400):\n    with hook.step() as step:\n        step.loss(1 / (i + 1))\n"
        "    time.sleep(0.01)\n"
        "print('trained')\n"
    )
    process = subprocess.Popen(
        [executable(), "run", "--serve", "--run", str(tmp_path / "run"), "--", sys.executable, str(script)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"LUFF_HOME": str(tmp_path / "home")},
    )  # fmt: skip
    try:
        watch_beside(process)
    finally:
        process.kill()
        process.communicate()


def test_every_route_answers_as_openapi_says(server: Server) -> None:
    document = server.get("/api/v1/openapi.json")
    run, *others = [one["id"] for one in server.get("/api/v1/runs")["runs"]]
    pair = f"?runs={run},{others[0]}"
    values = {"run": run, "step": "31", "stat": "l2", "level": "0", "x": "0", "y": "0", "tensor": "0"}
    queries = {
        "columns": "?tensor=0,1",
        "rows": "?tensor=0",
        "overview": "?tensor=0",
        "histograms": "?tensor=0",
        "histogram": "?tensor=0&step=31",
        "live": f"?runs={run}",
        "compare": pair,
        "compare/tensors": pair,
        "compare/map": pair,
    }
    checked = 0
    for path, methods in document["paths"].items():
        if "get" not in methods or path.endswith("/live"):
            continue
        name = path.removeprefix("/api/v1/")
        asked = path.format(**values) + queries.get(name, queries.get(name.removeprefix("runs/{run}/"), ""))
        answer = server.ask("GET", asked)
        if path.endswith(("/histogram", "/log")) and answer.status == 404:
            continue  # none was recorded
        assert answer.status == 200, (asked, answer.body)
        [(kind, content)] = methods["get"]["responses"]["200"]["content"].items()
        assert answer.headers["Content-Type"].startswith(kind), asked
        if "schema" in content:
            schema = content["schema"] | {"components": document["components"]}
            jsonschema.Draft202012Validator(schema).validate(answer.json())
            checked += 1
    problem = server.ask("GET", "/api/v1/runs/nothing")
    schema = document["components"]["schemas"]["Problem"]
    jsonschema.Draft202012Validator(schema).validate(problem.json())
    assert problem.headers["Content-Type"] == "application/problem+json"
    assert checked >= 9
