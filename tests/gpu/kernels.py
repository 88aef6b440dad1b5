"""The kernels alone on a GPU, by the driver's interface: values of every dtype, and the gates that are about them.

Prints one JSON object a line for each check, as parts.py does. It needs NumPy, and for two of the gates torch.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

IMAGE = Path(__file__).resolve().parents[2] / "src" / "device" / "kernels" / "kernels.image"
# As in arguments.h.
CHUNK = 128 << 10
ROW = np.dtype(
    "u8,u8,u8,u8,u8,u4,u4,u4,u4,u1,u1,u2,u4"
)  # data count copy_to previous histogram first_partial loops result difference dtype depth flags lead
STATISTICS = np.dtype(
    [("count", "u8"), ("sum", "f8"), ("sum_sq", "f8"), ("abs_sum", "f8"), ("min", "u8"), ("max", "u8")]
    + [(name, "u8") for name in ("zeros", "nans", "infs")]
)
CODES = {
    "bool": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "uint32": 6,
    "int32": 7,
    "uint64": 8,
    "int64": 9,
}
CODES |= {"float16": 10, "float32": 12, "float64": 13, "complex64": 14, "complex128": 15}
BFLOAT16 = 11
NARROW = {"bfloat16": (BFLOAT16, 2), "float8_e4m3fn": (16, 1), "float8_e5m2": (17, 1)}
LOOPS = np.dtype([("count", "u8", 8), ("stride", "i8", 8)])
Strides = list[tuple[int, int]]  # elements and bytes between them, outermost first
Row = dict[str, Any]
Launch = tuple[str, int, np.ndarray]  # kernel, blocks, arguments


class NoDevice(RuntimeError):
    """There is no GPU that this process may use; all else that fails is a failure."""


class Driver:
    """What is used of libcuda, in the primary context of device 0."""

    def __init__(self, library: str) -> None:
        try:
            self._cuda = ctypes.CDLL(library)
        except OSError as why:
            raise NoDevice(str(why)) from why
        device, self._context, self._module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self._taken: list[int] = []
        try:
            self("cuInit", 0)
            self("cuDeviceGet", ctypes.byref(device), 0)
        except RuntimeError as why:
            raise NoDevice(str(why)) from why
        self("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        self("cuCtxSetCurrent", self._context)
        self._image = zlib.decompress(IMAGE.read_bytes()[4:], -15)
        self("cuModuleLoadData", ctypes.byref(self._module), ctypes.c_char_p(self._image))
        self._functions: dict[str, ctypes.c_void_p] = {}
        self._begin, self._end = ctypes.c_void_p(), ctypes.c_void_p()
        for event in (self._begin, self._end):
            self("cuEventCreate", ctypes.byref(event), 0)

    def __call__(self, name: str, *arguments: Any) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name} failed with {code}")

    def take(self, size: int) -> int:
        """Returns the address of device memory, zeroed."""
        at = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(max(size, 16)))
        self._taken.append(at.value)
        self("cuMemsetD8_v2", at, ctypes.c_ubyte(0), ctypes.c_size_t(max(size, 16)))
        return at.value

    def free(self) -> int:
        """Returns the bytes of device memory that are free."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def give_back(self) -> None:
        for at in self._taken:
            self("cuMemFree_v2", ctypes.c_uint64(at))
        self._taken.clear()

    def put(self, array: np.ndarray) -> int:
        """Returns the address of a copy in device memory."""
        array = np.ascontiguousarray(array)
        at = self.take(array.nbytes)
        if array.nbytes:
            data = ctypes.c_void_p(array.ctypes.data)
            self("cuMemcpyHtoD_v2", ctypes.c_uint64(at), data, ctypes.c_size_t(array.nbytes))
        return at

    def get(self, at: int, dtype: Any, count: int) -> np.ndarray:
        out = np.empty(count, dtype)
        data = ctypes.c_void_p(out.ctypes.data)
        self("cuMemcpyDtoH_v2", data, ctypes.c_uint64(at), ctypes.c_size_t(out.nbytes))
        return out

    def launch(self, launch: Launch) -> None:
        name, blocks, arguments = launch
        if name not in self._functions:
            self._functions[name] = ctypes.c_void_p()
            self("cuModuleGetFunction", ctypes.byref(self._functions[name]), self._module, name.encode())
        parameters = (ctypes.c_void_p * 1)(arguments.ctypes.data)
        self("cuLaunchKernel", self._functions[name], blocks, 1, 1, 256, 1, 1, 0, None, parameters, None)

    def milliseconds(self, work: Callable[[], Any], repeats: int) -> float:
        """Returns the median time of the work on the default stream, after three runs to warm up."""
        times, took = [], ctypes.c_float()
        for _ in range(repeats + 3):
            self("cuEventRecord", self._begin, None)
            work()
            self("cuEventRecord", self._end, None)
            self("cuEventSynchronize", self._end)
            self("cuEventElapsedTime", ctypes.byref(took), self._begin, self._end)
            times.append(took.value)
        return statistics.median(times[3:])


class Tables:
    """Statistics of tensors (address, elements, bytes of an element, code), ready to be launched."""

    def __init__(
        self,
        driver: Driver,
        tensors: list[tuple[int, int, int, int]],
        *,
        histogram: bool = False,
        strides: Strides | None = None,  # of all
    ):
        rows, work, joined, partials = np.zeros(len(tensors), ROW), [], [], 0
        self._driver, self._count = driver, len(tensors)
        self.histogram = driver.take(4096 * 8) if histogram else 0
        loops = np.zeros(1, LOOPS)
        for level, (steps, apart) in enumerate(strides or []):
            loops["count"][0, level], loops["stride"][0, level] = steps, apart
        depth = len(strides or [])
        for i, (at, count, size, code) in enumerate(tensors):
            lead = 0 if depth or at % size else at % 16 // size
            chunks = max(1, -(-(count + lead) * size // CHUNK))
            rows[i] = (at, count, 0, 0, self.histogram, partials, 0, i, 0, code, depth, 0, lead)
            work += [(i, chunk) for chunk in range(chunks)]
            if chunks > 1:
                partials += chunks
                joined.append(i)
        self.results = driver.take(self._count * STATISTICS.itemsize)
        addresses = [driver.put(rows), driver.put(loops), driver.put(np.array(work, "u4"))]
        parts = driver.take(partials * STATISTICS.itemsize)
        name = "luff_forms" if histogram else "luff_statistics"
        self.launches: list[Launch] = [
            (name, len(work), np.array([*addresses, parts, self.results, 0, 0], "u8"))
        ]
        if joined:
            more = [addresses[0], driver.put(np.array(joined, "u4")), parts, self.results, 0, 0]
            self.launches.append(("luff_reduce", len(joined), np.array(more, "u8")))

    def run(self) -> None:
        for launch in self.launches:
            self._driver.launch(launch)

    def read(self) -> np.ndarray:
        return self._driver.get(self.results, STATISTICS, self._count)


def row(check: str, good: bool | None, detail: str = "", **more: Any) -> Row:
    status = "skipped" if good is None else "passed" if good else "failed"
    return {"part": "kernels", "check": check, "status": status, "detail": detail, **more}


def wrong_in(found: np.ndarray, data: np.ndarray) -> str:
    """Returns how statistics differ from those of the values in float64; "" if they do not."""
    values = np.abs(data.astype(np.complex128)) if data.dtype.kind == "c" else data
    with np.errstate(invalid="ignore"):  # signalling NaN
        wide = values.astype(np.float64)
    finite = np.isfinite(wide)
    kept, kind = wide[finite], values.dtype.kind
    total = np.abs(kept).sum()
    wrong = []
    counts = {
        "count": wide.size,
        "zeros": (kept == 0).sum(),
        "nans": np.isnan(wide).sum(),
        "infs": np.isinf(wide).sum(),
    }
    wrong += [f"{name} {found[name]}, not {n}" for name, n in counts.items() if found[name] != n]
    for name, value, bound in (
        ("sum", kept.sum(), total),
        ("abs_sum", total, total),
        ("sum_sq", (kept**2).sum(), 0),
    ):
        if not abs(found[name] - value) <= 1e-6 * (bound or value):
            wrong.append(f"{name} {found[name]}, not {value}")
    if kept.size:
        for name, value in (("min", values[finite].min()), ("max", values[finite].max())):
            as_kind = "i8" if kind == "i" else "u8" if kind in "ub" else "f8"
            got = found[name].view(as_kind)
            near = 1e-12 * abs(value) if data.dtype.kind == "c" else 0
            if got != value and not abs(float(got) - float(value)) <= near:
                wrong.append(f"{name} {got}, not {value}")
    return "; ".join(wrong)


def values(driver: Driver, far: bool) -> Iterator[Row]:
    random = np.random.default_rng(1)
    for name, code in CODES.items():
        size = np.dtype(name).itemsize
        arrays, tensors = [], []
        for count, shift in ((1, 0), (1000, 1), (CHUNK // size, 0), (5 * CHUNK // size + 3, 1)):
            data = (random.standard_normal(count) * 50).astype(np.float64)
            data[random.random(count) < 0.1] = 0
            data = np.abs(data).astype(name) if np.dtype(name).kind in "ub" else data.astype(name)
            if np.dtype(name).kind in "fc" and count > 10:
                data[3], data[7], data[9] = np.nan, np.inf, -np.inf
            arrays.append(data)
            at = driver.put(np.concatenate([np.zeros(shift, name), data])) + shift * size
            tensors.append((at, count, size, code))
        tables = Tables(driver, tensors)
        tables.run()
        first = tables.read()
        tables.run()
        again = tables.read()
        wrong = [found for found in map(wrong_in, first, arrays) if found]
        yield row(f"{name} against float64", not wrong, " | ".join(wrong))
        yield row(f"{name}: the same bits twice", first.tobytes() == again.tobytes())
        driver.give_back()
    yield from narrow(driver, random)
    yield from places(driver, random, far)
    data = random.standard_normal(300_001).astype(np.float32)
    tables = Tables(driver, [(driver.put(data), data.size, 4, CODES["float32"])], histogram=True)
    tables.run()
    bins = np.bincount(data.view("u4") >> 20, minlength=4096)
    good = bool((driver.get(tables.histogram, "u8", 4096) == bins).all())
    yield row("histogram of float32 against a count of bits", good)
    driver.give_back()


def decoded(raw: np.ndarray, name: str) -> np.ndarray:
    """Returns the numbers that bits of a type stand for which NumPy lacks."""
    if name == "bfloat16":
        return (raw.astype("u4") << 16).view("f4")
    if name == "float8_e5m2":
        return (raw.astype("u2") << 8).view("f2").astype("f4")
    exponent, mantissa = (raw >> 3 & 15).astype("f4"), (raw & 7).astype("f4")
    value = np.where(exponent > 0, 2 ** (exponent - 7) * (1 + mantissa / 8), 2.0**-6 * mantissa / 8)
    value = np.where((raw & 0x7F) == 0x7F, np.nan, value)
    return np.where(raw >> 7 == 1, -value, value).astype("f4")


def narrow(driver: Driver, random: np.random.Generator) -> Iterator[Row]:
    """Types that NumPy lacks: every kind of bits, NaN and infinities too."""
    for name, (code, size) in NARROW.items():
        wrong: list[str] = []
        for count, shift in ((1000, 1), (3 * CHUNK // size + 5, 3)):
            raw = random.integers(0, 1 << 8 * size, count).astype(f"u{size}")
            if size == 2:  # within what float32 sums hold
                raw = np.where((raw & 0x7F80) < 0x7F80, raw & 0xBFFF, raw).astype("u2")
            at = driver.put(np.concatenate([np.zeros(shift, raw.dtype), raw])) + shift * size
            tables = Tables(driver, [(at, count, size, code)])
            tables.run()
            wrong += filter(None, [wrong_in(tables.read()[0], decoded(raw, name))])
        yield row(f"{name} against float64", not wrong, " | ".join(wrong))
        driver.give_back()


def places(driver: Driver, random: np.random.Generator, far: bool) -> Iterator[Row]:
    """Memory that is not aligned, or has strides, or lies beyond 4 GiB."""
    data = random.standard_normal(200_003).astype(np.float32)
    raw = np.concatenate([np.zeros(1, "u1"), data.view("u1")])
    tables = Tables(driver, [(driver.put(raw) + 1, data.size, 4, CODES["float32"])])
    tables.run()
    yield row("float32 at an odd address", *_good(wrong_in(tables.read()[0], data)))
    matrix = data[:200_000].reshape(400, 500)
    at = driver.put(matrix)
    for check, part, strides in (
        ("a transposed matrix", matrix.T, [(500, 4), (400, 2000)]),
        ("every third column", matrix[:, ::3], [(400, 2000), (167, 12)]),
    ):
        tables = Tables(driver, [(at, part.size, 4, CODES["float32"])], strides=strides)
        tables.run()
        yield row(check, *_good(wrong_in(tables.read()[0], np.ascontiguousarray(part))))
    driver.give_back()
    if not far:
        return
    size, check = (4 << 30) + (300 << 20) + 5, "elements beyond 4 GiB"
    if driver.free() < size + (512 << 20):
        yield row(check, None, "too little device memory is free")
        return
    at = driver.take(size)
    driver("cuMemsetD8_v2", ctypes.c_uint64(at), ctypes.c_ubyte(1), ctypes.c_size_t(size))
    driver("cuMemsetD8_v2", ctypes.c_uint64(at + size - 1), ctypes.c_ubyte(7), ctypes.c_size_t(1))
    tables = Tables(driver, [(at, size, 1, CODES["uint8"])])
    tables.run()
    found = tables.read()[0]
    good = (found["count"], found["max"], found["min"], found["zeros"]) == (size, 7, 1, 0)
    good = good and abs(found["sum"] - (size + 6)) <= 1e-6 * size
    yield row(check, bool(good), str(found))
    driver.give_back()


def _good(wrong: str) -> tuple[bool, str]:
    return not wrong, wrong


def gates(driver: Driver, size: int, repeats: int) -> Iterator[Row]:
    """Times of the kernels. `size`: bytes read, more than the second-level cache has."""
    at = driver.take(size)
    sink = driver.put(np.zeros(4, "u4"))
    reading: Launch = ("luff_read", -(-size // CHUNK), np.array([at, size // 16, sink], "u8"))
    noise = np.random.default_rng(2).standard_normal(1 << 20).astype(np.float32)
    for name, code, width, least in (("float32", 12, 4, 0.75), ("bfloat16", BFLOAT16, 2, 0.70)):
        block = noise if width == 4 else (noise.view("u4") >> 16).astype("u2")
        for begin in range(0, size - block.nbytes + 1, block.nbytes):
            data = ctypes.c_void_p(block.ctypes.data)
            driver("cuMemcpyHtoD_v2", ctypes.c_uint64(at + begin), data, ctypes.c_size_t(block.nbytes))
        plain = Tables(driver, [(at, size // width, width, code)])
        read_ms = driver.milliseconds(lambda: driver.launch(reading), repeats)
        plain_ms = driver.milliseconds(plain.run, repeats)
        share = read_ms / plain_ms
        detail = f"{size / read_ms / 1e9:.2f} and {size / plain_ms / 1e9:.2f} TB/s"
        yield row(
            f"bandwidth of statistics over that of reading, {name}",
            share >= least,
            detail,
            value=share,
            gate=least,
        )
        if name == "float32":
            forms = Tables(driver, [(at, size // width, width, code)], histogram=True)
            times = driver.milliseconds(forms.run, repeats) / plain_ms
            yield row("histogram over statistics", times <= 3, value=times, gate=3)
    driver.give_back()
    yield from against_torch(driver, repeats)


def against_torch(driver: Driver, repeats: int) -> Iterator[Row]:
    """All eight statistics over one norm of torch's, on lists of tensors."""
    names = {"300 tensors": (300, 1 << 18, 1.2), "5,000 of 1 KiB": (5000, 256, 0.5)}
    try:
        import torch

        if not torch.cuda.is_available():
            raise ImportError("torch sees no CUDA device")
    except ImportError as why:
        for name in names:
            yield row(f"statistics over torch._foreach_norm, {name}", None, str(why))
        return
    for name, (count, elements, most) in names.items():
        tensors = [torch.randn(elements, device="cuda") for _ in range(count)]
        tables = Tables(driver, [(t.data_ptr(), elements, 4, CODES["float32"]) for t in tensors])
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.default_stream()):
            norms_ms = driver.milliseconds(lambda ts=tensors: torch._foreach_norm(ts), repeats)
        times = driver.milliseconds(tables.run, repeats) / norms_ms
        yield row(f"statistics over torch._foreach_norm, {name}", times <= most, value=times, gate=most)
        driver.give_back()
    del tensors
    yield from against_adamw(driver, repeats)


def against_adamw(driver: Driver, repeats: int, parameters: int = 1_300_000_000) -> Iterator[Row]:
    """Statistics of parameters and their gradients over a fused AdamW step on them: 8 of 28 bytes at best."""
    import torch

    check, gate, each = "statistics of w+g over a fused AdamW step, 1.3 G parameters", 0.45, 1 << 22
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    if free < 17 * parameters:
        yield row(check, None, f"needs {17 * parameters >> 30} GiB of device memory, {free >> 30} are free")
        return
    tensors = [torch.randn(each, device="cuda", requires_grad=True) for _ in range(parameters // each)]
    for tensor in tensors:
        tensor.grad = torch.randn_like(tensor)
    optimizer = torch.optim.AdamW(tensors, lr=1e-6, fused=True)
    both = [t.data_ptr() for t in tensors] + [t.grad.data_ptr() for t in tensors if t.grad is not None]
    tables = Tables(driver, [(at, each, 4, CODES["float32"]) for at in both])
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.default_stream()):
        step_ms = driver.milliseconds(optimizer.step, repeats)
    times = driver.milliseconds(tables.run, repeats) / step_ms
    yield row(check, times <= gate, f"a step takes {step_ms:.2f} ms", value=times, gate=gate)
    driver.give_back()


def checks(library: str, gigabytes: float, repeats: int) -> Iterator[Row]:
    driver = Driver(library)
    yield from values(driver, gigabytes > 0)
    if gigabytes:
        yield from gates(driver, int(gigabytes * 1e9) // CHUNK * CHUNK, repeats)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", default="libcuda.so.1", help="the driver (default: the system's)")
    parser.add_argument("--gigabytes", type=float, default=4, help="read for the gates; 0: no gates")
    parser.add_argument("--repeats", type=int, default=30)
    args = parser.parse_args()
    failed = False
    try:
        for found in checks(args.library, args.gigabytes, args.repeats):
            failed |= found["status"] == "failed"
            print(json.dumps(found), flush=True)
    except NoDevice as why:
        print(json.dumps(row("a GPU", None, str(why))))
    except Exception as why:  # an image that the driver refuses, a kernel that breaks the context
        print(json.dumps(row("the kernels themselves", False, repr(why)[:500])))
        failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
