"""1,000 tags x 2,000 steps beside another program that shows them, in the same browser, interleaved."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import luff.numpy
import numpy as np
from _studio import Bench, anonymous_mb, browser, wait

__all__ = ["STEPS", "TAGS", "compare", "drawn", "other_server"]

TAGS, STEPS = 1000, 2000
#: Pages that ask for fonts elsewhere do without them: no name of another host is known.
ALONE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"


def compare(bench: Bench, name: str, theirs: Callable[[Any], dict[str, float]]) -> None:
    """Times Luff's page and another's in turns.

    Parameters
    ----------
    name
        Of the other one.
    theirs
        Gets a browser; returns seconds until names are listed ("list") and until a chart is drawn ("first chart"), both
        from opening the page, and MB of memory of its processes ("memory").
    """
    root = bench.folder / "beside"
    if not root.exists():
        _record(root / "run")
    found: dict[str, tuple[list[float], list[float]]] = {}
    for number in range(bench.rounds):
        with _view(bench, f"ours-{name}{number}") as view:
            ours = _ours(bench, root, f"beside-{name}{number}", view)
        with _view(bench, f"{name}{number}") as view:
            other = theirs(view)
        for what in ours:
            both = found.setdefault(what, ([], []))
            both[0].append(ours[what])
            both[1].append(other[what])
    for what, (mine, its) in found.items():
        unit = "MB" if what == "memory" else "s"
        bench.note(f"{what}, Luff beside {name}, {unit}", min(mine))
        bench.note(f"{what}, {name}, {unit}", min(its))
        bench.note(f"{what}, beside {name}", min(mine) / min(its))


def drawn(view: Any, condition: str, begun: float) -> float:
    """Waits until an expression of JavaScript is true; returns seconds since `begun`."""
    wait(lambda: view.evaluate(condition), 300)
    return time.monotonic() - begun


@contextlib.contextmanager
def other_server(command: Callable[[int], list[str]]) -> Iterator[tuple[int, Callable[[], float]]]:
    """Runs a server of a peer, whose command is given a port; yields it and what returns its memory in MB."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(command(port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def memory() -> float:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        return sum(anonymous_mb(pid) for pid in [process.pid, *map(int, children)])

    try:
        yield port, memory
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:  # it may wait for the page to leave
            process.kill()
            process.wait()


@contextlib.contextmanager
def _view(bench: Bench, name: str) -> Iterator[Any]:
    view = browser(bench.folder / f"view-{name}", ALONE)
    try:
        yield view
    finally:
        view.close()


def _record(run: Path) -> None:
    run.parent.mkdir(parents=True)
    hook = luff.numpy.attach({"w": np.ones(1, np.float32)}, run=run)
    for step in range(STEPS):
        with hook.step():
            for i in range(TAGS):
                luff.numpy.save_scalar(f"h{i // 10}/part{i % 10}", 1 / (step + i + 1))
    hook.close()


def _ours(bench: Bench, root: Path, home: str, view: Any) -> dict[str, float]:
    """Times from opening the page: all names are known, and a chart is drawn."""
    with bench.server(root, home=home) as server:
        run = server.first_run().rsplit("/", 1)[1]
        view.open(server.link)  # signs on
        view.until("document.querySelector('tbody tr') !== null")
        view.open("about:blank")  # so that the page is loaded anew
        view.until("location.href === 'about:blank'")
        begun = time.monotonic()
        view.open(f"{server.link.split('/#')[0]}/#/run/{run}?view=curves&t=1")
        listed = drawn(view, "(document.body?.innerText ?? '').includes('part')", begun)
        chart = drawn(view, "document.querySelector('canvas') !== null", begun)
        return {"list": listed, "first chart": chart, "memory": anonymous_mb(server.pid)}
