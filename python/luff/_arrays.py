"""Defines a run's tensors by name and captures NumPy arrays, for frameworks whose values arrive as arrays.

Values are read during a call and never kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from luff._codes import DType, Form, GapReason, Role
from luff._hook import Session

__all__ = ["Arrays", "dtype_code"]

_MAX_LAYOUTS = 4096
_MAX_TEXT = 65536
_OTHER = int(Role.OTHER)


def dtype_code(dtype: Any) -> int | None:
    """Code of a NumPy dtype, including ml_dtypes' (bfloat16, float8); None for types that are not captured."""
    code = DType.__members__.get(np.dtype(dtype).name.upper())
    return None if code is None or code in (DType.INVALID, DType.STRING) else int(code)


class Arrays:
    """The tensors that one hook has defined.

    Parameters
    ----------
    session
        Where values go.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._numbers: dict[str, int] = {}
        self._layouts: dict[tuple[int, tuple[int, ...]], int] = {}
        self._codes: dict[Any, int | None] = {}

    def number(self, name: str, role: int = _OTHER, path: str = "", kind: str = "") -> int:
        """Returns the number of a tensor; `path` and `kind` are those of the module or layer that it belongs to."""
        found = self._numbers.get(name)
        if found is None:
            found = self._numbers[name] = self.session.define_tensor(name, role, path, kind)
        return found

    def due(self, number: int) -> int:
        """Returns the forms of a tensor that are due in the current step; 0 if there are none."""
        return self.session.due_tensor(number)

    def array(self, number: int, value: Any, dtype: int | None = None) -> bool:
        """Captures the due forms of an array; a type that cannot be captured becomes a gap. True if it was captured.

        Parameters
        ----------
        value
            Anything that `numpy.asarray` accepts, with or without a copy.
        dtype
            Code of the elements' type, where NumPy's own type does not show it.
        """
        array = np.asarray(value)
        code = dtype
        if code is None:
            if array.dtype not in self._codes:
                self._codes[array.dtype] = dtype_code(array.dtype)
            code = self._codes[array.dtype]
        layout = -1 if code is None else self.layout(code, array.shape)
        if layout < 0:
            self.session.gap(number, int(GapReason.UNSUPPORTED), int(Form.RAW), 1)
            return False
        array = np.ascontiguousarray(array)
        self.session.capture_one(number, layout, int(array.__array_interface__["data"][0]))
        return True

    def layout(self, code: int, shape: tuple[int, ...]) -> int:
        """Returns the number of the layout with this dtype and shape."""
        key = (code, shape)
        layout = self._layouts.get(key)
        if layout is None:
            layout = self.session.define_layout(code, list(shape))
            if len(self._layouts) < _MAX_LAYOUTS:
                self._layouts[key] = layout
        return layout

    def text(self, number: int, text: str) -> None:
        """Records a text as an array of bytes, of which the first 64 KiB are kept."""
        raw = np.frombuffer(text.encode("utf-8", "replace")[:_MAX_TEXT], dtype=np.uint8)
        self.array(number, raw, int(DType.STRING))

    def setting(self, number: int, value: Any) -> None:
        """Records a number as a scalar, anything else as text."""
        if isinstance(value, (bool, int, float, np.number)):
            self.session.scalar(number, float(value))
        else:
            self.text(number, value if isinstance(value, str) else repr(value))
