"""Functional losses: their values in evaluations, where there is no graph, and samples of their arguments. Dropout that
evaluations apply by a function.

Only under ``luff run``, which installs the wrappers before the script's first line. The result of a function does not
change; `torch.jit.script` and torch.compile get the original.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch.compiler import is_compiling

from luff._codes import Phase
from luff._core import enter_phase, leave_phase
from luff._patch import Method, once, unseen, wrap
from luff.torch.patches._registry import hooks
from luff.torch.patches._wraps import busy, local

__all__ = ["install"]

_LOSS = int(Phase.LOSS)
_KINDS = {
    "binary_cross_entropy": "BCELoss",
    "binary_cross_entropy_with_logits": "BCEWithLogitsLoss",
    "cosine_embedding_loss": "CosineEmbeddingLoss",
    "cross_entropy": "CrossEntropyLoss",
    "ctc_loss": "CTCLoss",
    "gaussian_nll_loss": "GaussianNLLLoss",
    "hinge_embedding_loss": "HingeEmbeddingLoss",
    "huber_loss": "HuberLoss",
    "kl_div": "KLDivLoss",
    "l1_loss": "L1Loss",
    "margin_ranking_loss": "MarginRankingLoss",
    "mse_loss": "MSELoss",
    "multi_margin_loss": "MultiMarginLoss",
    "multilabel_margin_loss": "MultiLabelMarginLoss",
    "multilabel_soft_margin_loss": "MultiLabelSoftMarginLoss",
    "nll_loss": "NLLLoss",
    "poisson_nll_loss": "PoissonNLLLoss",
    "smooth_l1_loss": "SmoothL1Loss",
    "soft_margin_loss": "SoftMarginLoss",
    "triplet_margin_loss": "TripletMarginLoss",
}
_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d")


@once
def install() -> None:
    """Wraps the losses and dropouts of `torch.nn.functional`; once per process."""
    for name in _DROPOUTS:
        wrap(torch.nn.functional, name, _dropping)
    for name, kind in _KINDS.items():
        if hasattr(torch.nn.functional, name):
            wrap(torch.nn.functional, name, functools.partial(_telling, kind))


def _telling(kind: str, original: Method) -> Method:
    names = tuple(inspect.signature(original).parameters)[:3]

    def loss(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or (not hooks.heard and not hooks) or (now := local.now).in_loss:
            return original(*args, **kwargs)
        now.in_loss = True
        enter_phase(_LOSS)
        try:
            output = original(*args, **kwargs)
        finally:
            leave_phase(_LOSS)
            now.in_loss = False
        hook = hooks.current()
        if hook is not None and hook.live and not hook.asleep and not busy():
            hook.told("loss", hook.machine.losses.function_returned, kind, names, args, kwargs, output)
        return output

    loss.__prepare_scriptable__ = lambda: original  # type: ignore[attr-defined]
    return loss


def _dropping(original: Method) -> Method:
    def dropout(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() and hooks and not is_compiling():
            share = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
            training = args[2] if len(args) > 2 else kwargs.get("training", True)
            hook = hooks.current() if training and share else None
            if hook is not None and hook.live and not hook.asleep and not busy():
                hook.told("dropout", hook.machine.drops, share)
        return original(*args, **kwargs)

    dropout.__prepare_scriptable__ = lambda: original  # type: ignore[attr-defined]
    return dropout


unseen(globals())
