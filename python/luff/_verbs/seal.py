"""``luff keys new FILE --encryption`` and ``luff keys check URL``: keys that open encrypted runs. docs/security.md."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from luff.remote._errors import BucketError, Refused, Unreachable, WrongUrl
from luff.remote._files import is_run_id, run_key
from luff.remote._recipients import new_key_file
from luff.remote._run_folder import MAX_RUN_JSON
from luff.remote._run_store import reading
from luff.remote._seal import is_sealed
from luff.remote._store import check_installed, normal_url, open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from luff.remote._store import Store

OK, CLOSED, WRONG_USAGE, REFUSED, INCOMPLETE = 0, 1, 2, 5, 6
_AT_ONCE = 8
_SHOWN = 20


def _say(text: str) -> None:
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    print(f"luff: keys: {text}", file=sys.stderr, flush=True)


def _new(path: str) -> int:
    print(f'[bucket]\nencrypt_to = ["{new_key_file(path)}"]')
    _say(f"{path} holds the secret key: who reads the runs needs it, and without it they are lost")
    _say(
        "the line above is not secret; it belongs into the environment of each job that is to encrypt its upload"
    )
    return OK


def _state(store: Store, run_id: str) -> str:
    """Returns "opens", "not encrypted", or why it does not open."""
    try:
        found = store.get(run_key(run_id), MAX_RUN_JSON + (1 << 10))
        if found is None or not is_sealed(found[0]):
            return "not encrypted"
        reading(store, run_id).get(run_key(run_id), MAX_RUN_JSON)
    except Refused as error:
        return str(error)
    return "opens"


def _check(url: str) -> int:
    """Opens an object of each run."""
    store = open_store(url)
    runs = [name for name in store.children("runs/") if is_run_id(name)]
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="luff-keys") as pool:
        states = list(pool.map(lambda run: _state(store, run), runs))
    closed = [
        (run, state)
        for run, state in zip(runs, states, strict=True)
        if state not in ("opens", "not encrypted")
    ]
    for run, state in closed[:_SHOWN]:
        _say(f"{run}: {state}")
    if len(closed) > _SHOWN:
        _say(f"and {len(closed) - _SHOWN} more")
    print(
        f"{len(runs)} runs: {states.count('opens')} open with the keys here, {states.count('not encrypted')} are not "
        f"encrypted, {len(closed)} do not open"
    )
    return CLOSED if closed else OK


def main(words: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if words is None else list(words)
    try:
        if len(words) == 2 and words[0] == "new":
            return _new(words[1])
        if len(words) == 2 and words[0] == "check":
            url = normal_url(words[1])
            check_installed(url)
            return _check(url)
    except BucketError as error:
        _say(str(error))
        return {Unreachable: INCOMPLETE, WrongUrl: WRONG_USAGE}.get(type(error), REFUSED)
    _say("expected `new FILE` or `check URL`")
    return WRONG_USAGE


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # obstore's threads do not survive the end of the interpreter
