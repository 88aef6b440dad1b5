"""Luff for the Trainer of Hugging Face Transformers.

Two lines attach it to a training::

    import luff.transformers

    trainer = Trainer(model, arguments, callbacks=[luff.transformers.Callback("runs/first")], ...)

``luff run -- python train.py`` needs no change to the script. Either way, the training computes bit by bit what it
computes without Luff.
"""

from __future__ import annotations

from luff.errors import StopTraining
from luff.torch import get_hook, save_scalar, save_tensor
from luff.transformers import _trainer
from luff.transformers._callback import Callback

__all__ = ["Callback", "StopTraining", "attach_to_all", "get_hook", "save_scalar", "save_tensor"]

_trainer.install()


def attach_to_all() -> None:
    """Gives every trainer of this process a `Callback`; used by ``luff run``."""
    _trainer.watch_all()
