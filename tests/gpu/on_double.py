"""Trains as trainings.py does, with tensors of the CPU that say they were on device 0 of a double of the driver:
`on_double.py DOUBLE cpu [OPTIONS] NAME...`. It says at the end, as an object more, what the double was misused for.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import torch
import trainings
from luff.torch.capture import _device

sys.path.append(str(Path(__file__).resolve().parents[2] / "python/tests/torch"))
from host_reads import HostReads


def pretend() -> None:
    """All tensors say that they are on device 0 from now on."""
    here: Any = torch._C.TensorBase.is_cpu
    for name, value in (
        ("is_cuda", property(lambda t: bool(here.__get__(t)))),
        ("is_cpu", property(lambda t: False)),
        ("get_device", lambda t: 0),
    ):
        setattr(torch.Tensor, name, value)
    _device._raw_stream = lambda device: 0


def main() -> None:
    double = ctypes.CDLL(sys.argv.pop(1))
    double.luff_double_misuse.restype = ctypes.c_char_p
    double.luff_double_begin(b"", 0, 0, 8000)
    pretend()
    reads = HostReads()
    reads.begin()
    trainings.main()
    print(json.dumps({"misuse": "; ".join([double.luff_double_misuse().decode(), *reads.found]).strip("; ")}))


if __name__ == "__main__":
    main()
