"""What is shipped, and how soon the server listens."""

from __future__ import annotations

import subprocess
from pathlib import Path

from _gates import luff_command
from _studio import ROOT, Bench, record


def measure(bench: Bench) -> None:
    for asset in (ROOT / "web/dist/assets").glob("*.gz"):
        bench.note("bundle gzip, KB", asset.stat().st_size / 1e3)
    if "bundle gzip, KB" in bench.found:  # what a browser loads, all together
        bench.found["bundle gzip, KB"] = [sum(bench.found["bundle gzip, KB"])]
    else:
        bench.skip("bundle gzip, KB", "web/dist holds no page")
    bench.skip(
        "wheel growth, MB", "needs two wheels: ./dev wheel, with and without the page, compared by hand"
    )
    root = bench.folder / "small"
    root.mkdir()
    record(root / "run", 10, 10)
    for _ in range(bench.rounds + 2):
        with bench.server(root, home="small-home") as server:
            bench.note("start to listening, CPU ms", 1e3 * server.cpu_to_listening_s)
    size = Path(luff_command()).stat().st_size
    stripped = subprocess.run(["size", luff_command()], capture_output=True, text=True, check=False)
    if stripped.returncode == 0:
        size = int(stripped.stdout.splitlines()[1].split()[3])
    bench.note("luff without symbols, MB", size / 1e6)
