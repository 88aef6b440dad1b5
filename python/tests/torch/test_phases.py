"""Where the time of a step goes in trainings of two processes: phases of each rank add up to its time."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
USUAL = {"forward", "loss", "backward", "optimizer", "zero_grad", "other"}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_phases_of_each_rank_add_up(start_luff, phases_of, tmp_path, kind):
    words = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2",
        f"--master-port={free_port()}", str(HERE / "distributed_script.py"), kind, str(tmp_path),
    ]  # fmt: skip
    # Each rank has a process of its own below the one that is started.
    start_luff(f"import subprocess, sys; sys.exit(subprocess.call({words!r}))")
    for rank in range(2):
        shown, lines = phases_of(tmp_path / "run", "--rank", str(rank))
        assert shown["workers"] == [0, 1]
        assert shown["worker"] == rank
        assert shown["steps"] == 6
        assert set(lines) >= USUAL
        assert {line["steps"] for phase, line in lines.items() if phase in USUAL - {"zero_grad"}} == {6}
        own = next(one for one in shown["ranks"] if one["worker"] == rank)
        assert own["seconds"] == pytest.approx(shown["seconds"], rel=1e-9)
        assert sum(own["phases"].values()) == pytest.approx(own["seconds"], rel=1e-9)
    assert shown["skew"]
