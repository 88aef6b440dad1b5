"""Hangs for good, in the way that the second argument names, while a thread of the library looks at its stacks."""

import ctypes
import os
import sys
import threading


def lock():
    one = threading.Lock()
    one.acquire()
    one.acquire()  # lock hangs here


def fifo():
    os.mkfifo(sys.argv[3])
    end = os.open(sys.argv[3], os.O_RDWR)
    os.read(end, 1)  # fifo hangs here


def gil():
    ctypes.PyDLL(None).usleep(600_000_000)  # gil hangs here, with Python's lock held


class Größe:
    def inside(self, how):
        return [one() for one in (how,)]


ctypes.PyDLL(sys.argv[1]).watch(1)  # looks at the stacks again and again, and writes them there
Größe().inside({"lock": lock, "fifo": fifo, "gil": gil}[sys.argv[2]])
