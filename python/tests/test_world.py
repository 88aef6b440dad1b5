"""Which processes train one model together."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from luff._world import world_name

_CODE = "import json, sys; from luff._world import world_name; print(world_name(*json.loads(sys.argv[1])))"


def _named(rank, supervisor, **environment):
    """Returns what a new child calls its world."""
    inherited = {key: value for key, value in os.environ.items() if key not in ("MASTER_ADDR", "MASTER_PORT")}
    command = [sys.executable, "-c", _CODE, json.dumps([rank, supervisor])]
    done = subprocess.run(command, env=inherited | environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def test_a_process_without_ranks_is_a_new_world_at_each_call():
    assert len({world_name(rank, os.getpid()) for rank in (None, None, (0, 1), (0, 1))}) == 4


def test_ranks_of_one_launcher_name_the_same_world():
    names = {_named((rank, 2), os.getpid(), MASTER_PORT="29500") for rank in (0, 1)}
    assert len(names) == 1
    assert _named((0, 2), os.getpid(), MASTER_PORT="29501") not in names  # another world beside it
    assert _named((0, 3), os.getpid(), MASTER_PORT="29500") not in names


def test_the_next_training_of_the_same_ranks_has_another_name():
    assert world_name((0, 2), os.getpid()) != world_name((0, 2), os.getpid())


@pytest.mark.parametrize("local", ["2", "4"])
def test_ranks_on_several_machines_have_no_parent_in_common(local):
    parent = str(os.getppid())
    known = {"TORCHELASTIC_RUN_ID": "abc", "LOCAL_WORLD_SIZE": local, "MASTER_PORT": "1"}
    names = {_named((rank, 4), os.getpid(), **known | {"MASTER_PORT": str(rank)}) for rank in (0, 3)}
    [name] = names  # a restart may change the port
    assert (str(os.getpid()) in name) == (local == "4")
    assert parent not in name


def test_ranks_that_a_daemon_starts_have_no_parent_in_common():
    name = _named((1, 2), 999_999_999, MASTER_ADDR="node1", MASTER_PORT="29500", SLURM_STEP_ID="7")
    assert name == "world of 2: node1 29500 7 , training 0\n"
