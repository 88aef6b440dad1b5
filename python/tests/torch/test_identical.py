"""Every way of training computes bit by bit what it computes without Luff."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cases import CASES

HERE = Path(__file__).parent


WAYS = {
    "bare": [],
    "default": ["--fake", "--roles", "default"],
    "all": ["--fake", "--roles", "all"],
    "modules": ["--fake", "--roles", "modules"],
    "traced": ["--roles", "traced", "--run"],  # a folder follows
}


def _train(arguments):
    done = subprocess.run(
        [sys.executable, str(HERE / "cases.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    run = str(tmp_path_factory.mktemp("traced") / "run")
    ways = [[*words, run] if words[-1:] == ["--run"] else words for words in WAYS.values()]
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(WAYS, pool.map(_train, ways), strict=True))


@pytest.fixture(scope="module")
def bare(trained):
    return trained["bare"]


@pytest.fixture(scope="module", params=["default", "all", "modules", "traced"])
def watched(request, trained):
    return trained[request.param]


@pytest.mark.parametrize("name", CASES)
def test_same_losses_weights_and_randomness(bare, watched, name):
    assert watched[name] == bare[name]


def test_no_error_was_counted(watched, request):
    report = watched["_luff"]
    way = request.node.callspec.params["watched"]
    if way == "modules":
        assert report["timed"] > 0.7 * report["train"]
    assert report["places"] == {}
    assert report["errors"] == 0
    assert report["misuse"] == []
    if way == "traced":  # ten steps each, of six in most cases
        assert report["traces"] > len(CASES) / 3
    else:
        assert report["train"] > 5 * len(CASES)
