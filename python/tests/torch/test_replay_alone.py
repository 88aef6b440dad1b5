"""The child that evaluates a step again shares nothing: whatever is counted, locked,
sent or written is not changed.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import socket
import stat
import sys
import threading
import time

import numpy as np
import pytest
import torch
from luff.torch.evidence import _evidence
from luff.torch.replay import _isolation, _replay
from test_nonfinite import data, train
from torch import nn

STEPS, BAD = 6, 3
IPC_RMID, GETVAL = 0, 12


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """Allows more time, for a loaded machine."""
    monkeypatch.setattr(_evidence, "_WAIT_S", 60.0)
    monkeypatch.setattr(_isolation, "SECONDS", 60.0)


@pytest.fixture(autouse=True)
def _collected():
    """Makes sure that a child of this test does not end in the next one."""
    before = _children()
    yield
    until = time.monotonic() + 60
    while time.monotonic() < until and (left := _children() - before):
        for child in left:
            try:
                os.waitpid(child, os.WNOHANG)
            except ChildProcessError:
                continue  # already reaped
        time.sleep(0.01)


def _children():
    return {
        int(child)
        for thread in os.listdir("/proc/self/task")
        for child in _text(f"/proc/self/task/{thread}/children").split()
    }


def _text(path):
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except FileNotFoundError:  # the thread has ended
        return ""


class Touching(nn.Linear):
    """Calls a function in each forward pass, and makes NaN of a batch of zeros."""

    def __init__(self, touch):
        super().__init__(4, 1)
        self.touch = touch

    def forward(self, x):
        self.touch()
        result = super().forward(x)
        return torch.log(result * 0) if bool((x == 0).all()) else result


def some_data(step):
    return data(step) * (step != BAD)


def told(watched, touch, model=None, batch=some_data):
    """Trains; returns the last event about the NaN."""
    hook, session = watched()

    def loss_of(model, x, step):
        y = model(x)
        return y.mean()

    train(model or Touching(touch), loss_of, steps=STEPS, batch=batch)
    hook.close()
    return [event for event in session.json_events if event["kind"] == "nonfinite"][-1]


def is_found(event):
    """Returns whether the child has found the line."""
    return event["from"] == "replay" and event["operator"] == "log" and "torch.log(" in event["code"]


def ask(question, wait_s=60.0):
    """Returns a child's answer."""
    replay = _replay.Replay.ask(question, _isolation.LARGEST)
    assert isinstance(replay, _replay.Replay), replay
    return replay.answer(time.monotonic() + wait_s)


def test_a_shared_counter_counts_the_training_s_steps_only(watched):
    counter = multiprocessing.Value("i", 0)

    def touch():
        with counter.get_lock():
            counter.value += 1

    event = told(watched, touch)
    assert counter.value == STEPS
    assert is_found(event), event


def test_a_lock_that_a_killed_child_holds_is_free(monkeypatch):
    monkeypatch.setattr(_isolation, "SECONDS", 0.5)
    lock = multiprocessing.Lock()

    def question():
        with lock:
            time.sleep(600)

    assert "no answer" in ask(question)["no_replay"]
    assert lock.acquire(timeout=10)


def test_a_lock_that_another_process_holds_does_not_hold_the_training(watched):
    lock = multiprocessing.Lock()

    def touch():
        with lock:
            pass

    assert is_found(told(watched, touch))
    assert lock.acquire(timeout=10)


def test_shared_parameters_are_the_training_s_own(watched):
    class Counting(Touching):
        def __init__(self):
            super().__init__(lambda: self.seen.add_(1))
            self.register_buffer("seen", torch.zeros(()))

    model = Counting().share_memory()
    # other processes may change them at any time
    assert "other processes" in told(watched, None, model)["no_replay"]
    assert int(model.seen) == STEPS


def test_what_is_sent_or_written_is_sent_or_written_once(watched, tmp_path):
    """A socket, a pipe, and a buffered log file get each step exactly once."""
    ours, theirs = socket.socketpair()
    receiving, sending = os.pipe()
    with ours, theirs, open(tmp_path / "log", "w", encoding="utf-8") as log:

        def touch():
            ours.send(b"s")
            os.write(sending, b"p")
            print("a step", file=log)

        event = told(watched, touch)
        theirs.setblocking(False)
        assert theirs.recv(1000) == b"s" * STEPS
        assert os.read(receiving, 1000) == b"p" * STEPS
    os.close(receiving)
    os.close(sending)
    assert (tmp_path / "log").read_text() == "a step\n" * STEPS
    assert event["from"] == "graph"  # the child has no socket, so it could not evaluate the step


class Operation(ctypes.Structure):
    _fields_ = [("number", ctypes.c_ushort), ("change", ctypes.c_short), ("flags", ctypes.c_short)]


def test_a_semaphore_of_system_v_counts_the_training_s_steps_only(watched):
    libc = ctypes.CDLL(None, use_errno=True)
    semaphore = libc.semget(0, 1, 0o600)
    if semaphore < 0:
        pytest.skip("no semaphores of System V here")
    up = Operation(0, 1, 0)
    try:
        event = told(watched, lambda: libc.semop(semaphore, ctypes.byref(up), 1))
        assert libc.semctl(semaphore, 0, GETVAL) == STEPS
        assert is_found(event), event
    finally:
        libc.semctl(semaphore, 0, IPC_RMID)


def test_a_loader_with_workers_goes_on(watched):
    class Numbers(torch.utils.data.Dataset):
        def __len__(self):
            return STEPS * 8

        def __getitem__(self, index):
            return torch.full((4,), float(index // 8 - BAD))

    batches = iter(torch.utils.data.DataLoader(Numbers(), batch_size=8, num_workers=1, timeout=60))
    seen = []

    def batch(step):
        seen.append(next(batches))
        return seen[-1]

    assert is_found(told(watched, lambda: None, batch=batch))
    assert [int(batch[0, 0]) for batch in seen] == [step - BAD for step in range(STEPS)]
    assert list(batches) == []


def test_no_file_is_opened_for_writing(tmp_path):
    """Not even by code without audit events: torch's own writer."""
    kept = tmp_path / "checkpoint.pt"
    kept.write_bytes(b"precious")
    answer = ask(lambda: torch.save({"x": torch.ones(3)}, kept))
    assert "failed" in answer["no_replay"]
    assert kept.read_bytes() == b"precious"


def test_memory_is_bounded():
    assert set(ask(lambda: {"sum": float(np.ones(1 << 33).sum())})) == {"no_replay"}


def test_the_child_has_nothing_to_import_before_its_time_is_limited(monkeypatch):
    monkeypatch.delitem(sys.modules, "luff.torch.replay._retrace", raising=False)
    monkeypatch.delattr("luff.torch.replay._retrace", raising=False)
    assert ask(lambda: {"found": 1}) == {"found": 1}
    assert "luff.torch.replay._retrace" in sys.modules  # of the parent


def test_the_child_ends_with_its_parent():
    receiving, sending = os.pipe()
    parent = os.fork()
    if parent == 0:
        started = _replay.Replay.ask(lambda: time.sleep(600), _isolation.LARGEST)
        os.write(sending, str(getattr(started, "_pid", started)).encode())
        os._exit(0)
    os.close(sending)
    child = int(os.read(receiving, 100))
    os.close(receiving)
    os.waitpid(parent, 0)
    until = time.monotonic() + 30
    while time.monotonic() < until and _runs(child):
        time.sleep(0.02)
    assert not _runs(child)


def _runs(pid):
    state = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return bool(state) and state[0] != "Z"


# Reasons are recorded where there is no child -----------------------------------------------------------------------


def test_a_script_that_counts_its_children(watched):
    ended = []
    before = signal.signal(signal.SIGCHLD, lambda *_: ended.append(1))
    try:
        event = told(watched, lambda: None)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert "SIGCHLD" in event["no_replay"]
    assert event["operator"] == "log"  # derived from the graph
    assert ended == []


def test_a_thread_that_works(watched):
    stop = threading.Event()

    def work():
        while not stop.is_set():
            time.sleep(0)

    thread = threading.Thread(target=work, name="augmenting")
    thread.start()
    try:
        assert "augmenting" in told(watched, lambda: None)["no_replay"]
    finally:
        stop.set()
        thread.join()


def test_a_thread_that_waits_is_none(watched):
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert is_found(told(watched, lambda: None))
    finally:
        stop.set()
        thread.join()


def test_too_much_shared_memory(watched, monkeypatch):
    monkeypatch.setattr(_isolation, "_SHARED", 1 << 20)
    shared = torch.zeros(1 << 19).share_memory_()
    assert "shared" in told(watched, lambda: None)["no_replay"]
    assert shared.is_shared()


def test_memory_that_is_short(watched, monkeypatch):
    monkeypatch.setattr(_isolation, "free_memory", lambda: 1 << 20)
    assert told(watched, lambda: None)["no_replay"] == "memory is short"


# The script may close descriptors that it did not open --------------------------------------------------------------


def test_a_file_in_the_place_of_the_pipe_is_the_script_s(tmp_path):
    replay = _replay.Replay.ask(lambda: {"found": 1}, _isolation.LARGEST)
    with in_place_of({replay._pipe.number}, tmp_path / "theirs"):
        assert "closed the pipe" in replay.answer()["no_replay"]
        assert replay.answer(time.monotonic() + 60) == {}


def test_files_that_a_fork_puts_in_the_place_of_the_pipe_are_the_script_s(tmp_path):
    entered = []

    def reopen():
        """Acts like a library that closes everything that it did not open, in both processes."""
        if os.getpid() == testing or os.getppid() == testing:
            pipes = {int(name) for name in os.listdir("/proc/self/fd")} - before
            entered.append(in_place_of({number for number in pipes if is_pipe(number)}, tmp_path / "theirs"))
            entered[-1].__enter__()

    testing, before = os.getpid(), {int(name) for name in os.listdir("/proc/self/fd")}
    os.register_at_fork(after_in_child=reopen, after_in_parent=reopen)
    try:
        replay = _replay.Replay.ask(lambda: {"found": 1}, _isolation.LARGEST)
        assert "closed the pipe" in replay.answer(time.monotonic() + 60)["no_replay"]
    finally:
        testing = 0  # handlers cannot be unregistered
    until = time.monotonic() + 60
    while time.monotonic() < until and not replay.collected():
        time.sleep(0.01)
    entered[0].__exit__(None, None, None)


def is_pipe(number):
    try:
        return stat.S_ISFIFO(os.fstat(number).st_mode)
    except OSError:  # the folder that is being listed
        return False


@contextlib.contextmanager
def in_place_of(numbers, path):
    """Points descriptors to a file for a block; checks that the file did not change, and closes them."""
    assert numbers
    theirs = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    os.write(theirs, b'{"theirs": 1}')
    os.lseek(theirs, 0, os.SEEK_SET)
    for number in numbers:
        os.dup2(theirs, number)  # closes the previous file
    yield
    for number in numbers:
        assert os.lseek(number, 0, os.SEEK_CUR) == 0
        os.close(number)
    os.close(theirs)
    assert path.read_bytes().replace(b'{"theirs": 1}', b"") == b""
