"""Names the processes that train one model together."""

from __future__ import annotations

import itertools
import os
import platform

__all__ = ["world_name"]

_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")  # as launchers set them
_MAX_ANCESTORS = 64
_numbers = itertools.count()


def world_name(rank: tuple[int, int] | None, supervisor: int) -> str:
    """Returns a name that all ranks of a world have in common, and no other training of the same job has.

    A process without ranks is a world of its own, with a new name at each call. The n-th call of a rank names the
    world's n-th training: all ranks run the same program. A restarted rank gets the name that it had before.

    Parameters
    ----------
    rank
        Rank and world size, or None.
    supervisor
        Process number of `luff run`.
    """
    if rank is None or rank[1] < 2:
        return f"process {os.getpid()} {os.urandom(8).hex()}"
    size = rank[1]
    keys = ["TORCHELASTIC_RUN_ID"] if "TORCHELASTIC_RUN_ID" in os.environ else ["MASTER_ADDR", "MASTER_PORT"]
    parts = [os.environ.get(key, "") for key in (*keys, "SLURM_STEP_ID", "PMIX_NAMESPACE")]
    if _on_one_machine(size, supervisor):
        parent = os.getppid()
        parts += [platform.node(), str(parent), _stat(parent)[-1]]
    return f"world of {size}: {' '.join(parts)}, training {next(_numbers)}"[:1000]


def _on_one_machine(size: int, supervisor: int) -> bool:
    """Whether all ranks are on this machine, as children of one launcher.

    A process that is not below the supervisor was started by a daemon, which may start ranks on several machines.
    """
    for key in _LOCAL_SIZES:
        if os.environ.get(key):
            return os.environ[key] == str(size)
    pid = os.getpid()
    for _ in range(_MAX_ANCESTORS):
        if pid == supervisor:
            return True
        parent = _stat(pid)[0]
        if not parent:
            return False
        pid = int(parent)
    return False


def _stat(pid: int) -> tuple[str, str]:
    """Returns the parent of a process and when it started, in ticks since boot; empty texts if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read(4096).rpartition(b")")[2].split()
        return fields[1].decode(), fields[19].decode()
    except (OSError, IndexError):
        return "", ""
