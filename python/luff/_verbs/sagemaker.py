"""``python -m luff._verbs.sagemaker FILE``: prints a job's JSON configuration as Luff's TOML."""

from __future__ import annotations

import sys


def main() -> int:
    """Translates the file; returns 2 if it is not such a configuration."""
    from luff.compat.sagemaker.job import read_job, to_luff
    from luff.compat.smdebug.exceptions import SMDebugError
    from luff.errors import LuffError

    path = sys.argv[1]
    try:
        found = read_job(path)
        text, told = to_luff(found)
    except (LuffError, SMDebugError) as error:
        message = str(error)
        print(f"luff: {message}" + ("" if path in message else f": {path}"), file=sys.stderr)
        return 2
    for line in told:
        print(f"luff: {line}", file=sys.stderr)
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
