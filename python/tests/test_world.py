"""Which processes train one model together."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from luff._world import world_name

_KEYS = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "LOCAL_WORLD_SIZE", "WORLD_SIZE")
_CODE = "import json, sys; from luff._world import world_name; print(world_name(*json.loads(sys.argv[1])), end='')"
_WRAPPED = (
    "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', *sys.argv[1:]]).returncode)"
)


def _named(rank, supervisor, *, wrapped=False, **environment):
    """Returns what a new child, or a child of a child, calls its world."""
    inherited = {key: value for key, value in os.environ.items() if key not in _KEYS}
    command = [sys.executable, "-c", *([_WRAPPED] if wrapped else []), _CODE, json.dumps([rank, supervisor])]
    done = subprocess.run(command, env=inherited | environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def test_a_process_without_ranks_is_a_new_world_at_each_call(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert len({world_name(rank, os.getpid()) for rank in (None, None, (0, 1), (0, 1))}) == 4


def test_ranks_below_one_command_name_the_same_world_whoever_started_them():
    above = os.getppid()
    names = {_named((rank, 2), above, wrapped=bool(rank), MASTER_PORT="29500") for rank in (0, 1)}
    assert len(names) == 1
    assert _named((0, 2), above, MASTER_PORT="29501") not in names  # another world beside it
    assert _named((0, 3), above, MASTER_PORT="29500") not in names


def test_the_next_training_of_the_same_ranks_has_another_name():
    assert world_name((0, 2), os.getpid()) != world_name((0, 2), os.getpid())


@pytest.mark.parametrize("size", ["1", "2"])
def test_a_restart_by_an_elastic_launcher_goes_on(size):
    known = {"TORCHELASTIC_RUN_ID": "abc", "LOCAL_WORLD_SIZE": size, "WORLD_SIZE": size}
    first, again = (_named((0, int(size)), 1, **known, MASTER_PORT=port) for port in ("29500", "31000"))
    assert first == again
    assert str(os.getpid()) in first  # another launcher is another world


def test_ranks_that_a_daemon_starts_have_no_process_in_common():
    name = _named((1, 2), 999_999_999, MASTER_ADDR="node1", MASTER_PORT="29500", SLURM_STEP_ID="7")
    assert name == "world 7  2 node1 29500, training 0"
