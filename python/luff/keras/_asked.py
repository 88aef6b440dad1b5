"""Whether a loop that trains a model of layers asks it for training: events `mode_not_asked`."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import record

from luff._weak import Identities
from luff.keras._graphs import nodes_of
from luff.keras._names import layers_of

__all__ = ["Asked"]


class Asked:
    """What is known of the models that are called under a tape in a loop of the user's own."""

    def __init__(self) -> None:
        self._over: Identities[bool] = Identities()  # by model: whether nothing is told of it any more

    def called(self, model: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any] | None:
        """Returns an event if a model is not asked for training, and one when the loop says its mode after all: it
        knows of modes then, and may leave some calls without (those that make attacks, those of a critic).
        """
        if not record.could_possibly_record():
            return None  # an evaluation
        over = self._over.get(model)  # False: it was told that it is not asked
        asked = len(arguments) > 1 or named.get("training") is not None
        if over or (over is False and not asked):
            return None
        dropout, norms = (0, 0) if asked else _that_depend_on_it(model)
        self._over[model] = not dropout and not norms
        if over is None and self._over.get(model):
            return None
        return {"kind": "mode_not_asked", "model": str(model.name), "dropout": dropout, "batch_norm": norms}


def _that_depend_on_it(model: Any) -> tuple[int, int]:
    """Returns how many layers drop values, and how many normalise batches and have statistics of the start; (0, 0)
    if the model's own graph gives some of them a mode, or is not known.
    """
    if type(model) not in (keras.Sequential, keras.Model) and type(model).__name__ != "Functional":
        return 0, 0
    if any(node.arguments.kwargs.get("training") is True for node in nodes_of(model)):
        return 0, 0  # masks that are wanted in evaluations, too
    dropout = norms = 0
    for path, layer in layers_of(model):
        kind = type(layer).__name__
        if kind in ("Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"):
            dropout += 1 if layer.rate > 0 and "/" not in path else 0  # a model inside may have its own mode
        elif kind == "BatchNormalization" and layer.trainable:
            if not _as_it_began(layer):
                return 0, 0  # it was trained before, or loaded: statistics may be meant to stay
            norms += 1
    return dropout, norms


def _as_it_began(layer: Any) -> bool:
    with tf.init_scope():
        return not np.any(np.asarray(layer.moving_mean.value))
