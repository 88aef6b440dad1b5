"""``spool URL [asked]``: prints the directory of a local copy of a run in a bucket. How the luff command opens URLs.

With ``asked``, rows are fetched when they are read.
"""

from __future__ import annotations

import sys

from luff.remote._client import open_run
from luff.remote._errors import BucketError


def main() -> int:
    try:
        print(open_run(sys.argv[1], whole=sys.argv[2:] != ["asked"]))
    except BucketError as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
