"""Calls into the main thread, between two bytecodes of whatever runs there."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest
from luff._core import call_soon


def wait_in_python(condition) -> None:
    until = time.monotonic() + 60
    while not condition() and time.monotonic() < until:
        pass


def test_it_runs_once_in_the_main_thread_and_is_let_go() -> None:
    class Held:
        def __call__(self) -> None:
            ran.append(threading.current_thread())

    ran: list[threading.Thread] = []
    held = Held()
    gone = weakref.ref(held)
    other = threading.Thread(target=call_soon, args=(held,))
    other.start()
    other.join()
    wait_in_python(lambda: ran)
    assert ran == [threading.main_thread()]
    del held, other
    gc.collect()
    assert gone() is None


def test_what_it_raises_goes_on_in_the_main_thread() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt("of the user's")

    def training() -> None:
        assert call_soon(interrupted)
        wait_in_python(lambda: False)

    with pytest.raises(KeyboardInterrupt, match="of the user's"):
        training()
