"""Luff for MXNet 1.9.1 (Gluon).

Two lines attach it to a training::

    import luff.mxnet

    hook = luff.mxnet.attach(net, trainer=trainer, run="runs/first")

``luff run -- python train.py`` does the same for a script that never mentions Luff. Either way, the training computes
bit by bit what it computes without Luff.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from mxnet import gluon as _gluon

from luff._base_hook import Collections, choose_run, make_config
from luff.corrections import Corrections
from luff.errors import InvalidArgumentError, StopTraining
from luff.mxnet._hook import Hook
from luff.mxnet._wraps import hooks, install

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from luff.config import CaptureOptions

__all__ = ["Hook", "StopTraining", "attach", "attach_to_all", "get_hook", "save_scalar", "save_tensor"]


def attach(
    net: _gluon.Block | Iterable[_gluon.Block],
    trainer: _gluon.Trainer | Iterable[_gluon.Trainer] | None = None,
    *,
    run: str | os.PathLike[str] | None = None,
    collections: Collections = None,
    resume: bool = False,
    on_stop: Callable[[], object] | None = None,
    correct: Corrections | None = None,
    **options: Unpack[CaptureOptions],
) -> Hook:
    """Attaches Luff to a model and its trainers. A hook that the model had before ends; its run says so.

    Parameters
    ----------
    net
        The model, or the models that one training trains. May be hybridized before or after.
    trainer
        Trainer or trainers, if they exist already; later ones are found by the parameters that they hold.
    run
        Directory of the run, created. If it holds a run and `resume` is not set, a new one is made beside it:
        ``RUN-2``. None: a new one below ``$LUFF_HOME/runs``. Under ``luff run`` the supervisor's is used.
    collections
        What is saved beyond the default: names of collections (raw values and summaries), or settings by name.
    resume
        Whether to continue an existing run.
    on_stop
        Called before `StopTraining` is raised, e.g. to write a checkpoint, in addition to those of `luff.on_stop`.
    correct
        What Luff may correct when a finding asks for it; by default what was passed to `luff.corrections.accept`.
    **options
        Capture settings: ``save_interval``, ``start_step``, ``end_step``, ``save_steps``, ``save_all``,
        ``include_regex``, ``max_overhead``, ``max_bytes``, … (docs/capture.md).

    Returns
    -------
    Hook
        Records custom scalars and tensors, sets modes, and closes the run.

    Raises
    ------
    LuffError
        When the run cannot be created, or a setting is wrong.
    """
    nets = [net] if isinstance(net, _gluon.Block) else list(net)
    for each in nets:
        if not isinstance(each, _gluon.Block):
            raise InvalidArgumentError(f"net is a {type(each).__name__}; expected a mxnet.gluon.Block")
    chosen = choose_run(run, resume, make_config(collections, options))
    hook = Hook(chosen, nets, on_stop, correct)
    for known in [trainer] if isinstance(trainer, _gluon.Trainer) else list(trainer or ()):
        hook.trainer(known)
    hook.open_now()
    install()
    return hooks.add(hook, nets)


attach_to_all = hooks.attach_to_all
get_hook = hooks.get_hook
save_scalar = hooks.save_scalar
save_tensor = hooks.save_tensor
