"""Codes shared with the C++ library (``include/luff/format/layout.h``, ``include/luff/tensor/dtype.h``).

They are stored on disk, so they never change. Plain integers, because hooks use them on hot paths.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = ["NO_ID", "DType", "EndReason", "EventKind", "Form", "GapReason", "Mode", "Phase", "Role"]

NO_ID = 0xFFFFFFFF


class Mode(IntEnum):
    """Mode of a step."""

    TRAIN = 1
    EVAL = 2
    PREDICT = 3
    GLOBAL = 4


class Role(IntEnum):
    """What a tensor is to the model."""

    OTHER = 0
    WEIGHT = 1
    BIAS = 2
    GRADIENT = 3
    BUFFER = 4
    INPUT = 5
    OUTPUT = 6
    LOSS = 7
    LOSS_INPUT = 8
    OPTIMIZER_STATE = 9
    OPTIMIZER_SETTING = 10
    SCALAR = 11
    CUSTOM = 12
    LABEL = 13
    SAMPLE = 14
    OUTPUT_GRADIENT = 15
    INPUT_GRADIENT = 16
    ATTENTION = 17


class Form(IntEnum):
    """What is kept of a value; each form is one bit."""

    SUMMARY = 1
    RAW = 2
    HISTOGRAM = 4
    HASH = 8
    UNITS = 16
    DIFFERENCE = 32
    EXTRA = 64
    SHAPE = 128


class GapReason(IntEnum):
    """Why something was not recorded."""

    NONE = 0
    POOL_FULL = 1
    OVERHEAD_BUDGET = 2
    BYTE_BUDGET = 3
    DISK_FULL = 4
    IO_ERROR = 5
    COMPILED_GRAPH = 6
    UNSUPPORTED = 7
    NOT_SEEN = 8
    HOOK_ERROR = 9
    RETIRED = 10
    MERGED = 11
    WORKER_LOST = 12
    FORK = 13
    SCRIPTED = 14
    CLOSING = 15
    TOO_MANY = 16
    RECORDING_FAILED = 17
    FILE_LOST = 18
    NO_GRADIENT = 19
    FUSED_ATTENTION = 20
    DEVICE_LATE = 21
    CAPTURED_GRAPH = 22
    DEVICE_ERROR = 23


class EventKind(IntEnum):
    """Events of the training loop."""

    FORWARD = 1
    BACKWARD = 2
    ZERO_GRAD = 3
    OPTIMIZER_STEP = 4
    SCHEDULER_STEP = 5
    MODE_CHANGE = 6
    BATCH = 7
    STEP_SKIPPED = 8
    CLIP_GRAD = 9
    CHECKPOINT = 10
    EXCEPTION = 11
    SCALE_LOSS = 12
    GRADIENT_KEPT = 13


class EndReason(IntEnum):
    """Why a worker ended."""

    COMPLETED = 1
    STOPPED = 2
    EXCEPTION = 3
    SIGNAL = 4
    FAILED = 5


class DType(IntEnum):
    """Element types."""

    INVALID = 0
    BOOL = 1
    UINT8 = 2
    INT8 = 3
    UINT16 = 4
    INT16 = 5
    UINT32 = 6
    INT32 = 7
    UINT64 = 8
    INT64 = 9
    FLOAT16 = 10
    BFLOAT16 = 11
    FLOAT32 = 12
    FLOAT64 = 13
    COMPLEX64 = 14
    COMPLEX128 = 15
    FLOAT8_E4M3FN = 16
    FLOAT8_E5M2 = 17
    FLOAT8_E4M3FNUZ = 18
    FLOAT8_E5M2FNUZ = 19
    FLOAT8_E8M0FNU = 20
    COMPLEX32 = 21
    STRING = 22


class Phase(IntEnum):
    """What the training thread does."""

    OTHER = 0
    DATA_WAIT = 1
    DATA_START = 2
    FORWARD = 3
    LOSS = 4
    BACKWARD = 5
    OPTIMIZER = 6
    CLIP = 7
    ZERO_GRAD = 8
    SCHEDULER = 9
    EVAL = 10
    CHECKPOINT = 11
    COMPILE = 12
    GC = 13
    LUFF = 14
    TRACE = 15
    COMPUTE = 16
