"""The hook of JAX. Steps are those that the loop reports, or the calls of a function that trains."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import numpy as np

from luff import _jax_compiles, corrections
from luff._base_hook import BaseHook, mode_of
from luff._codes import GapReason, Mode, Role
from luff._hook import RunOptions, Session
from luff._registry import Registry
from luff._xplane import Profiler, TracedStepHook, jax_profiler
from luff.jax import _auto, _describe
from luff.jax._auto import take_gradients
from luff.jax._find import has_tracer, in_trace
from luff.jax._flax import nnx_of
from luff.jax._optimizer import settings_of, state_parts
from luff.jax._summaries import Summaries
from luff.jax._trees import Leaf, Part, Trees
from luff.jax._values import Reader, Tensors, is_gone
from luff.jax._watch import Watcher

__all__ = ["Hook", "hooks"]

F = TypeVar("F", bound=Callable[..., Any])

_TRAIN = int(Mode.TRAIN)
_GRADIENT, _LOSS = int(Role.GRADIENT), int(Role.LOSS)
_STATE, _SETTING = int(Role.OPTIMIZER_STATE), int(Role.OPTIMIZER_SETTING)
_WEIGHT, _BIAS, _BUFFER = int(Role.WEIGHT), int(Role.BIAS), int(Role.BUFFER)


class Hook(TracedStepHook):
    """Watches one training. Made by `luff.jax.attach`."""

    framework = "jax"

    def __init__(
        self,
        options: RunOptions,
        on_stop: Callable[[], object] | None = None,
        correct: corrections.Corrections | None = None,
    ) -> None:
        super().__init__(options, on_stop, correct)
        self.trees = Trees()
        self.reader: Reader | None = None
        # by id of the leaves, which are kept alive
        self._numbers: dict[tuple[int, str], tuple[Any, Tensors]] = {}
        self._held: list[Part] = []  # parameters for the next TRAIN step, given after the previous one
        self._donates = True  # whether the call that trains donates its parameters; assumed until seen
        self._described: dict[int, list[Leaf]] = {}  # by id of the leaves, which are kept alive
        self._trained: dict[int, list[Leaf]] = {}
        self._settings: dict[Any, bool] = {}  # whether states of this kind contain settings
        self._document = _describe.Document()

    def profiler(self) -> Callable[[], Profiler]:
        return jax_profiler

    def versions(self) -> dict[str, Any]:
        return _describe.versions()

    def rank(self) -> tuple[int, int] | None:
        count = _describe.process_count()
        return (jax.process_index(), count) if count > 1 else super().rank()

    def opened(self, session: Session) -> None:
        if self.steps.arrays is not None:
            self.reader = Reader(session, self.steps.arrays)

    def forked(self) -> None:
        super().forked()
        self.reader, self._held = None, []
        self._numbers.clear()

    # Steps reported by the loop --------------------------------------------------------------------------------

    def step(
        self,
        *,
        loss: Any = None,
        params: Any = None,
        grads: Any = None,
        opt_state: Any = None,
        mode: Mode | str = Mode.TRAIN,
        updated: bool = True,
    ) -> None:
        """Records a step that the loop has completed.

        Parameters
        ----------
        loss
            A number, or several by name.
        params
            Parameters as they are now, which the next step uses: a pytree, or a module of NNX.
        grads
            Gradients that the optimizer has used, as a tree like the parameters.
        opt_state
            State of Optax after the update, or the optimizer of NNX.
        mode
            ``"TRAIN"``, ``"EVAL"`` or ``"PREDICT"``.
        updated
            False if the step has only accumulated gradients.

        Raises
        ------
        StopTraining
            If a finding stops the run.
        """
        hooks.used(self)
        chosen = mode_of(mode) or _TRAIN
        self.told("step", self._step, chosen, loss, params, grads, opt_state, updated)
        if chosen == _TRAIN:
            self.boundary()

    def start(self, params: Any) -> None:
        """Records the parameters that the first step uses, for a loop that reports its steps by `step`."""
        self.told("start", self._hold, params)

    def _step(self, mode: int, loss: Any, params: Any, grads: Any, state: Any, updated: bool) -> None:
        losses = list(loss.items()) if isinstance(loss, Mapping) else [("loss", loss)]
        if in_trace() or has_tracer(value for _, value in losses):
            self.hidden()
            return
        if mode == _TRAIN:
            held, self._held = self._held, []
            if self.steps.provisional:
                self.steps.confirm()
            else:
                self.steps.begin(mode)
                self.parameters(held)
            if held:
                self._donates = any(is_gone(value) for part in held for value in part.values)
            self._numbers_of_step(losses)
            if grads is not None:
                self.gradients(grads)
            if updated:
                self.steps.updated()
            if state is not None:
                self.optimizer_state(state)
            self.steps.end()
            if params is not None:
                self._hold(params)
        else:
            self.steps.begin(mode)
            self._numbers_of_step(losses)
            self.steps.end()

    def _numbers_of_step(self, losses: list[tuple[str, Any]]) -> None:
        for name, value in losses:
            if value is not None:
                self.steps.scalar(str(name), np.asarray(value), _LOSS)

    def _hold(self, params: Any) -> None:
        self._held = self.trees.parts(params)
        if self._donates and self.steps.begin(_TRAIN, provisional=True) is not None:
            self.parameters(self._held)

    def settle(self) -> None:
        """Drops a step that still waits for its loss when another thread trains."""
        self.steps.abandon()

    def hidden(self, count: int = 1) -> None:
        """Records that steps happened inside a compiled function, where their values cannot be read."""
        if self.session is not None:
            self.session.gap(0xFFFFFFFF, int(GapReason.COMPILED_GRAPH), 0, count)

    # Functions that train a step -------------------------------------------------------------------------------

    def watch(
        self,
        function: F,
        *,
        mode: Mode | str = Mode.TRAIN,
        read: Callable[[tuple[Any, ...], dict[str, Any], Any], Mapping[str, Any]] | None = None,
    ) -> F:
        """Returns a function that does what `function` does and records each call as a step.

        Parameters
        ----------
        function
            Trains (or evaluates) a step, compiled or not. It is called and compiled exactly as before.
        mode
            Mode of the steps.
        read
            Identifies the values if names and types do not: takes positional arguments, keyword arguments and the
            result; returns any of ``loss``, ``params`` (before the update), ``grads``, ``opt_state``.

        Raises
        ------
        StopTraining
            From the returned function, before it computes: if a finding stops the run.
        """
        hooks.used(self)
        chosen = mode_of(mode) or _TRAIN
        watcher = Watcher(lambda: self, function, chosen, read)

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            return watcher(function, args, kwargs)

        return watched  # type: ignore[return-value]

    # Updates outside of compiled functions ---------------------------------------------------------------------

    def before_update(self, model: Any) -> tuple[list[Part], Any, Any] | None:
        """Called before parameters are updated. Returns what the step used: parameters, loss and gradients.

        Raises
        ------
        StopTraining
            If a finding stops the run.
        """
        self.boundary()
        return self.told("update", self._before_update, model)  # type: ignore[no-any-return]

    def _before_update(self, model: Any) -> tuple[list[Part], Any, Any]:
        return (self.trees.parts(model), *take_gradients())

    def after_update(self, seen: tuple[list[Part], Any, Any], grads: Any, state: Any) -> None:
        """Records the step that the update ends."""
        self.told("update", self._after_update, seen, grads, state)

    def _after_update(self, seen: tuple[list[Part], Any, Any], grads: Any, state: Any) -> None:
        parts, loss, noted = seen
        if self.steps.begin(_TRAIN) is None:
            return
        self.parameters(parts)
        self.trained(parts)
        self._numbers_of_step([("loss", loss)])
        self.gradients(noted if grads is None else grads, GapReason.NOT_SEEN)
        self.steps.updated()
        self.optimizer_state(state)
        self.steps.end()

    # Values of the open step (under the lock) ------------------------------------------------------------------

    def parameters(self, parts: list[Part]) -> None:
        """Records parameters as the step uses them."""
        session = self.session
        if session is None or self.reader is None:
            return
        for part in parts:
            if id(part.leaves) not in self._described:
                self._describe(session, part)
            if session.due_role(_WEIGHT) or session.due_role(_BIAS) or session.due_role(_BUFFER):
                self._capture(part.leaves, part.values)

    def trained(self, parts: list[Part]) -> None:
        """Remembers that these parameters are trained."""
        for part in parts:
            if len(self._trained) < 4096:
                self._trained[id(part.leaves)] = part.leaves

    def is_trained(self, leaves: list[Leaf] | None) -> bool:
        """Returns whether these are the leaves of trained parameters."""
        return leaves is not None and id(leaves) in self._trained

    def gradients(self, tree: Any, missing: GapReason = GapReason.COMPILED_GRAPH) -> None:
        """Records gradients as the optimizer uses them. None records a gap with the given reason."""
        session = self.session
        if session is None or self.reader is None or not session.due_role(_GRADIENT):
            return
        if tree is None:
            session.gap(0xFFFFFFFF, int(missing), session.due_role(_GRADIENT), 1)
            return
        self._capture_like(tree, "gradient/", _GRADIENT)

    def optimizer_state(self, state: Any) -> None:
        """Records the state of an optimizer after the update."""
        session = self.session
        if session is None or self.reader is None:
            return
        nnx = nnx_of()
        if nnx is not None and isinstance(state, nnx.Optimizer):
            state = state.opt_state
        if not self._document.has_optimizer:
            self._document.optimizer(state, self._held_by(state))
            session.set_document("model", self._document.text())
        kind = type(state), len(state) if isinstance(state, tuple) else 0
        if kind not in self._settings:
            self._settings[kind] = any(True for _ in settings_of(state))
        for name, value in settings_of(state) if self._settings[kind] else ():
            self.steps.scalar(f"optimizer/{self._document.optimizer_name}.group0.{name}", value, _SETTING)
        if not session.due_role(_STATE):
            return
        for label, tree in state_parts(state):
            if hasattr(tree, "ndim") or isinstance(tree, (int, float)):
                self.steps.array(f"optimizer/{label}", tree, _STATE)
            else:
                self._capture_like(tree, f"optimizer/{label}/", _STATE)

    def _held_by(self, state: Any) -> set[str] | None:
        """Returns the names of the parameters that a state keeps moments of; None if it keeps none."""
        for _, tree in state_parts(state):
            if not hasattr(tree, "ndim") and not isinstance(tree, (int, float)):
                leaves = self.trees.like_parameters(tree).leaves
                if leaves:
                    return {leaf.name for leaf in leaves}
        return None

    def _describe(self, session: Session, part: Part) -> None:
        if len(self._described) < 4096:
            self._described[id(part.leaves)] = part.leaves
        if self._document.model(part):
            session.set_document("model", self._document.text())

    def _capture_like(self, tree: Any, prefix: str, role: int) -> None:
        """Captures a tree that is like the parameters, or its summaries."""
        part = self.trees.like_parameters(tree.tree() if isinstance(tree, Summaries) else tree)
        self._capture(part.leaves, tree if isinstance(tree, Summaries) else part.values, prefix, role)

    def _capture(self, leaves: list[Leaf], values: Any, prefix: str = "", role: int | None = None) -> None:
        if self.reader is None:
            return
        key = (id(leaves), prefix)
        known = self._numbers.get(key)
        if known is None or known[0] is not leaves:
            defined = [
                (prefix + leaf.name, leaf.role if role is None else role, leaf.module_path, leaf.kind)
                for leaf in leaves
            ]
            if len(self._numbers) > 4096:
                self._numbers.clear()
            tensors = Tensors([-1] * len(defined), defined)
            known = self._numbers[key] = (leaves, tensors)
        if isinstance(values, Summaries):
            self.reader.capture_summaries(known[1], values)
        else:
            self.reader.capture(known[1], values)


class Hooks(Registry[Hook]):
    """The hooks of JAX. One is attached at a time, and no model or other thing keeps it alive.

    The registry keeps a new hook alive until its holder first calls one of its methods, and again after `get_hook`
    has returned it.
    """

    _held: Hook | None = None
    _asked = False

    def attached(self, hook: Hook) -> Hook:
        """Registers a hook in place of the previous one, and returns it."""
        self.add(hook)
        self._held, self._asked = hook, False
        for other in self.living:
            if other is not hook and other is not self.default:
                other.replaced_by(hook)
        return hook

    def used(self, hook: Hook) -> None:
        """Notes that the holder of the hook has called one of its methods."""
        if self._held is hook and not self._asked:
            self._held = None

    def get_hook(self) -> Hook | None:
        """Returns the hook attached last, or that of ``luff run``, if it is live."""
        hook = self.current()
        if hook is not None and hook is not self.default:
            self._held, self._asked = hook, True
        return hook

    def discard(self, hook: BaseHook) -> None:
        """Unregisters a hook."""
        super().discard(hook)
        if self._held is hook:
            self._held = None

    def watching(self) -> Hook | None:
        """Returns the hook of ``luff run`` if no other is attached."""
        living = self.living
        return self.default if living and living[0] is self.default else None


def _install() -> None:
    _auto.install(hooks.watching)


hooks = Hooks(Hook, _install)
_jax_compiles.listen(hooks)
