"""A session that keeps everything in Python lists. It reads memory by ctypes and uses no files.

The step machine is tested with it. The real session has tests of its own, and the end-to-end tests use it.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from luff._codes import DType, Role
from luff._core import ModuleTimer

ALL_FORMS = 3
_NUMPY = {
    DType.BOOL: np.dtype(np.bool_),
    DType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    DType.FLOAT8_E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    DType.FLOAT8_E5M2: np.dtype(ml_dtypes.float8_e5m2),
}
DEFAULT_ROLES = frozenset({Role.WEIGHT, Role.BIAS, Role.GRADIENT, Role.LOSS, Role.SCALAR, Role.CUSTOM})


class FakeStep:
    """The contents of one published step."""

    def __init__(self, mode: int, mode_step: int) -> None:
        self.mode = mode
        self.mode_step = mode_step
        self.global_step = -1
        self.update = -1
        self.values: dict[str, np.ndarray[Any, Any]] = {}
        self.wholes: dict[str, list[int]] = {}  # global shapes of shards
        self.times: dict[str, int] = {}
        self.scalars: dict[str, float] = {}
        self.events: list[tuple[int, int, int]] = []
        self.gaps: list[tuple[str, int]] = []
        self.json_kinds: list[str] = []
        self.aliases: dict[tuple[int, int, int], str] = {}

    @property
    def kinds(self) -> list[int]:
        """Returns the kinds of the events in order, without batches and mode changes."""
        return [kind for kind, _, _ in self.events if kind not in (6, 7)]


class FakeSession:
    """Has the same methods as `luff._core.Session`."""

    def __init__(self, roles: frozenset[Any] = DEFAULT_ROLES) -> None:
        self.roles = {int(role) for role in roles}
        self.names: list[str] = []
        self.tensors: list[tuple[str, int, str, str]] = []
        self.layouts: list[tuple[int, list[int], list[int] | None]] = []
        self.shards: dict[int, tuple[list[int], list[int]]] = {}
        self.documents: dict[str, Any] = {}
        self.steps: list[FakeStep] = []
        self.open: FakeStep | None = None
        self.abandoned = 0
        self.bad_before = 0
        self.json_events: list[Any] = []
        self.closed: int | None = None
        self.stop_after: int | None = None
        self.accepted: list[str] = []
        self.action: tuple[int, str, str, str] | None = None
        self.action_after: int | None = None
        self.done: list[tuple[int, bool]] = []
        self.misuse: list[str] = []
        self.timed = 0  # steps with times of modules
        self.traces: list[bool] = []
        self.reads_accelerators = True
        self.run_path, self.worker = "", 0
        self.device_calls: list[tuple[str, int, int]] = []  # method, device, stream
        self.reads: dict[int, list[Any]] = {}  # questions until it has come, bytes
        self.late = 0  # such questions
        self.borders: list[tuple[int, int, int]] = []  # phase (-1: a step ends), device, stream

    def define_tensor(self, name: str, role: int, module_path: str = "", module_type: str = "") -> int:
        if name in self.names:
            return self.names.index(name)
        self.names.append(name)
        self.tensors.append((name, role, module_path, module_type))
        return len(self.names) - 1

    def define_layout(self, dtype: int, shape: Sequence[int], strides: Sequence[int] | None = None) -> int:
        self.layouts.append((dtype, list(shape), None if strides is None else list(strides)))
        return len(self.layouts) - 1

    def define_shard_layout(
        self, dtype: int, shape: Sequence[int], strides: Any, global_shape: Any, global_offset: Any
    ) -> int:
        number = self.define_layout(dtype, shape, strides)
        self.shards[number] = (list(global_shape), list(global_offset))
        return number

    def set_document(self, name: str, json_text: str) -> None:
        self.documents[name] = json.loads(json_text)

    def begin_step(self, mode: int, mode_step: int) -> int:
        if self.open is not None:
            self.misuse.append("begin_step in an open step")
        self.open = FakeStep(mode, mode_step)
        return sum(1 << role for role in self.roles)

    def due_role(self, role: int) -> int:
        if self.open is None:
            self.misuse.append("due_role outside of a step")
        return ALL_FORMS if role in self.roles else 0

    def due_tensor(self, tensor: int) -> int:
        return ALL_FORMS if self.tensors[tensor][1] in self.roles else 0

    def read(self, layout: int, address: int) -> np.ndarray[Any, Any]:
        dtype, shape, strides = self.layouts[layout]
        kind = _NUMPY.get(DType(dtype)) or np.dtype(DType(dtype).name.lower())
        if 0 in shape:
            return np.zeros(shape, kind)
        steps = strides if strides is not None else list(np.zeros(shape, kind).strides)
        if strides is not None:
            steps = [step * kind.itemsize for step in strides]
        extent = sum((n - 1) * s for n, s in zip(shape, steps, strict=True)) + kind.itemsize
        raw = np.frombuffer(ctypes.string_at(address, extent), dtype=np.uint8)
        return np.ndarray(shape, kind, raw.tobytes(), 0, steps).copy()

    def capture_one(
        self, tensor: int, layout: int, address: int, storage_key: int = 0, flags: int = 0
    ) -> None:
        if self.open is None:
            self.misuse.append("capture outside of a step")
            return
        if self.tensors[tensor][1] not in self.roles:
            return
        value = self.read(layout, address)
        name = self.names[tensor]
        if storage_key:
            first = self.open.aliases.setdefault((storage_key, address, layout), name)
            if not np.array_equal(
                self.open.values.get(first, value), value, equal_nan=value.dtype.kind == "f"
            ):
                self.misuse.append(f"{name} is no alias of {first}")
        self.open.values[name] = value
        if layout in self.shards:
            self.open.wholes[name] = self.shards[layout][0]
        self.open.times[name] = self.open.times.get(name, 0) + 1

    def capture(self, table: np.ndarray[Any, Any], count: int | None = None) -> None:
        for packed, address, key, flags in table[: len(table) if count is None else count].tolist():
            self.capture_one(packed & 0xFFFFFFFF, packed >> 32, address, key, flags)

    def capture_scaled(self, table: np.ndarray[Any, Any], factor: float, count: int | None = None) -> None:
        self.capture(table, count)
        if self.open is None:
            return
        for packed in table[: len(table) if count is None else count, 0].tolist():
            name = self.names[packed & 0xFFFFFFFF]
            if name in self.open.values:
                self.open.values[name] = (self.open.values[name] * factor).astype(
                    self.open.values[name].dtype
                )

    def capture_on_device(
        self,
        table: np.ndarray[Any, Any],
        count: int,
        device: int,
        stream: int,
        factor: float = 1.0,
        divisor: int = 0,
    ) -> None:
        self.device_calls.append(("capture", device, stream))
        if divisor:
            factor /= ctypes.c_float.from_address(divisor).value
        if factor == 1.0:
            self.capture(table, count)
        else:
            self.capture_scaled(table, factor, count)

    def scalar_on_device(
        self,
        tensor: int,
        layout: int,
        dtype: int,
        address: int,
        device: int,
        stream: int,
        factor: float = 1.0,
    ) -> None:
        self.device_calls.append(("scalar", device, stream))
        source = self.define_layout(dtype, [])
        value = float(self.read(source, address)) * factor
        self.scalar(tensor, value)
        if self.open is not None and self.tensors[tensor][1] in self.roles:
            kind = np.dtype(DType(self.layouts[layout][0]).name.lower())
            self.open.values[self.names[tensor]] = np.array(value, kind)

    def hash_on_device(
        self, seed: int, address: int, nbytes: int, parts: int, stride: int, device: int, stream: int
    ) -> int:
        self.device_calls.append(("hash", device, stream))
        if parts == 1:
            return seed ^ self.hash(address, nbytes)
        for part in range(parts):
            seed = (seed * 31 + self.hash(address + part * stride, nbytes)) & 0xFFFFFFFFFFFFFFFF
        return seed

    def read_on_device(self, ranges: Sequence[int], device: int, stream: int) -> int:
        self.device_calls.append(("read", device, stream))
        pairs = zip(ranges[::2], ranges[1::2], strict=True)
        self.reads[len(self.reads) + 1] = [self.late, b"".join(ctypes.string_at(at, n) for at, n in pairs)]
        return len(self.reads)

    def take_read(self, read: int) -> bytes | None:
        entry = self.reads[read]
        entry[0] -= 1
        return entry[1] if entry[0] < 0 else None

    def begin_phase_on_device(self, phase: int, device: int, stream: int) -> None:
        self.borders.append((phase, device, stream))

    def end_step_on_device(self, device: int, stream: int) -> None:
        self.borders.append((-1, device, stream))

    def scalar(self, tensor: int, value: float) -> None:
        if self.open is None:
            self.misuse.append("scalar outside of a step")
            return
        self.open.scalars[self.names[tensor]] = value

    def text(self, tensor: int, utf8: str) -> None:
        return None

    def event(self, kind: int, subject: int = 0xFFFFFFFF, argument: int = 0) -> None:
        if self.open is None:
            self.misuse.append("event outside of a step")
            return
        self.open.events.append((kind, subject, argument))

    def module_times(self, timer: ModuleTimer) -> None:
        assert isinstance(timer, ModuleTimer)
        if self.open is None:
            self.misuse.append("module times outside of a step")
        self.timed += 1

    def traced(self, begins: bool) -> None:
        self.traces.append(begins)

    def event_json(self, json_text: str) -> None:
        self.json_events.append(json.loads(json_text))
        if self.open is not None:
            self.open.json_kinds.append(self.json_events[-1]["kind"])

    def gap(self, tensor: int, reason: int, forms: int, count: int = 1) -> None:
        if self.open is not None:
            self.open.gaps.append((self.names[tensor] if tensor != 0xFFFFFFFF else "", reason))

    def hash(self, address: int, nbytes: int) -> int:
        return hash(ctypes.string_at(address, nbytes)) & 0xFFFFFFFFFFFFFFFF

    def end_step(
        self,
        mode: int,
        global_step: int,
        mode_step: int,
        update: int,
        wall_unix_ns: int = 0,
        duration_ns: int = 0,
    ) -> None:
        if self.open is None:
            self.misuse.append("end_step without begin_step")
            return
        self.bad_before = self.nonfinite()
        step, self.open = self.open, None
        if (step.mode, step.mode_step) != (mode, mode_step):
            self.misuse.append("another step ends than has begun")
        step.global_step, step.update = global_step, update
        self.steps.append(step)

    def nonfinite(self) -> int:
        values = [] if self.open is None else self.open.values.values()
        return self.bad_before + sum(
            value.dtype.kind == "f" and not np.isfinite(value).all() for value in values
        )

    def abandon_step(self) -> None:
        self.abandoned += 1
        self.open = None

    def stop_state(self) -> int:
        return 0 if self.stop_after is None and self.action_after is None else 1

    def at_step_boundary(self, train_step: int) -> int:
        if self.action is not None and self.action_after is not None and train_step >= self.action_after:
            self.action_after = None
            return 3
        return 2 if self.stop_after is not None and train_step >= self.stop_after else 0

    def stop_reason(self) -> str:
        return "the test says so"

    def accept_actions(self, kinds: Any) -> None:
        self.accepted = list(kinds)

    def take_action(self) -> tuple[int, str, str, str] | None:
        action, self.action = self.action, None
        return action

    def action_done(self, control: int, done: bool) -> None:
        self.done.append((control, done))

    def flush(self, timeout_s: float) -> bool:
        return True

    def close(self, reason: int, timeout_s: float = 2.0) -> None:
        self.closed = reason

    def after_fork_in_child(self) -> None:
        return None

    def health(self) -> dict[str, Any]:
        return {}

    def train(self) -> list[FakeStep]:
        """Returns the published TRAIN steps."""
        return [step for step in self.steps if step.mode == 1]

    def eval(self) -> list[FakeStep]:
        """Returns the published EVAL steps."""
        return [step for step in self.steps if step.mode == 2]
