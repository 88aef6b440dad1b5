"""Luff for PyTorch.

Two lines attach it to a training::

    import luff.torch

    hook = luff.torch.attach(model, optimizer=optimizer, loss_fn=loss_fn, run="runs/first")

``luff run -- python train.py`` does the same for a script that never mentions Luff. Either way, the training computes
bit by bit what it computes without Luff.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch as _torch

from luff._base_hook import Collections, choose_run, make_config
from luff.corrections import Corrections
from luff.errors import InvalidArgumentError, StopTraining
from luff.torch.loop._hook import Hook
from luff.torch.patches import _wraps
from luff.torch.patches._registry import hooks

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from luff.config import CaptureOptions

__all__ = ["Hook", "StopTraining", "attach", "attach_to_all", "get_hook", "save_scalar", "save_tensor"]


def attach(
    model: _torch.nn.Module,
    optimizer: _torch.optim.Optimizer | Iterable[_torch.optim.Optimizer] | None = None,
    loss_fn: _torch.nn.Module | Callable[..., Any] | None = None,
    *,
    run: str | os.PathLike[str] | None = None,
    collections: Collections = None,
    resume: bool = False,
    on_stop: Callable[[], object] | None = None,
    correct: Corrections | None = None,
    **options: Unpack[CaptureOptions],
) -> Hook:
    """Attaches Luff to a model and its optimizers. If the model has a hook already, that hook's run ends and says so.

    Parameters
    ----------
    model
        The model; wrappers (DDP, compile) may be put around it before or after.
    optimizer
        Optimizer or optimizers, if they exist already; later ones are found by the parameters that they hold.
    loss_fn
        The loss, for the run's description. Calls of loss modules and roots of backward passes are seen anyway.
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
        Records custom scalars and tensors, sets modes and steps by hand, and closes the run.

    Raises
    ------
    LuffError
        When the run cannot be created, or a setting is wrong.
    """
    if not isinstance(model, _torch.nn.Module):
        raise InvalidArgumentError(f"model is a {type(model).__name__}; expected a torch.nn.Module")
    config = make_config(collections, options, ("optimizer", "loss_fn"))
    chosen = choose_run(run, resume, config)
    _wraps.install()
    hook = Hook(chosen, model, on_stop, correct)
    optimizers = [optimizer] if isinstance(optimizer, _torch.optim.Optimizer) else list(optimizer or ())
    hook.open_now(optimizers, loss_fn)
    hooks.add(hook, [model, *model.parameters()])
    hook.guarded("model", hook.machine.called.root, model)
    hook.guarded("names", hook.machine.name_now)
    return hook


attach_to_all = hooks.attach_to_all
get_hook = hooks.get_hook
save_scalar = hooks.save_scalar
save_tensor = hooks.save_tensor
