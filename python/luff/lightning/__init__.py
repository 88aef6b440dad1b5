"""Luff for Lightning, both as ``lightning`` and as ``pytorch_lightning``.

Two lines attach it to a training::

    import luff.lightning

    trainer = Trainer(callbacks=[luff.lightning.Callback("runs/first")])

``luff run -- python train.py`` needs no change to the script. Either way, the training computes bit by bit what it
computes without Luff.
"""

from __future__ import annotations

from luff.errors import StopTraining
from luff.lightning import _trainers
from luff.lightning._callback import Callback
from luff.torch import get_hook, save_scalar, save_tensor

__all__ = ["Callback", "StopTraining", "attach_to_all", "get_hook", "save_scalar", "save_tensor"]

_trainers.install()


def attach_to_all() -> None:
    """Gives every trainer of this process a `Callback`; used by ``luff run``. Without a supervisor's run, they do
    nothing.
    """
    _trainers.install()
    _trainers.watch_all()
