"""Threads that do what waits."""

from __future__ import annotations

import threading
import time

import pytest
from luff.remote._turns import Turns

LONG_S = 120.0  # that nobody should have to wait


@pytest.fixture
def turns():
    begun = []

    def begin(most):
        begun.append(Turns(most))
        return begun[-1]

    yield begin
    for one in begun:
        one.end()


def wait_for(what):
    end = time.monotonic() + LONG_S
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_one_thread_does_all_in_its_order_and_a_failure_stops_nothing(turns):
    done, last = [], threading.Event()

    def do(number):
        done.append(number)
        if number % 3 == 0:
            raise ValueError(number)

    one = turns(1)
    for number in range(100):
        one.add(lambda number=number: do(number))
    one.add(last.set)
    assert last.wait(LONG_S)
    assert done == list(range(100))
    assert not one.waiting


def test_what_hangs_holds_up_no_other(turns):
    hangs, goes_on, done = threading.Event(), threading.Event(), threading.Semaphore(0)

    def hang():
        hangs.set()
        goes_on.wait(LONG_S)

    one = turns(4)
    one.add(hang)
    assert hangs.wait(LONG_S)
    for _ in range(3):  # also after a rest
        for _ in range(50):
            one.add(done.release)
        for _ in range(50):
            assert done.acquire(timeout=LONG_S)
    goes_on.set()


def test_as_many_threads_as_it_takes_and_no_more(turns):
    together = threading.Barrier(8)
    one = turns(8)
    for _ in range(8):
        one.add(lambda: together.wait(LONG_S))  # they go on when eight wait
    goes_on, done = threading.Event(), threading.Semaphore(0)
    lock, now, most = threading.Lock(), 0, 0

    def work():
        nonlocal now, most
        with lock:
            now, most = now + 1, max(most, now + 1)
        goes_on.wait(LONG_S)
        with lock:
            now -= 1
        done.release()

    for _ in range(30):
        one.add(work)
    wait_for(lambda: now == 8)
    goes_on.set()
    for _ in range(30):
        assert done.acquire(timeout=LONG_S)
    assert most == 8
    assert one._threads == 8


def test_after_the_end_nothing_begins_and_threads_leave(turns):
    one, goes_on, begun, done = turns(2), threading.Event(), threading.Event(), []

    def work():
        begun.set()
        goes_on.wait(LONG_S)

    one.add(work)
    assert begun.wait(LONG_S)
    one.end()
    one.add(lambda: done.append(1))
    goes_on.set()
    wait_for(lambda: one._threads == 0)
    assert done == []


def test_what_no_thread_could_be_had_for_is_done_later(turns, monkeypatch):
    def fail(_):
        raise RuntimeError("can't start new thread")

    one, done = turns(2), threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        one.add(done.set)
        one.go_on()
    assert one.waiting
    one.go_on()
    assert done.wait(LONG_S)
    one.go_on()


def test_many_hands_add_and_nothing_is_lost(turns):
    one, done = turns(3), threading.Semaphore(0)

    def add():
        for _ in range(500):
            one.add(done.release)

    hands = [threading.Thread(target=add) for _ in range(4)]
    for hand in hands:
        hand.start()
    for _ in range(2000):
        assert done.acquire(timeout=LONG_S)
    for hand in hands:
        hand.join()
