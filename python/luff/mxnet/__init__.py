"""Luff for MXNet 1.9.1 (Gluon).

Two lines attach it to a training::

    import luff.mxnet

    hook = luff.mxnet.attach(net, trainer=trainer, run="runs/first")

``luff run -- python train.py`` does the same for a script that never mentions Luff. Either way the training computes
bit by bit what it computes without.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from mxnet import gluon as _gluon

from luff._base_hook import Collections, choose_run, make_config
from luff._hook import run_from_environment
from luff.corrections import Corrections
from luff.errors import InvalidArgumentError, StopTraining
from luff.mxnet import _wraps
from luff.mxnet._hook import Hook

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
    **options: Any,
) -> Hook:
    """Attaches Luff to a model and what trains it.

    Parameters
    ----------
    net
        The model, or the models that one training trains. May be hybridised before or after.
    trainer
        Trainer or trainers, if they exist already; later ones are found by what they hold.
    run
        Directory of the run, created; it must not exist unless `resume`. Under ``luff run`` the supervisor's is taken.
    collections
        What is saved beyond the default: names of collections (raw values and summaries), or settings by name.
    resume
        Goes on in an existing run.
    on_stop
        Called before `StopTraining` is raised, e.g. to write a checkpoint. Besides those of `luff.on_stop`.
    correct
        What Luff may correct when a finding asks for it; by default what `luff.corrections.accept` was given.
    **options
        Capture settings: ``save_interval``, ``start_step``, ``end_step``, ``save_steps``, ``save_all``,
        ``include_regex``, ``max_overhead``, ``max_bytes``, … (docs/capture.md).

    Returns
    -------
    Hook
        For custom scalars and tensors, modes, and to close the run.

    Raises
    ------
    LuffError
        When the run exists already or cannot be created, or a setting is wrong.
    """
    nets = [net] if isinstance(net, _gluon.Block) else list(net)
    for each in nets:
        if not isinstance(each, _gluon.Block):
            raise InvalidArgumentError(f"net is a {type(each).__name__}; expected a mxnet.gluon.Block")
    given = collections is not None or bool(options)
    chosen = choose_run(run, resume, make_config(collections, options) if given else {})
    hook = Hook(chosen, nets, on_stop, correct)
    for known in [trainer] if isinstance(trainer, _gluon.Trainer) else list(trainer or ()):
        hook.trainer(known)
    hook.open_now()
    _wraps.add(hook)
    return hook


def attach_to_all() -> Hook | None:
    """Attaches to whatever this process trains; used by ``luff run``. None if no supervisor named a run."""
    options = run_from_environment()
    if options is None:
        return None
    if _wraps.hooks.default is None:
        _wraps.add(Hook(options), default=True)
    return _wraps.hooks.default


def get_hook() -> Hook | None:
    """The hook whose model was called last, or the only one."""
    return _wraps.hooks.current()


def save_scalar(name: str, value: float) -> None:
    """Records a number in the current step; nothing happens where Luff is not attached."""
    hook = get_hook()
    if hook is not None:
        hook.save_scalar(name, value)


def save_tensor(name: str, value: Any) -> None:
    """Records a tensor in the current step; nothing happens where Luff is not attached."""
    hook = get_hook()
    if hook is not None:
        hook.save_tensor(name, value)
