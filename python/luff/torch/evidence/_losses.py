"""Records the losses of a step: from calls of loss modules, and from the root of the backward pass."""

from __future__ import annotations

import json
import math
import weakref
from collections import deque
from itertools import islice
from typing import Any

import numpy as np
import torch

from luff import _codes as codes
from luff._codes import DType, EventKind, GapReason, Mode, Role
from luff.torch.capture._called import is_loss
from luff.torch.capture._describe import plain_settings
from luff.torch.capture._device import DeviceScalar, record_number, scalar_of
from luff.torch.capture._graphs import nodes_behind, nodes_of
from luff.torch.capture._memory import DTYPE_CODES, float_bits, read_scalar
from luff.torch.capture._modules import tensors_in
from luff.torch.evidence import _loss_graph
from luff.torch.evidence._formula_parts import FormulaParts
from luff.torch.evidence._graphless_terms import GraphlessTerms
from luff.torch.evidence._kept_graphs import KeptGraphs
from luff.torch.evidence._loss_arguments import LossArguments
from luff.torch.evidence._loss_formula import LossFormula
from luff.torch.evidence._loss_inputs import LossInputs
from luff.torch.evidence._loss_pairs import LossPairs
from luff.torch.evidence._loss_rows import LossRows
from luff.torch.evidence._nonfinite import NonFinite
from luff.torch.evidence._same_views import SameViews
from luff.torch.evidence._samples import Samples, of_loss
from luff.torch.evidence._step import FunctionLoss, Step, StepContext, UsedLosses
from luff.torch.evidence._written_losses import WrittenLosses

__all__ = ["Losses"]

#: Of torch's modules without parameters, those that a model is made of: a script that calls `model.forward` calls them
#: itself, and of one row with one output their results are numbers, too.
_NO_LOSSES = frozenset(
    f"torch.nn.modules.{name}"
    for name in ("activation", "dropout", "flatten", "linear", "padding", "pooling")
)

_TRAIN = int(Mode.TRAIN)
_LOSS, _LOSS_INPUT, _LABEL = int(Role.LOSS), int(Role.LOSS_INPUT), int(Role.LABEL)
_OTHER = int(Role.OTHER)
_INPUTS = 1 << _LOSS_INPUT | 1 << _LABEL  # as `StepContext.due` has them
_FLOAT32, _FLOAT64 = int(DType.FLOAT32), int(DType.FLOAT64)
_MAX_LOSSES = 64  # of one kind in one step
_SIGNED = 16  # TRAIN steps in which factors of losses are looked at; later those that are powers of two
#: A loss with a smaller factor is scaled down to nearly nothing: the usual rates, up to 1, become rates below 1e-5.
#: Its value is small then, too: a loss in large units may have such a factor so that its value is ordinary.
_FAINT, _FAINT_VALUE = 1e-5, 1e-4
_SEVERAL = 4  # losses in a step of which it is looked at whether a backward pass uses them
_MAX_UNUSED = 32  # steps with losses that no backward pass used that are told
_MARKED = 64  # TRAIN steps in which losses are marked, by which it is seen what uses them
_BEHIND = 1024  # nodes behind a root of such a step that are looked at
_SQUARED_ERROR = "squared error"  # name of those that a script computes itself


class Losses:
    """Records losses, under the hook's lock and guard."""

    def __init__(
        self, context: StepContext, samples: Samples, nonfinite: NonFinite, written: WrittenLosses
    ) -> None:
        self._context = context
        self._written = written
        self._samples = samples
        self._nonfinite = nonfinite
        self.inputs = LossInputs()
        self.rows = LossRows()
        self.arguments = LossArguments()
        self.formula = LossFormula()
        self._formula_parts = FormulaParts(self.formula.waiting)
        self._views = SameViews(self.formula.waiting)
        self.pairs = LossPairs()
        self.terms = GraphlessTerms()
        self.kept_graphs = KeptGraphs()
        #: For each evaluation within a TRAIN step, which is published after that step: (number, value) pairs. None:
        #: it cannot be read so late.
        self.waiting: deque[list[tuple[int, float | DeviceScalar | None]]] = deque()
        #: Product, loss, and scale; None for a scale that is not known, as on an accelerator.
        self.last_scaled: tuple[Any, float | DeviceScalar | None, float | None] | None = None
        self._divisor: weakref.ref[Any] | None = None  # such a scale
        self._maximised: set[str] = set()  # kinds of losses that enter roots with a minus
        self._minimised: set[str] = set()  # kinds that do so without
        self._summed = False  # told that a root sums up more than losses that were called
        self._faint = True  # no root so far had a loss that is not scaled down to nearly nothing
        self._unused = _MAX_UNUSED  # steps that may still be told
        self._sums: set[str] = set()  # kinds of losses that are trained as sums over the targets
        self._loss_kinds: set[str] = set()
        self._scratch = np.zeros(1, dtype=np.float64)
        self._scratch_float32 = self._scratch.view(np.float32)
        self._scratch_address = int(self._scratch.__array_interface__["data"][0])

    def module_returned(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """Called when an outermost call of a module without parameters has returned. A scalar is a loss (or a
        metric).
        """
        if not isinstance(output, torch.Tensor) or not output.dtype.is_floating_point:
            return
        if type(module).__module__ in _NO_LOSSES:
            return
        if output.numel() != 1:
            if is_loss(module):
                self._unreduced(type(module).__name__, (), args, kwargs, output, module)
            return
        kind = type(module).__name__
        training = output.requires_grad
        if not training and kind not in self._loss_kinds and not is_loss(module):
            return
        step = self._context.step
        if not training and self.terms.on:
            self._without_graph(kind, (), args, kwargs, output)
        if training:
            self._loss_kinds.add(kind)
            if step is None or step.mode != _TRAIN or (step.decided and not step.forwards):
                step = self._context.step_of_loss()
        elif step is not None and not step.forwards and self._context.is_over(step):
            return  # of an evaluation of which nothing else is seen
        elif self.waiting and step is not None and step.mode == _TRAIN:
            self._wait(kind, output)
            return
        if step is None:
            return
        recorder = self._context.recorder
        if recorder is not None and kind not in recorder.losses:
            recorder.loss(kind, module)
        if training:
            step.plain_loss = not self._context.saving
            step.loss_outputs.append(weakref.ref(output))
            step.module_losses = {**step.module_losses, kind: step.module_losses.get(kind, 0) + 1}
            if output.grad_fn is not None and is_loss(module) and len(step.loss_nodes) < _MAX_LOSSES:
                step.loss_nodes[output.grad_fn._sequence_nr()] = kind
                self._mark(step, output.grad_fn)
            self._made_by(step, kind, args, kwargs, output, module=module)
            if step.samples:
                self._written.called(step, output)
        self._record_loss(step, kind, scalar_of(output), output)
        self._loss_inputs(step, kind, args, kwargs)
        self._samples.loss(step, kind, args, kwargs)

    def function_returned(
        self,
        kind: str,
        names: tuple[str, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
    ) -> None:
        """Called when a loss function has returned. In training its value is recorded by the backward pass."""
        if not isinstance(output, torch.Tensor) or not output.dtype.is_floating_point:
            return
        if output.numel() != 1:
            self._unreduced(kind, names, args, kwargs, output)
            return
        step = self._context.step
        if step is not None and not step.forwards and self._context.is_over(step):
            if not output.requires_grad:
                return  # of an evaluation of which nothing else is seen
            step = self._context.step_of_loss()
        if step is not None and output.requires_grad and step.mode != _TRAIN and not step.may_train:
            # A pass without gradients, as of a target network, came after the model's: it is no evaluation's loss.
            if self._context.session is None:
                return  # the first backward pass opens it, and records the pass of this step
            step = self._context.step_of_loss()
        if step is None:
            return
        if step.mode != _TRAIN:
            value = scalar_of(output)
            if value is not None and kwargs.get("reduction") == "sum" and kind not in self._sums:
                value /= _loss_graph.counted_targets(kind, args, kwargs)
            self._record_loss(step, kind, value, output)
            self._loss_inputs(step, kind, args, kwargs)
            self._samples.loss(step, kind, args, kwargs, names)
        elif output.requires_grad:
            step.plain_loss = not self._context.saving
            recorder = self._context.recorder  # None before the first backward pass
            told = recorder is not None and kind in recorder.losses
            node = output.grad_fn
            if node is not None and len(step.function_losses) < _MAX_LOSSES:
                call = step.sampled_losses.get(kind, 0)
                step.loss_nodes[node._sequence_nr()] = kind
                self._mark(step, node)
                given = {} if told else plain_settings(kwargs)
                value = scalar_of(output)
                made = FunctionLoss(weakref.ref(output), kind, node._sequence_nr(), call, value, given)
                step.function_losses = [*step.function_losses, made]
            self._made_by(step, kind, args, kwargs, output, names)
            self._samples.loss(step, kind, args, kwargs, names)
        else:
            if self.terms.on:
                self._without_graph(kind, names, args, kwargs, output)
            if self.waiting:
                self._wait(kind, output)

    def _unreduced(
        self,
        kind: str,
        names: tuple[str, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
        module: Any = None,
    ) -> None:
        """Samples a loss with a value for each sample; its reduced value comes from the graph."""
        step = self._context.step
        if step is not None and output.requires_grad and not step.forwards and self._context.is_over(step):
            step = self._context.step_of_loss()
        if self.terms.on and not output.requires_grad:
            self._without_graph(kind, names, args, kwargs, output)
        if step is not None and (step.mode != _TRAIN or output.requires_grad):
            if output.requires_grad:
                self._made_by(step, kind, args, kwargs, output, names)
                if step.samples:
                    self._written.unreduced(step, kind, step.sampled_losses.get(kind, 0), output)
                    recorder = self._context.recorder
                    if recorder is not None and kind not in recorder.losses:
                        recorder.loss(kind, module, given=plain_settings(kwargs))
            elif step.samples and step.begun:
                count = _loss_graph.counted_targets(kind, args, kwargs)
                self._written.evaluated(kind, step.sampled_losses.get(kind, 0), output, count)
            self._samples.loss(step, kind, args, kwargs, names)

    def _made_by(
        self,
        step: Step,
        kind: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        made: Any,
        names: tuple[str, ...] = (),
        module: Any = None,
    ) -> None:
        """Notes which operation made the output that a loss gets, how its rows were flattened, and its other
        arguments; before its samples are taken. `made`: what the loss has returned.
        """
        count = self._context.clock.mode_steps[_TRAIN]
        if not (self.inputs.due(count) or self.inputs.due(count - self._context.looked_from)):
            return
        tensors, call = of_loss(args, kwargs, names), step.sampled_losses.get(kind, 0)
        for tensor in tensors[:1]:
            self.inputs.loss_called(kind, call, tensor, not self._context.saved_hooks)
        if len(tensors) == 2:
            self.rows.loss_called(kind, call, *tensors)
            self.arguments.in_order(kind, call, *tensors)
        self.arguments.called(kind, call, args, kwargs, module)
        if self.terms.on and self._context.looks:
            self.terms.called(kind, tensors, made)

    def _without_graph(
        self, kind: str, names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any], made: Any
    ) -> None:
        """Notes a loss without a graph, while there are parameters that no backward pass has reached."""
        step = self._context.step
        if step is not None and step.mode == _TRAIN and self._context.looks:
            self.terms.called(kind, of_loss(args, kwargs, names), made)

    def _wait(self, kind: str, output: Any) -> None:
        """Keeps the loss of an evaluation within a TRAIN step."""
        value, recorder = scalar_of(output), self._context.recorder
        if value is not None and recorder is not None:
            kept = _lasting(value)
            self.waiting[-1].append((recorder.number(f"{kind}_output_0", _LOSS, "", kind), kept))

    def _loss_inputs(self, step: Step, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        session, modules, recorder = self._context.session, self._context.modules, self._context.recorder
        early = step.kept if session is None else None
        if early is None:
            if session is None or modules is None or recorder is None or not step.begun:
                return
            if not self._inputs_due():
                return
        first = 2 * (step.losses.get(kind, 1) - 1)
        for index, tensor in enumerate(islice(tensors_in((args, kwargs)), 8)):
            name, role = f"{kind}_input_{first + index}", _LOSS_INPUT if index == 0 else _LABEL
            if early is not None:
                early.loss(name, role, kind, tensor)
            elif modules is not None and recorder is not None:
                modules.capture(recorder.number(name, role, "", kind), tensor)
        step.captured |= early is None

    def _record_loss(self, step: Step, kind: str, value: float | DeviceScalar | None, tensor: Any) -> None:
        index = step.losses.get(kind, 0)
        step.losses[kind] = index + 1
        if type(value) is float and value - value != 0.0:
            self._nonfinite.suspect = True
        if index >= _MAX_LOSSES:
            return
        code = DTYPE_CODES.get(tensor.dtype, 0)
        if step.begun and (step.decided or self._context.session is not None):
            self.emit(step, kind, index, value, code)
        else:
            step.pending = [*step.pending, (kind, index, _lasting(value), code)]

    def emit(self, step: Step, kind: str, index: int, value: float | DeviceScalar | None, code: int) -> None:
        """Records a loss in the session: as a number, and as a tensor if a collection wants it."""
        session, recorder = self._context.session, self._context.recorder
        if session is None or recorder is None:
            return
        number = recorder.number(f"{kind}_output_{index}", _LOSS, "", kind if kind != "loss" else "")
        if isinstance(value, DeviceScalar):
            layout = recorder.layouts.scalar(_FLOAT64 if code == _FLOAT64 else _FLOAT32)
            if value.record(session, number, layout):
                step.captured = True
            else:
                session.gap(number, int(GapReason.UNSUPPORTED), 0, 1)
            return
        if value is None:
            session.gap(number, int(GapReason.UNSUPPORTED), 0, 1)
            return
        session.scalar(number, value)
        step.captured = True
        if not session.due_tensor(number):
            return
        if code == _FLOAT64:
            self._scratch[0] = value
        else:
            code = _FLOAT32
            self._scratch_float32[0] = value
        session.capture_one(number, recorder.layouts.scalar(code), self._scratch_address)

    def scaled(
        self, result: Any, value: float | DeviceScalar | None, scale: float | None, divisor: Any = None
    ) -> None:
        """Called when a gradient scaler has multiplied a loss. `divisor`: the scale, where it is on an accelerator."""
        self.last_scaled = (weakref.ref(result), value, scale)
        self._divisor = None if divisor is None else weakref.ref(divisor)
        self._context.event(int(EventKind.SCALE_LOSS), codes.NO_ID, 0 if scale is None else float_bits(scale))

    def unscaling(self, roots: list[Any]) -> Any:
        """Returns what the gradients of a backward pass are to be multiplied by, since its loss was scaled; None if
        the scale is not known; a scale on an accelerator, by which they are to be divided, as it is.
        """
        if self.last_scaled is None or not any(self.last_scaled[0]() is root for root in roots):
            return 1.0
        scale = self.last_scaled[2]
        if len(roots) != 1:
            return None
        if scale is None and self._divisor is not None:
            return self._divisor()
        return 1.0 / scale if scale else None

    def readable(self, step: Step | None) -> bool:
        """Returns whether saved values between a step's loss and the root of its backward pass can be read.

        A model that recomputes its parts (checkpoints) uses hooks in its forward pass, but not after it.
        """
        context = self._context
        return not context.saved_hooks or (step is not None and step.plain_loss and not context.saving)

    def root(self, step: Step, root: Any) -> None:
        """Records the root of a backward pass as the loss, unless the call of a loss module was recorded already."""
        if not isinstance(root, torch.Tensor) or root.numel() != 1:
            return
        self._weights(step, root)
        if step.samples and len(results := self._written.results(step)) > 1 and not self._context.saved_hooks:
            self._views.root(root, results)
        if len(step.loss_nodes) >= _SEVERAL:
            self._used(step, root)
        if step.loss_outputs and any(reference() is root for reference in step.loss_outputs):
            return
        plain = not self._context.saved_hooks
        inputs_due = plain and not step.module_losses and self._inputs_due()
        sampled = plain and step.samples and not step.sampled_losses
        scaled = self.last_scaled is not None and self.last_scaled[0]() is root
        unknown = scaled and self.last_scaled is not None and self.last_scaled[2] is None
        node = _loss_graph.analyse(
            root, self.readable(step), inputs_due or sampled or bool(step.loss_outputs), unknown
        )
        if (
            node.node is not None
            and step.loss_outputs
            and any(
                output is not None and output.grad_fn is node.node
                for output in (reference() for reference in step.loss_outputs)
            )
        ):
            return
        # A call that was seen gives the name, under which its arguments and its values in evaluations are kept, too:
        # `nll_loss` of a log softmax is a cross entropy in the graph.
        kind = (step.function_losses and self._of_function(step, root, node.base)) or node.kind
        if node.kind:
            node.kind = kind
        if kind:
            step.graph_losses = {**step.graph_losses, kind: step.graph_losses.get(kind, 0) + 1}
            if step.graph_losses[kind] <= step.module_losses.get(kind, 0):
                return  # the call of the module was recorded already
        value, factor = None, node.factor
        if self.last_scaled is not None and scaled:
            value = self.last_scaled[1]
            factor /= (self.last_scaled[2] or 1.0) if value is not None and factor != 1.0 else 1.0
        if value is None and not unknown:
            value = scalar_of(root)
        if value is not None and kind and factor != 1.0:
            value /= factor * (node.count or 1.0)
        elif node.count and kind:
            self._sums.add(kind)
        if kind and node.base is not None:
            step.known_functions |= {node.base._sequence_nr()}
        else:
            if step.samples and self.readable(step):
                self._written.root(step, root)
            self._parts(step, root)
        self._record_loss(step, kind or "loss", value, root)
        modules, recorder = self._context.modules, self._context.recorder
        if node.compiled and modules is not None:
            modules.hidden(GapReason.COMPILED_GRAPH)
        if recorder is not None:
            for loss in step.function_losses:
                if loss.kind not in recorder.losses:
                    recorder.loss(loss.kind, given=loss.given)
            if kind and kind not in recorder.losses:
                recorder.loss(kind)
        if node.node is not None and (inputs_due or sampled):
            self._graph_inputs(step, node, inputs_due)

    def _weights(self, step: Step, root: Any) -> None:
        """Follows the constant factors with which losses enter the roots of backward passes."""
        session, count = self._context.session, self._context.clock.mode_steps[_TRAIN]
        if session is None:
            return
        if count >= _SIGNED and count & (count - 1):
            if self.kept_graphs.told:
                self.kept_graphs.step(session, count)
            if count - self._context.looked_from >= _SIGNED:
                return
        else:
            self.kept_graphs.root(session, root, count)
        if not self.readable(step):
            self._faint = False
            return
        parts = _loss_graph.parts(root, step.loss_nodes)
        self._scale(session, root, [abs(weight) for _, weight in parts], count)
        self._sign(session, step, parts)
        if not self._context.saved_hooks:
            self.pairs.root(root)
            if self._direction() > 0:
                self.formula.root(root)
                living = self._context.recorder.living() if self._context.recorder is not None else ()
                self._formula_parts.root(root, [optimizer for _, optimizer in living])

    def _used(self, step: Step, root: Any) -> None:
        """Notes which of a step's losses a root sums up. Not known where it sums up anything else."""
        if step.summed_losses is None:
            return
        summed = frozenset(node._sequence_nr() for node, _ in _loss_graph.parts(root, step.loss_nodes))
        known = self.readable(step) and summed <= step.loss_nodes.keys()
        summed |= step.summed_losses
        step.summed_losses = summed if known and not self._follows(step, root, summed) else None

    def _follows(self, step: Step, root: Any, summed: frozenset[int]) -> bool:
        """Whether a root was computed with what was made before the loss before it, as weights that inner steps have
        changed are: then that loss may have been used by `torch.autograd.grad`. Looked at where the step would be told.
        """
        made = list(step.loss_nodes)
        if not self._unused or summed != {made[-1]}:
            return False
        before = made[-2]
        older = any(node._sequence_nr() < before for node in nodes_behind(nodes_of([root]), _BEHIND))
        self._unused -= older
        return older

    def _mark(self, step: Step, node: Any) -> None:
        """Marks a loss, so that it is known whether anything goes through it, as `torch.autograd.grad` does."""
        count = self._context.clock.mode_steps[_TRAIN] - self._context.clock.first_train_step
        if self._unused and count < _MARKED:
            if step.used_losses is None:
                step.used_losses = UsedLosses()
            node.register_prehook(step.used_losses)

    def updated(self, step: Step) -> None:
        """Reports a step in which losses with gradients were made and none but the last went into the update."""
        session, summed = self._context.session, step.summed_losses
        if not summed or session is None:
            return
        if step.used_losses is not None and step.used_losses.count > len(summed):
            return
        step.summed_losses = None  # of further updates of the step nothing is known
        kinds = {step.loss_nodes[number] for number in summed}
        made = [number for number, kind in step.loss_nodes.items() if kind in kinds]
        if len(summed) == 1 and made[-1] in summed and len(made) >= _SEVERAL and self._unused:
            self._unused -= 1
            event = {"kind": "unused_losses", "loss": kinds.pop(), "made": len(made), "used": 1}
            session.event_json(json.dumps(event))

    def _scale(self, session: Any, root: Any, weights: list[float], count: int) -> None:
        """Reports a training of which all losses are scaled down to nearly nothing, once it has been so in `_SIGNED`
        steps.
        """
        if not self._faint:
            return
        scale = 1.0
        if self.last_scaled is not None and self.last_scaled[0]() is root:
            scale = self.last_scaled[2] or math.inf
        value, weight = read_scalar(root), max(weights, default=math.inf)
        if value is None or not (weight < _FAINT * scale and abs(value) < _FAINT_VALUE * scale):
            self._faint = False
        elif count >= _SIGNED:
            self._faint = False
            session.event_json(json.dumps({"kind": "faint_loss", "weight": weight / scale}))

    def _sign(self, session: Any, step: Step, parts: list[tuple[Any, float]]) -> None:
        """Reports losses that enter their roots with a minus only, so that the training makes them larger, and once a
        root that sums up other terms beside them.
        """
        nodes, calls = [node for node, _ in parts], step.loss_nodes
        signs = [(calls[n], weight) for node, weight in parts if (n := node._sequence_nr()) in calls]
        if signs and len(signs) < len(parts) and not self._summed:
            self._summed = True
            others = len(parts) - len(signs)
            session.event_json(json.dumps({"kind": "summands", "losses": len(signs), "others": others}))
        squares = not signs and all(map(_loss_graph.is_square, nodes))
        if squares and any(map(_loss_graph.is_squared_error, nodes)):
            signs = [(_SQUARED_ERROR, weight) for _, weight in parts]
        direction = self._direction() if signs else 0
        if not direction:
            return
        kinds = {kind for kind, _ in signs}
        if max(direction * weight for _, weight in signs) < 0.0:
            kinds -= self._minimised
        else:
            self._minimised |= kinds
            kinds &= self._maximised
        if kinds - self._maximised or kinds & self._minimised:
            self._maximised = (self._maximised | kinds) - self._minimised
            event: dict[str, Any] = {"kind": "maximised", "losses": sorted(self._maximised)}
            if direction < 0:
                event["optimizer"] = True
            session.event_json(json.dumps(event))

    def _direction(self) -> int:
        """Returns which way the optimizers go: 1 down, -1 up, or 0 if the script may mean to ascend.

        Who trains plain tensors, or parameters beside a model that is frozen, against a loss, such as the disturbance
        of images, often makes the loss larger; and one of several optimizers that maximises is an adversary, or holds
        multipliers of constraints. The only one, which holds all weights of the models that are called, goes up by a
        setting, and nothing goes down.
        """
        recorder = self._context.recorder
        living = [optimizer for _, optimizer in recorder.living()] if recorder is not None else []
        groups = [group for optimizer in living for group in optimizer.param_groups]
        held = [p for group in groups for p in group["params"]]
        of_called = recorder.of_called if recorder is not None else set()
        if held and not any(
            isinstance(p, torch.nn.Parameter) and (not of_called or id(p) in of_called) for p in held
        ):
            return 0
        turned = [bool(group.get("maximize")) for group in groups]
        if not any(turned):
            return 1
        if len(living) != 1 or not all(turned):
            return 0
        # A model that nothing trains is attacked, or asked, by the one that is trained.
        return -1 if of_called and of_called <= {id(p) for p in held} else 0

    def _parts(self, step: Step, root: Any) -> None:
        """Records the values of functional losses that a root sums up. They explain samples; the loss is the root."""
        if not step.function_losses:
            return
        losses = [loss for loss in step.function_losses if loss.node not in step.known_functions]
        session, recorder = self._context.session, self._context.recorder
        if not losses or session is None or recorder is None or not step.begun:
            return
        found = _loss_graph.behind(root, {loss.node for loss in losses})
        step.known_functions |= found
        for loss in losses:
            if loss.node in found and loss.value is not None:
                number = recorder.number(f"{loss.kind}_part_{loss.call}", _OTHER, "", loss.kind)
                record_number(session, recorder.layouts, number, loss.value)

    @staticmethod
    def _of_function(step: Step, root: Any, base: Any) -> str:
        """Returns the kind of the functional loss that made a root, if its call was seen."""
        nodes = {node._sequence_nr() for node in (root.grad_fn, base) if node is not None}
        for loss in step.function_losses:
            if loss.node in nodes:
                return loss.kind
        return ""

    def _inputs_due(self) -> bool:
        return bool(self._context.due & _INPUTS)

    def _graph_inputs(self, step: Step, node: Any, inputs_due: bool) -> None:
        """Records input and target saved by the graph. For cross entropy these are log-probabilities, NLLLoss's
        input.
        """
        modules, recorder = self._context.modules, self._context.recorder
        if modules is None or recorder is None:
            return
        kind = node.kind or node.node_kind
        first = 2 * (step.losses.get(kind, 1) - 1) if node.kind else 0
        samples = []
        for attribute, name, number, role in (
            ("_saved_self", node.node_kind, 0, _LOSS_INPUT),
            ("_saved_target", kind, 1, _LABEL),
        ):
            try:
                tensor = getattr(node.node, attribute, None)
            except RuntimeError:  # changed in place since, or freed
                continue
            if isinstance(tensor, torch.Tensor):
                samples.append((name, first + number, tensor))
                if inputs_due:
                    named = recorder.number(f"{name}_input_{number}", role, "", node.node_kind)
                    modules.capture(named, tensor)
        self._samples.of_graph(step, samples, node.node)


def _lasting(value: float | DeviceScalar | None) -> float | DeviceScalar | None:
    """Returns a value that is to be recorded later; None if it might then be another."""
    return None if isinstance(value, DeviceScalar) and not value.lasts else value
