"""Tells of parts of a loss that cannot be meant, whatever its other parts and the training's other losses are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from luff.torch.capture._graphs import nodes_behind, operation_of
from luff.torch.evidence._cut_losses import is_cut_off
from luff.torch.evidence._events import WaitingEvents
from luff.torch.evidence._loss_edges import parts_of
from luff.torch.evidence._loss_terms import terms_of
from luff.torch.evidence._sampled_codes import category_divergence_grows, fault_of_samples
from luff.torch.evidence._single_rows import row_that_counts
from luff.torch.evidence._summed_terms import is_summed_and_spread
from luff.torch.evidence._surrogates import fault_of_surrogate

__all__ = ["FormulaParts", "faults_in", "sign_of_mean"]

_ROOTS = 3  # that show it before it is told
_MOST = 8  # faults of a run
_WALK = 4096  # nodes behind a root among which its parameters are
_LINEAR = frozenset(("Addmm", "Mm"))
_LEAF = "torch::autograd::AccumulateGrad"


class FormulaParts(WaitingEvents):
    """Counts the roots whose graph shows such a part. A root without it says nothing: it may be another loss, or one
    whose weight is 0 as yet.
    """

    def __init__(self, waiting: list[dict[str, Any]]) -> None:
        super().__init__()
        self.waiting = waiting  # of the formula, so that steps look at one list
        self._seen: Counter[str] = Counter()
        self._signs: set[float] = set()  # of roots that are means of what a model gives
        #: Of all roots so far, the only row of a batch that each depends on; None: there is none.
        self._rows: set[int | None] = set()

    def root(self, root: Any, optimizers: Iterable[Any]) -> None:
        """Called with the root of a backward pass, of which saved tensors can be read."""
        if root.grad_fn is None:
            return
        with np.errstate(all="ignore"):  # numbers that are not finite say nothing to the user
            faults = faults_in((root.grad_fn, root.output_nr))
        if self._counts_one_row(root):
            faults.append("one_row_counts")
        if not faults and (known := sign_of_mean(root.grad_fn, optimizers)) is not None:
            sign, is_error = known
            self._signs.add(sign)
            if is_error and len(self._signs) == 1:  # a critic of a GAN may have a pass for each of two signs
                faults = ["signed_error"]
        for fault in faults:
            if self._seen[fault] >= _ROOTS or len(self._seen) > _MOST:
                continue
            self._seen[fault] += 1
            if self._seen[fault] == _ROOTS:
                self.waiting.append({"kind": "formula_part", "fault": fault})

    def _counts_one_row(self, root: Any) -> bool:
        """Whether this root, like all before it, depends on the first or the last row of a batch. Rows that are taken
        one after the other, and a root beside it that depends on all, say nothing.
        """
        if len(self._rows) > 1 or None in self._rows:
            return False
        try:
            row = row_that_counts((root.grad_fn, root.output_nr))
        except (RuntimeError, AttributeError, IndexError, TypeError):
            row = None
        self._rows.add(row)
        return self._rows in ({0}, {-1})


def faults_in(edge: tuple[Any, int]) -> list[str]:
    """Returns what is wrong with the parts of a loss, as docs/spec/evidence.md lists it."""
    found = []
    try:
        parts = parts_of(edge)
        if fault := fault_of_samples(parts):
            found.append(fault)
        if category_divergence_grows(parts):
            found.append("category_divergence_maximised")
        if fault := fault_of_surrogate(parts):
            found.append(fault)
        if is_summed_and_spread(edge):
            found.append("summed_and_spread")
        if is_cut_off(edge):
            found.append("loss_cut_off")
    except (
        RuntimeError,
        AttributeError,
        IndexError,
        TypeError,
    ):  # changed in place, or saved under another name
        return found
    return found


def sign_of_mean(node: Any, optimizers: Iterable[Any]) -> tuple[float, bool] | None:
    """Returns the sign of a loss that is the mean of outputs of a linear layer, and whether something without a
    gradient is subtracted from them, if all parameters behind it belong to one of several optimizers: another one's are
    moved through a critic.
    """
    optimizers = list(optimizers)
    if len(optimizers) < 2:
        return None
    try:
        terms = terms_of(node)
        if len(terms) != 1 or not terms[0].averaged or operation_of(terms[0].node) not in _LINEAR:
            return None
        leaves = [one.variable for one in nodes_behind([node], _WALK) if one.name() == _LEAF]
        held = any(_holds(optimizer, leaves) for optimizer in optimizers)
        return (terms[0].sign, terms[0].shifted) if held else None
    except (RuntimeError, AttributeError, IndexError):
        return None


def _holds(optimizer: Any, leaves: list[Any]) -> bool:
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return bool(leaves) and all(id(leaf) in held for leaf in leaves)
