"""Puts a signed request into a bucket, for ``luff request``. Reads it from standard input, and prints its number.

An error is one line on standard output, with exit code 1.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from luff.remote._client import whole_url
from luff.remote._errors import BucketError
from luff.remote._files import split_run
from luff.remote._requests import MAX_REQUEST, put_request
from luff.remote._store import check_installed, normal_url, open_store

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="luff request")
    parser.add_argument("url", metavar="URL")
    parser.add_argument("--after", type=int, default=0)
    arguments = parser.parse_args(words)
    data = sys.stdin.buffer.read(MAX_REQUEST + 1)
    try:
        url = normal_url(arguments.url)
        check_installed(url)
        base, run_id = split_run(whole_url(url))
        print(put_request(open_store(base), run_id, data, arguments.after))
    except BucketError as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # obstore's threads do not survive the end of the interpreter
