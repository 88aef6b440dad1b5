"""``cards URL``: tells which runs a bucket has, and gets the cards that have changed. How `luff runs URL` asks.

Standard input has what is known, a line ``ID STAMP`` for each run. What is printed is read by `catalog::LookReader`.
"""

from __future__ import annotations

import hashlib
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from luff.remote._bucket import is_begun
from luff.remote._errors import Absent, BucketError, Refused
from luff.remote._files import CARDS, MAX_CARD, card_key, is_run_id
from luff.remote._judged_card import ENDING, MAX_JUDGED, judged_card_key, with_judged
from luff.remote._places import check_there
from luff.remote._recipients import CommandFailed, identities
from luff.remote._run_store import identity_text, open_card, public_card
from luff.remote._seal import check_cryptography
from luff.remote._store import Listed, Store, check_installed, normal_url, open_store

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_RUNS = 100_000  # beyond it a prefix for each project
_AT_ONCE = 16
_BATCH = 512
_ASK_AGAIN = 1  # the stamp of no card


def stamp_of(card: Listed, judged: Listed | None = None) -> int:
    """A number from 1 on that changes when a card is put again, or is read with other keys.

    `judged`: what who judges the run says beside it.
    """
    also = f" {judged.etag} {judged.modified_unix_ns}" if judged is not None else ""
    text = f"{card.etag} {card.size} {card.modified_unix_ns}{also} {identity_text()}".rstrip().encode()
    return (int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1) or 1


def _known(lines: Iterable[str]) -> dict[str, int]:
    words = (line.split() for line in lines)
    return {run_id: int(stamp) for run_id, stamp in words}


def _write(text: str, data: bytes = b"") -> None:
    # A name or an error of a server may hold anything: a line stays one line.
    line = "".join(c if c.isprintable() else " " for c in text)
    sys.stdout.buffer.write(line.encode(errors="replace") + b"\n" + (data + b"\n" if data else b""))


def _get(store: Store, card: Listed, judged: Listed | None) -> tuple[bytes | BucketError, int]:
    """Returns a card, or why there is none, and its stamp."""
    got, stamp = _get_card(store, card)
    if judged is None or isinstance(got, BucketError):
        return got, stamp
    try:
        found = store.get(judged_card_key(card.name), MAX_JUDGED)
    except (Absent, Refused):
        return got, stamp
    except BucketError as error:
        return error, 0
    whole = with_judged(got, found[0], card.name) if found else got
    return whole, stamp if stamp == _ASK_AGAIN else stamp_of(card, judged)


def _get_card(store: Store, card: Listed) -> tuple[bytes | BucketError, int]:
    try:
        found = store.get(card_key(card.name), MAX_CARD)
        data = found[0] if found else b""
    except BucketError as error:
        return error, 0
    try:
        return open_card(store, card.name, data), stamp_of(card)
    except (
        CommandFailed
    ):  # of somebody else's run, or of a service that is away: asked again with the next look
        return public_card(data), _ASK_AGAIN
    except BucketError as error:
        return error, 0


def _tell(store: Store, card: Listed, got: bytes | BucketError, stamp: int) -> None:
    if isinstance(got, Absent):
        return  # removed since it was listed
    if isinstance(got, Refused):  # of this one; a bucket that is away is an error
        _write(f"! {got}")
    elif isinstance(got, BucketError):
        raise got
    elif not got:
        _write(f"! a card is empty: {store.url}/{card_key(card.name)}")
    else:
        _write(f"+ {card.name} {stamp} {card.modified_unix_ns} {len(got)}", got)


def look(store: Store, known: dict[str, int]) -> None:
    """Prints the runs of a bucket. Raises a BucketError."""
    if identities():  # a mistake in what names them is one of all cards
        check_cryptography()
    check_there(store.url)
    listed = store.objects(CARDS, 2 * MAX_RUNS)  # of a run that is judged in its bucket there are two
    judged = {card.name.removesuffix(ENDING): card for card in listed if card.name.endswith(ENDING)}
    cards = [card for card in listed if not card.name.endswith(ENDING)][:MAX_RUNS]
    if len(cards) == MAX_RUNS or len(listed) == 2 * MAX_RUNS:
        _write(f"! only the first {MAX_RUNS} runs are listed; give each project a prefix: {store.url}")
    changed, same = [], []
    for card in cards:
        if not is_run_id(card.name):
            continue  # nothing that Luff has put
        if card.size > MAX_CARD:
            key = card_key(card.name)
            _write(f"! a card has {card.size} bytes, Luff writes at most {MAX_CARD}: {store.url}/{key}")
        elif known.get(card.name) == (stamp := stamp_of(card, judged.get(card.name))):
            same.append(f"= {card.name} {stamp}\n")
        else:
            changed.append(card)
    sys.stdout.buffer.write("".join(same).encode())
    _write(f"# {len(changed)}")
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="luff-cards") as pool:
        for at in range(0, len(changed), _BATCH):
            batch = changed[at : at + _BATCH]
            for card, got in zip(
                batch, pool.map(lambda one: _get(store, one, judged.get(one.name)), batch), strict=True
            ):
                _tell(store, card, *got)
            sys.stdout.flush()
    if not any(is_run_id(card.name) for card in cards):
        _tell_runs_without_cards(store)


def _tell_runs_without_cards(store: Store) -> None:
    runs = sum(is_run_id(name) for name in store.children("runs/"))
    if runs:
        _write(
            f"! {runs} run{'s' * (runs != 1)} without a card; `luff sync` with this Luff writes it: {store.url}"
        )
    elif not is_begun(store):
        _write(f"! no Luff has written there yet; is the URL right? {store.url}")


def main() -> int:
    try:
        url = normal_url(sys.argv[1])
        check_installed(url)
        look(open_store(url), _known(sys.stdin))
        _write(".")
    except BucketError as error:
        _write(f"E {error}")
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    try:
        code = main()
    except BrokenPipeError:  # nobody listens any more
        code = 1
    os._exit(code)  # obstore's threads do not survive the end of the interpreter
