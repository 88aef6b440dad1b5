"""The fetcher of runs in buckets, started by the first reader: ``fetch ROOT``. Not for people."""

from __future__ import annotations

import os
import sys

from luff.remote._fetcher import Fetcher

CACHE_BYTES = 8 << 30
IDLE_S = 60.0


def main() -> int:
    most = int(os.environ.get("LUFF_CACHE_BYTES") or CACHE_BYTES)
    idle = float(os.environ.get("LUFF_FETCH_IDLE_S") or IDLE_S)
    return Fetcher(sys.argv[1], cache_bytes=most, idle_s=idle).run()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # obstore's threads do not survive the end of the interpreter
