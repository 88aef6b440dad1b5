"""Finds what backward passes do not reach: parameters without a gradient, and leaves that belong to no model.

Examined in the first steps of a process, then ever more rarely, and again after optimizers or parameters were added.
The graph is walked before a backward pass frees it; nothing of it is kept longer.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterable
from typing import Any

from torch.nn import Parameter

from luff._hook import Session
from luff.torch.capture._graphs import nodes_behind, nodes_of
from luff.torch.capture._memory import gradient_of
from luff.torch.capture._names import Names
from luff.torch.capture._recorder import OptimizerRecord

__all__ = ["Reach"]

_MAX_NODES = 20_000
_MAX_NAMES = 64
_MAX_LEAVES = 1024
_TURNS = 32  # looks in a row that may reach other parameters
_LEAF = "torch::autograd::AccumulateGrad"


class Reach:
    """Follows the backward passes of one step, under the hook's lock and guard.

    Attributes
    ----------
    reached
        Parameters with a gradient, by their ``id()``; None: the step is not examined.
    left
        Parameters of models without one, of the last step that was examined; None where that is not known.
    """

    def __init__(self) -> None:
        self.reached: set[int] | None = None
        self.left: list[Any] | None = None
        self._without: list[Any] = []  # weak references to parameters that have none so far
        self._seen: dict[int, Any] = {}  # leaves outside of models in the last recorded step
        self._now: dict[int, Any] = {}  # the same for this step
        self._shapes: dict[int, list[int]] = {}  # of those of this step that are parameters
        #: Of parameters outside of models, by their id: a weak reference, in how many looks they were reached, and the
        #: last of these.
        self._met: dict[int, tuple[Any, int, int]] = {}
        self._looks = 0
        self.spoiled = False  # gradients were used and freed inside the backward pass

    def begins(self, roots: Iterable[Any], models: Iterable[Any]) -> None:
        """Called when a backward pass begins, in a step that `Evidence` has chosen."""
        if self.reached is None:
            self.reached, self._without, self._now, self.spoiled = set(), [], {}, False
            self._shapes = {}
        models = list(models)
        if any(_is_sharded(model) for model in models):
            self.reached = None
            return
        known = {id(parameter) for model in models for parameter in model.parameters()}
        for leaf in _leaves(roots):
            if id(leaf) not in known and len(self._now) < _MAX_LEAVES:
                self._now[id(leaf)] = weakref.ref(leaf)
                if isinstance(leaf, Parameter):
                    self._shapes[id(leaf)] = [int(n) for n in leaf.shape]

    def ended(self, models: Iterable[Any]) -> None:
        """Called when a backward pass has ended."""
        reached = self.reached
        if reached is None:
            return
        without = {}
        for model in models:
            for parameter in model.parameters():
                if not parameter.requires_grad:
                    continue
                if gradient_of(parameter) is not None:
                    reached.add(id(parameter))
                elif id(parameter) not in reached:
                    without[id(parameter)] = weakref.ref(parameter)
        self._without = list(without.values())

    def record(
        self, session: Session, names: Names, optimizers: Iterable[tuple[OptimizerRecord, Any]]
    ) -> None:
        """Records the result at the end of the step."""
        reached, self.reached = self.reached, None
        self.left = None
        if reached is None or self.spoiled:
            return
        without = [p for p in (reference() for reference in self._without) if p is not None]
        self.left = without
        lasting = []
        for key, reference in self._now.items():
            leaf, before = reference(), self._seen.get(key)
            if leaf is not None and before is not None and before() is leaf:
                lasting.append(leaf)
        lasting += self._met_again(names, lasting)
        made = [shape for key, shape in self._shapes.items() if self._now[key]() is None]
        self._seen, self._now, self._without, self._shapes = self._now, {}, [], {}
        if not reached and not without and not lasting and not made:
            return
        owners = {}
        if lasting:
            owners = {
                id(p): record.name
                for record, o in optimizers
                for group in o.param_groups
                for p in group["params"]
            }
        session.event_json(
            json.dumps(
                {
                    "kind": "reach",
                    "without_gradient": [names.parameter(p) or "" for p in without[:_MAX_NAMES]],
                    "without_gradient_count": len(without),
                    "foreign": [
                        {"shape": [int(n) for n in leaf.shape], "optimizer": owners.get(id(leaf))}
                        for leaf in lasting[:_MAX_NAMES]
                    ],
                    "reached_count": len(reached),
                    **({"made": made[:_MAX_NAMES]} if made else {}),
                }
            )
        )

    def _met_again(self, names: Names, lasting: list[Any]) -> list[Any]:
        """Returns other parameters outside of models that earlier looks have reached, twice at least: passes of several
        roots may take turns, of which the last one has reached others.
        """
        self._looks += 1
        for key in self._shapes:
            leaf = self._now[key]()
            reference, count, _ = self._met.get(key, (None, 0, 0))
            if leaf is None or (reference is None and len(self._met) >= _MAX_LEAVES):
                continue
            same = reference is not None and reference() is leaf
            self._met[key] = (weakref.ref(leaf), count + 1 if same else 1, self._looks)
        self._met = {
            key: met
            for key, met in self._met.items()
            if met[0]() is not None and met[2] + _TURNS > self._looks
        }
        told = {id(leaf) for leaf in lasting}
        again = [met[0]() for key, met in self._met.items() if met[1] > 1 and key not in told]
        return [
            leaf
            for leaf in again
            if leaf is not None and leaf.requires_grad and names.parameter(leaf) is None
        ]


def _leaves(roots: Iterable[Any]) -> list[Any]:
    """Returns the leaves of the graph that get a gradient; a bounded walk."""
    return [node.variable for node in nodes_behind(nodes_of(roots), _MAX_NODES) if node.name() == _LEAF]


def _is_sharded(model: Any) -> bool:
    """Whether this is FSDP: its graphs end in leaves of its own, and gradients are elsewhere."""
    if any(cls.__name__ in ("FSDPModule", "FullyShardedDataParallel") for cls in type(model).__mro__):
        return True
    return any(hasattr(parameter, "_local_tensor") for parameter in model.parameters())
