"""smdebug, modernised by `tools/devlib/peers.py` so that it runs beside current NumPy and protobuf."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from torch import nn

REDUCTIONS = ["min", "max", "mean", "std"]
NORMS = ["l1", "l2"]


class SmDebug:
    """One hook on one model.

    Parameters
    ----------
    out
        Directory of the trial.
    tensors
        ``all``, ``wg`` (weights, biases, gradients, losses), ``statistics`` (reductions of the same) or ``none``.
    interval
        Steps between saves.
    """

    def __init__(self, out: str, tensors: str, interval: int, model: nn.Module, loss: nn.Module) -> None:
        import smdebug.pytorch as smd  # type: ignore[import-not-found]
        from smdebug import ReductionConfig, SaveConfig  # type: ignore[import-not-found]

        logging.getLogger("smdebug").setLevel(logging.ERROR)
        settings: dict[str, Any] = {"out_dir": out, "save_config": SaveConfig(save_interval=interval)}
        if tensors == "all":
            settings["save_all"] = True
        elif tensors == "none":
            settings["include_collections"] = ["losses"]
        else:
            settings["include_collections"] = ["weights", "biases", "gradients", "losses"]
        if tensors == "statistics":
            settings["reduction_config"] = ReductionConfig(reductions=REDUCTIONS, norms=NORMS)
        self.hook = smd.Hook(**settings)
        self.hook.register_module(model)
        self.hook.register_loss(loss)

    def drain(self) -> None:
        """Waits for its background writer, so that its work does not slow down the next system."""
        with contextlib.suppress(AttributeError):
            self.hook._close_writers()

    def close(self) -> None:
        """Ends the trial."""
        self.hook.close()
