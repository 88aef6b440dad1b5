"""Names the processes that train one model together."""

from __future__ import annotations

import itertools
import os
import platform

__all__ = ["world_name"]

_MAX_ANCESTORS = 64
_numbers = itertools.count()


def world_name(rank: tuple[int, int] | None, supervisor: int) -> str:
    """Returns a name that all ranks of a world have in common.

    A process without ranks is a world of its own, with a new name at each call. The n-th call of a rank names the
    world's n-th training: all ranks run the same program. A restarted rank gets the name that it had before. Two worlds
    that a process starts one after the other may have the same name: `luff._core.find_run` tells them apart, as
    the ranks of the first one have completed.

    Parameters
    ----------
    rank
        Rank and world size, or None.
    supervisor
        Process number of `luff run`.
    """
    elastic = os.environ.get("TORCHELASTIC_RUN_ID")
    if rank is None or (rank[1] < 2 and elastic is None):
        return f"process {os.getpid()} {os.urandom(8).hex()}"
    parts = [os.environ.get(key, "") for key in ("SLURM_STEP_ID", "PMIX_NAMESPACE")]
    if elastic is None:
        parts += [str(rank[1]), os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")]
    else:  # a restart may change size and port
        parts.append(elastic)
    if elastic is not None and os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE"):
        launcher = os.getppid()  # torchrun's agent, the same for all ranks and after a restart
    else:
        launcher = _child_of(supervisor)
    if launcher:
        parts += [platform.node(), str(launcher), _stat(launcher)[1]]
    return f"world {' '.join(parts)}, training {next(_numbers)}"[:1000]


def _child_of(supervisor: int) -> int:
    """Returns the process right below the supervisor that has started this one: the job's command.

    0 if this process is not below the supervisor: a daemon has started it, and ranks on other machines, too. Ranks need
    not have the same parent: the first may have started the others, and each may have a wrapper.
    """
    pid = os.getpid()
    for _ in range(_MAX_ANCESTORS):
        parent = int(_stat(pid)[0] or 0)
        if parent == supervisor:
            return pid
        if parent < 2:
            break
        pid = parent
    return 0


def _stat(pid: int) -> tuple[str, str]:
    """Returns the parent of a process and when it started, in ticks since boot; empty texts if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read(4096).rpartition(b")")[2].split()
        return fields[1].decode(), fields[19].decode()
    except (OSError, IndexError):
        return "", ""
