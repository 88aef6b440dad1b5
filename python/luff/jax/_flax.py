"""Access to Flax if the training has imported it: Luff never imports it first."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["nnx_of"]


def nnx_of() -> Any:
    """Returns the module ``flax.nnx``, or None."""
    nnx = sys.modules.get("flax.nnx")
    return nnx if nnx is not None and hasattr(nnx, "iter_graph") else None
