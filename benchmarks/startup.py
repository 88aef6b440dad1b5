"""The time of the command and of the import: `luff --version`, and `import luff` compared with `import numpy`.

usage: ./dev bench startup [--json FILE] [--rounds N]
Each is the best of N new processes, interleaved. Gates: 20 ms, and 100 ms above NumPy.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(os.environ.get("LUFF_BENCH_ROOT", Path(__file__).resolve().parents[1]))
COMMANDS = {
    "luff --version": [str(ROOT / ".venv" / "bin" / "luff"), "--version"],
    "python": [sys.executable, "-c", ""],
    "import numpy": [sys.executable, "-c", "import numpy"],
    "import luff": [sys.executable, "-c", "import numpy, luff"],
}


def measure_ms(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return 1e3 * (time.perf_counter() - start)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write results and gates there")
    parser.add_argument("--rounds", type=int, default=10, help="processes for each number (default: 10)")
    args = parser.parse_args()
    present = {name: command for name, command in COMMANDS.items() if Path(command[0]).exists()}
    best = dict.fromkeys(present, float("inf"))
    for _ in range(args.rounds + 1):  # one more round, which warms the page cache but counts as well
        for name, command in present.items():
            best[name] = min(best[name], measure_ms(command))
    extra = best["import luff"] - best["import numpy"]
    gates = [
        {"name": "import luff above import numpy, ms", "value": extra, "limit": 100.0, "ok": extra <= 100.0}
    ]
    if "luff --version" in best:
        value = best["luff --version"]
        gates.append({"name": "luff --version, ms", "value": value, "limit": 20.0, "ok": value <= 20.0})
    for name, value in best.items():
        print(f"{name:<16} {value:8.1f} ms")
    for gate in gates:
        print(
            f"{gate['name']:<36} {gate['value']:8.1f}  limit {gate['limit']:.0f}  {'ok' if gate['ok'] else 'FAILED'}"
        )
    if args.json:
        args.json.write_text(json.dumps({"results": best, "gates": gates}, indent=1) + "\n")
    return 0 if all(gate["ok"] for gate in gates) else 1


if __name__ == "__main__":
    sys.exit(main())
