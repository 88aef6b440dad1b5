"""Compares stacks as they are read from memory with those that Python tells; run by each version of Python."""

import ctypes
import sys
import sysconfig
import threading

library = ctypes.PyDLL(sys.argv[1])  # its functions run with Python's lock held
library.probe.restype = ctypes.c_char_p
begun, go_on = threading.Event(), threading.Event()
told = {}


def names(frame):
    code = frame.f_code
    return getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno


def stack(frame):
    found = []
    while frame is not None:
        found.append(names(frame))
        frame = frame.f_back
    return found


def look():
    # One line, so that both see the same number.
    told["python"], told["memory"] = sys._current_frames(), library.probe().decode(); told["python"] = {n: stack(f) for n, f in told["python"].items()}  # fmt: skip  # noqa: E501, E702
    yield


class Größe:
    def inside(self):
        return [
            list(look())
            for _ in range(1)
        ]  # fmt: skip


def waits():
    begun.set()
    go_on.wait()


def from_memory(text):
    threads, gil = {}, []
    for line in text.splitlines():
        if line.startswith("thread "):
            _, native, ident, has = line.split()
            at = threads[int(ident)] = []
            if has == "gil":
                gil.append(int(ident))
            if int(ident) == threading.get_ident() and sys.version_info >= (3, 11):
                assert int(native) == threading.get_native_id(), line
        else:
            function, file, number = line.split("\t")
            at.append((function, file, int(number)))
    return threads, gil


thread = threading.Thread(target=waits)
thread.start()
begun.wait()
exec(compile("\n" * 300 + "Größe().inside()", "größe/日本.py", "exec"))
go_on.set()
thread.join()
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    assert "free-threaded" in told["memory"]
    sys.exit()
threads, gil = from_memory(told["memory"])
me = threading.get_ident()
assert gil == [me], (gil, me)
assert threads[me] == told["python"][me], (threads[me], told["python"][me])
assert ("<module>", "größe/日本.py", 301) in threads[me]
assert threads[thread.ident][-4:] == told["python"][thread.ident][-4:]
print("same", sum(map(len, threads.values())))
