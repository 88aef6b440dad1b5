"""Finds the operation that made the first non-finite value of a step.

Costs nothing while losses are finite. When one is not, and its graph still exists, the graph and the values it has
saved are read through memory; then a forked child evaluates the step's own statements again (`_replay`).
docs/adr/0010.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from luff._codes import Mode
from luff._hook import Session
from luff.torch.capture._graphs import nodes_behind
from luff.torch.capture._memory import Budget, array_of, read_scalar
from luff.torch.evidence._step import StepContext
from luff.torch.replay._domains import is_bad, operator_of, reason_of, saved_by
from luff.torch.replay._draws import Draws
from luff.torch.replay._replay import Replay, frames_of_user

__all__ = ["NonFinite", "Producer", "find_in_graph"]

_TRAIN = int(Mode.TRAIN)
_MAX_AUTOPSIES = 3  # in a run
_MAX_REPLAYS = 2
_NODES = 4096
_BYTES = 256 << 20  # of tensors examined in one autopsy


@dataclass(slots=True)
class Producer:
    """What made the first non-finite value."""

    phase: str  # "input", "weights", "forward", "loss", "backward", "optimizer"
    operator: str = ""
    reason: str = ""
    count: int = 0
    elements: int = 0
    module: str = ""
    tensor: str = ""
    more: dict[str, Any] = field(default_factory=dict)

    def record(self, step: int, origin: str) -> dict[str, Any]:
        """Returns the fields of the run's event (docs/rules/non_finite.md)."""
        fields = {
            name: getattr(self, name)
            for name in ("phase", "operator", "reason", "count", "elements", "module", "tensor")
            if getattr(self, name)
        }
        return {"kind": "nonfinite", "step": step, "from": origin, **fields, **self.more}


def _zero() -> int:
    return 0


class NonFinite:
    """Searches for the producer, under the hook's lock and guard."""

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self.draws = Draws()
        self._autopsies = 0
        self._replays = 0
        self._bad_step = -2  # the last step with a non-finite loss
        self.count: Callable[[], int] = _zero  # number of summaries so far of tensors with non-finite values
        self.suspect = False  # a loss of the open step is not finite
        self._waiting: list[tuple[dict[str, Any], Replay | None]] = []
        self._ended: list[Replay] = []  # children that have answered and may still be running
        self.open = False  # something may be to be recorded

    def opened(self, session: Session) -> None:
        """Called when the session is open."""
        self.count = getattr(session, "nonfinite", self.count)

    def backward_begins(self, roots: list[Any]) -> None:
        """Examines the graph of a non-finite loss, which still exists when the backward pass begins."""
        self.suspect = False
        step = self._context.clock.mode_steps[_TRAIN]
        value = read_scalar(roots[0]) if len(roots) == 1 and isinstance(roots[0], torch.Tensor) else None
        if value is None or value - value == 0.0:
            return
        again, self._bad_step = step <= self._bad_step + 1, step
        if again or self._autopsies >= _MAX_AUTOPSIES:
            return
        self._autopsies += 1
        models = self._context.called.models()
        producer = self._in_weights(models)
        if producer is None:
            ok = not self._context.saved_hooks
            producer = find_in_graph(roots[0], self._context.names, saved_ok=ok) or Producer("loss")
        record = producer.record(step, "graph")
        replay: Replay | None = None
        if producer.phase in ("input", "forward", "loss"):
            replay, reason = self._start(roots[0], False)
            if reason:
                record["no_replay"] = reason
        self._wait(record, replay)

    def _wait(self, record: dict[str, Any], replay: Replay | None) -> None:
        self._waiting.append((record, replay))
        self.open = True

    def gradients_taken(self) -> None:
        """Called when gradients that an optimizer is about to use are not finite."""
        step = self._context.clock.mode_steps[_TRAIN]
        again, self._bad_step = step <= self._bad_step + 1, step
        if again:
            return
        replay, reason = self._start(None, True)
        record = {"kind": "nonfinite", "step": step}
        if replay is not None:
            self._wait(record, replay)
        elif reason:
            self._wait({**record, "from": "graph", "no_replay": reason}, None)

    def publish(self, session: Session, until: float = 0.0) -> None:
        """Records what is known so far. `until` is for the end of the run: waits at most until then (monotonic)."""
        going: list[tuple[dict[str, Any], Replay | None]] = []
        for record, replay in self._waiting:
            if record.get("from") == "graph":
                session.event_json(json.dumps(record))
            if replay is None:
                continue
            answer = replay.answer(until)
            if answer is None:
                going.append(({"kind": "nonfinite", "step": record["step"]}, replay))
                continue
            self._ended.append(replay)
            if answer:
                session.event_json(
                    json.dumps({"kind": "nonfinite", "step": record["step"], "from": "replay", **answer})
                )
        self._waiting = going
        self._ended = [replay for replay in self._ended if not replay.collected()]
        self.open = bool(self._waiting or self._ended)

    def _start(self, root: Any, backward: bool) -> tuple[Replay | None, str]:
        """Starts a child that evaluates the step again, or returns the reason why there is none."""
        if self._replays >= _MAX_REPLAYS:
            return None, ""
        self._replays += 1
        models = self._context.called.models()
        started = Replay.start(frames_of_user(), root, backward, self._context.names, models, self.draws)
        return (None, started) if isinstance(started, str) else (started, "")

    def _in_weights(self, models: Iterable[Any]) -> Producer | None:
        """Finds a parameter or buffer that was not finite before this step's forward pass."""
        names, budget = self._context.names, Budget(_BYTES)
        for model in models:
            for kind, named in (
                ("parameter", model.named_parameters()),
                ("buffer", model.named_buffers()),
            ):
                for path, tensor in named:
                    array = array_of(tensor, budget)
                    if array is None or not is_bad(array):
                        continue
                    nan = int((array != array).sum())
                    updated = self._context.clock.latest_update() > 0
                    optimized = kind == "parameter" and updated and tensor.requires_grad
                    if not nan and not optimized:
                        continue  # infinities may be a mask
                    name = (names.parameter(tensor) if kind == "parameter" else None) or path
                    reason = f"{kind} {name} {'holds NaN' if nan else 'is infinite'}"
                    if optimized:  # whoever wrote it: what lies between two forward passes is not seen
                        reason += ": an update or the script itself has made it"
                    elif not updated:
                        reason += " before the first update"
                    return Producer(
                        "optimizer" if optimized else "weights",
                        reason=reason,
                        count=nan or int(array.size - int(np.isfinite(array).sum())),
                        elements=int(array.size),
                        tensor=name,
                        module=path.rpartition(".")[0],
                    )
        return None


# The graph ---------------------------------------------------------------------------------------------------------


class _Walk:
    """One walk through a graph: every node's saved tensors, and what is known of its output."""

    def __init__(self, root: Any, names: Any) -> None:
        self.names = names
        self.budget = Budget(_BYTES)
        self.saved: dict[Any, dict[str, Any]] = {}
        self.bad_inputs: dict[Any, list[Any]] = {}
        self.bad: set[Any] = {root}
        self.good: set[Any] = set()
        for node in nodes_behind([root], _NODES):
            self._read(node)

    def _read(self, node: Any) -> None:
        saved = self.saved[node] = saved_by(node)
        self.bad_inputs[node] = []
        for name, value in saved.items():
            if not isinstance(value, torch.Tensor):
                continue
            array = array_of(value, self.budget)
            if array is None:
                continue
            bad = is_bad(array)
            maker = value.grad_fn
            if maker is None and (name.startswith("result") or name in ("output", "logsumexp")):
                continue
            if maker is not None:
                (self.bad if bad else self.good).add(maker)
            if bad and maker is not node:
                self.bad_inputs[node].append(value)

    def get(self, node: Any) -> Any:
        saved = self.saved[node]

        def one(name: str) -> Any:
            value = saved.get(name)
            return array_of(value) if isinstance(value, torch.Tensor) else value

        return one

    def find(self, start: Any) -> Producer | None:
        """Searches depth first along bad or unknown nodes for the operation whose arguments are finite."""
        visited: set[Any] = set()
        deepest: Producer | None = None
        stack: list[tuple[Any, bool, int]] = [(start, False, 0)]
        while stack:
            node, forward, stage = stack.pop()
            if stage:
                if deepest is None and node in self.bad and not self.bad_inputs[node]:
                    deepest = self._made(node, forward)
                continue
            if node in visited or node not in self.saved:
                continue
            visited.add(node)
            if node in self.good and node not in self.bad:
                continue
            reason, count = reason_of(operator_of(node), self.get(node))
            inside = forward or self._owns_weights(node)
            if reason and reason != "zero times infinity":
                return self._made(node, forward, reason, count)
            leaf = self._leaf(node)
            if leaf is not None:
                return leaf
            stack.append((node, forward, 1))
            makers = [tensor.grad_fn for tensor in self.bad_inputs[node] if tensor.grad_fn is not None]
            others = [n for n, _ in node.next_functions if n is not None and n not in makers]
            stack.extend((n, inside, 0) for n in reversed([*makers, *others]))
        return deepest

    def _leaf(self, node: Any) -> Producer | None:
        for tensor in self.bad_inputs[node]:
            if tensor.grad_fn is not None:
                continue
            array = array_of(tensor)
            nan = 0 if array is None else int((array != array).sum())
            if not nan:
                continue  # infinities may be a mask
            size = int(tensor.numel())
            name = self.names.parameter(tensor) if self.names is not None else None
            if tensor.requires_grad or name is not None:
                return Producer(
                    "weights", "", f"{name or 'a weight'} holds NaN", nan, size, tensor=name or ""
                )
            shape = "x".join(str(n) for n in tensor.shape)
            return Producer(
                "input",
                "",
                f"an input of {operator_of(node)} holds NaN (shape {shape or 'one number'})",
                nan,
                size,
            )
        return None

    def _made(self, node: Any, forward: bool, reason: str = "", count: int = 0) -> Producer:
        if not reason:
            reason, count = reason_of(operator_of(node), self.get(node))
        operator = operator_of(node)
        if not reason:
            known = any(isinstance(value, torch.Tensor) for value in self.saved[node].values())
            reason = (
                f"the result of {operator} is not finite though its arguments are"
                if known
                else f"{operator}, or an operation just before it, made it"
            )
        phase = "forward" if forward or self._owns_weights(node) else "loss"
        return Producer(phase, operator, reason, count, module=self._module(node))

    @staticmethod
    def _owns_weights(node: Any) -> bool:
        for following, _ in node.next_functions:
            if following is None:
                continue
            if hasattr(following, "variable"):
                return True
            # a linear layer's weight is transposed
            if (
                any(n is not None and hasattr(n, "variable") for n, _ in following.next_functions)
                and following.name() == "TBackward0"
            ):
                return True
        return False

    def _module(self, node: Any) -> str:
        """Returns the module of the nearest parameter towards the leaves; "" if there is none.

        Of a model without modules, the parameter.
        """
        queue, seen, position = [node], {node}, 0
        while position < len(queue) and position < 64:
            one = queue[position]
            position += 1
            for following, _ in one.next_functions:
                if following is None or following in seen:
                    continue
                variable = getattr(following, "variable", None)
                name = None if variable is None or self.names is None else self.names.parameter(variable)
                if name is not None:
                    module = str(name).rpartition(".")[0]
                    return module if one is node else f"after {module or name}"
                seen.add(following)
                queue.append(following)
        return ""


def find_in_graph(root: Any, names: Any, saved_ok: bool = True) -> Producer | None:
    """Returns the operation that made a loss NaN or infinite, as far as its graph shows it.

    Parameters
    ----------
    root
        The loss; its backward pass has not begun.
    names
        Names of parameters, or None.
    saved_ok
        False while saved-tensor hooks are in use: nothing may be unpacked.
    """
    if root.grad_fn is None or not saved_ok:
        return None
    return _Walk(root.grad_fn, names).find(root.grad_fn)
