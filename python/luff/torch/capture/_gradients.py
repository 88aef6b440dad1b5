"""Captures gradients with respect to outputs of modules and inputs of models, if a collection wants them.

A hook on the tensor reads the gradient while the backward pass has it in memory, and gives it back as it was. Nothing
is kept: what a watch holds is a name. All hooks of a step are removed when the step ends, also from tensors that live
on. A gradient that does not come is a gap.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from luff._codes import GapReason
from luff._hook import Session
from luff.torch.capture._device import DeviceRows, is_on_device
from luff.torch.capture._memory import Layouts, address_of, is_readable

__all__ = ["GradientCapture", "Watch", "compiles_backward"]

_MAX_WATCHED = 4096  # tensors of one step
# Since torch 2.0 a hook that was registered before an in-place operation gets the gradient from before it.
_OLD = not hasattr(torch.Tensor, "register_post_accumulate_grad_hook")
_NONE, _UNSUPPORTED = int(GapReason.NO_GRADIENT), int(GapReason.UNSUPPORTED)
_NOT_SEEN, _TOO_MANY = int(GapReason.NOT_SEEN), int(GapReason.TOO_MANY)
_COMPILED = int(GapReason.COMPILED_GRAPH)


class Watch:
    """The gradient of one tensor, expected in a step.

    Attributes
    ----------
    number
        Number of the gradient's tensor; -1 while nobody has adopted the watch.
    owner
        Weak reference to the `GradientCapture` that has; None before that.
    reason
        Why there will be no gradient; 0 if there may be one.
    elsewhere
        Whether it will be in the memory of an accelerator.
    """

    __slots__ = ("_handle", "elsewhere", "number", "owner", "reason", "times")

    def __init__(self, tensor: Any, reads_accelerators: bool = True) -> None:
        self.elsewhere = is_on_device(tensor)
        self.number = -1
        self.owner: weakref.ref[GradientCapture] | None = None
        self.times = 0  # gradients that came
        self._handle: Any = None
        self.reason = _reason(tensor) or (_UNSUPPORTED if self.elsewhere and not reads_accelerators else 0)
        if not self.reason:
            try:
                self._handle = tensor.register_hook(_telling(self))
            except RuntimeError:
                self.reason = _UNSUPPORTED

    def end(self) -> None:
        """Removes the hook."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()


def _reason(tensor: Any) -> int:
    """Returns why a tensor's gradient cannot be captured; 0 if it can."""
    if not tensor.requires_grad:
        return _NONE
    if _OLD or not (is_readable(tensor) or is_on_device(tensor)):
        return _UNSUPPORTED
    try:
        tensor.data_ptr()
    except RuntimeError:  # a tensor inside a transform (vmap, grad) has no memory
        return _UNSUPPORTED
    return 0


def _telling(watch: Watch) -> Callable[[Any], None]:
    def arrived(gradient: Any) -> None:
        owner = None if watch.owner is None else watch.owner()
        if owner is not None:
            owner.tell(watch, gradient)

    arrived.__torch_unserializable__ = True  # type: ignore[attr-defined]  # saving the tensor prints no warning
    return arrived


def compiles_backward() -> bool:
    """Returns whether the backward pass is about to be compiled, hooks and all."""
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    return any(
        getattr(compiled, name, False)
        for name in ("compiled_autograd_enabled", "compiled_autograd_enabled_force_eager")
    )


class GradientCapture:
    """Gradients of the tensors that a step has watched. One per hook; its methods run under the hook's lock.

    Parameters
    ----------
    session, layouts
        Where the tensors are defined.
    tell
        Called with this object, a watch and a gradient, outside of any guard. Held weakly.
    """

    def __init__(self, session: Session, layouts: Layouts, tell: Callable[..., object] | None = None) -> None:
        self._session = session
        self._reads_accelerators = session.reads_accelerators
        self._layouts = layouts
        self._tell = None if tell is None else weakref.WeakMethod(tell)
        self._self = weakref.ref(self)
        self._watched: list[Watch] = []
        self._passing = False  # within a backward pass that Luff has seen
        self._passed = False  # there was one in the step
        self._factor: Any = 1.0
        self._row = np.zeros((1, 4), dtype=np.uint64)

    def watch(self, number: int, tensor: Any) -> None:
        """Watches a tensor if its gradient (`number`) is due in the step."""
        forms = self._session.due_tensor(number)
        if not forms:
            return
        if len(self._watched) >= _MAX_WATCHED:
            self._session.gap(number, _TOO_MANY, forms, 1)
        else:
            self.adopt(number, Watch(tensor, self._reads_accelerators))

    def adopt(self, number: int, watch: Watch) -> None:
        """Takes over a watch that began before the session was open, or begins now."""
        if not self._session.due_tensor(number):
            watch.end()
            return
        if (
            watch.elsewhere and not self._reads_accelerators and not watch.reason
        ):  # it began before the session
            watch.end()
            watch.reason = _UNSUPPORTED
        watch.number = number
        watch.owner = self._self
        self._watched.append(watch)

    def tell(self, watch: Watch, gradient: Any) -> None:
        """Called by a hook of a tensor, inside a backward pass, in the thread that runs it."""
        listener = None if self._tell is None else self._tell()
        if listener is not None:
            listener(self, watch, gradient)

    def backward_begins(self, factor: Any) -> None:
        """Called when a backward pass begins.

        `factor`: what its gradients are to be multiplied by, since the loss was scaled; None: not known; a tensor on
        an accelerator: what they are to be divided by.
        """
        if not self._watched:
            return
        self._passing = self._passed = True
        self._factor = factor
        if compiles_backward():
            for watch in self._watched:
                watch.end()
                watch.reason = watch.reason or _COMPILED

    def backward_ended(self) -> None:
        """Called when a backward pass has returned or raised."""
        self._passing = False

    def arrived(self, watch: Watch, gradient: Any) -> None:
        """Captures a gradient. The first of the step counts: the sum over several passes is nowhere in memory."""
        if not self._passing:  # of `torch.autograd.grad`, which need not be that of the loss
            watch.reason = watch.reason or _NOT_SEEN
            return
        watch.times += 1
        forms = self._session.due_tensor(watch.number)
        if watch.times > 1:
            self._session.gap(watch.number, _TOO_MANY, forms, 1)
            return
        there = is_on_device(gradient)
        layout = self._layouts.find(gradient) if there or is_readable(gradient) else -1
        address = address_of(gradient) if layout >= 0 else 0
        factor = self._factor
        divisor = None if factor is None or isinstance(factor, float) else factor
        apart = divisor is not None and not (there and divisor.get_device() == gradient.get_device())
        if layout < 0 or factor is None or apart or (not address and gradient.numel()):
            self._session.gap(watch.number, _UNSUPPORTED, forms, 1)
        elif divisor is not None:
            DeviceRows(self._session).one(watch.number, layout, gradient, 1.0, divisor)
        elif there:
            DeviceRows(self._session).one(watch.number, layout, gradient, factor)
        elif self._factor == 1.0:
            self._session.capture_one(watch.number, layout, address)
        else:
            self._row[0, 0], self._row[0, 1] = watch.number | layout << 32, address
            self._session.capture_scaled(self._row, self._factor, 1)

    def end_step(self, published: bool) -> None:
        """Removes the hooks of a step. What did not come is a gap if the step is published and had a backward pass."""
        if not self._watched:
            self._passed = self._passing = False
            return
        watched, self._watched = self._watched, []
        told = published and (self._passed or any(watch.reason == _NOT_SEEN for watch in watched))
        for watch in watched:
            watch.end()
            if told and not watch.times:
                forms = self._session.due_tensor(watch.number)
                self._session.gap(watch.number, watch.reason or _NONE, forms, 1)
        self._passed = self._passing = False
